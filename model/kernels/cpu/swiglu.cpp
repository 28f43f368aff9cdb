#include "model/kernels/cpu/pairs.hpp"
#include "model/kernels/cpu/table.hpp"

namespace tinyllama::kernels::TINYLLAMA_ISA {
namespace {

/// To the accuracy that rounding to T leaves.
template <class T, class V>
[[gnu::always_inline]] inline V sigmoid(V x) {
  if constexpr (sizeof(T) == 2) {
    return 1 / (1 + vector_exp_narrow(-x));
  } else {
    return 1 / (1 + vector_exp(-x));
  }
}

template <class T>
void swiglu(const SwigluRows<T>& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* gates = a.gate + row * a.gate_stride;
    const T* ups = a.up + row * a.up_stride;
    T* out = a.out + row * a.width;
    sweep_pairs<T>(a.width, [&](int64_t i, auto lanes) {
      const auto gate = load(gates + i, lanes);
      store(out + i, gate * sigmoid<T>(gate) * load(ups + i, lanes), lanes);
    });
  }
}

template <class T>
void swiglu_gradient(const SwigluGradientRows<T>& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* gradients = a.gradient + row * a.width;
    const T* gates = a.gate + row * a.gate_stride;
    const T* ups = a.up + row * a.up_stride;
    T* gate_gradient = a.gate_gradient + row * a.gradient_stride;
    T* up_gradient = a.up_gradient + row * a.gradient_stride;
    sweep_pairs<T>(a.width, [&](int64_t i, auto lanes) {
      const auto gradient = load(gradients + i, lanes);
      const auto gate = load(gates + i, lanes);
      const auto up = load(ups + i, lanes);
      const auto s = sigmoid<T>(gate);
      store(gate_gradient + i, gradient * up * s * (1 + gate * (1 - s)), lanes);
      store(up_gradient + i, gradient * gate * s, lanes);
    });
  }
}

void exp_of_each(const float* x, float* out, int64_t count) {
  sweep<float>(
      count, [&](int64_t i, auto lanes) { store(out + i, vector_exp(load(x + i, lanes)), lanes); });
}

}  // namespace

void enter_swiglu(RangeKernels& table) {
  for_each_type(table, []<class T>(RangeKernelsOf<T>& kernels) {
    kernels.swiglu = &swiglu<T>;
    kernels.swiglu_gradient = &swiglu_gradient<T>;
  });
}

void enter_exp(RangeKernels& table) {
  table.exp = &exp_of_each;
}

}  // namespace tinyllama::kernels::TINYLLAMA_ISA
