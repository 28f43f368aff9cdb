// Kernels that treat each element, or pair of elements, by itself.
#include "model/kernels/cpu/pairs.hpp"
#include "model/kernels/cpu/table.hpp"

namespace tinyllama::kernels::TINYLLAMA_ISA {
namespace {

template <class T>
void rotary(const RotaryTokens<T>& a, int64_t begin, int64_t end) {
  const int64_t half = a.head_dim / 2;
  const ComputeType<T> direction = a.backwards ? -1 : 1;
  for (int64_t token = begin; token < end; ++token) {
    const int64_t position = token % a.positions;
    const T* x = a.x + token / a.positions * a.batch_stride + position * a.position_stride;
    T* out = a.out + token * a.heads * a.head_dim;
    const T* cos = a.cos + position * a.head_dim;
    const T* sin = a.sin + position * a.head_dim;
    for (int64_t head = 0; head < a.heads; ++head) {
      sweep_pairs<T>(half, [&](int64_t i, auto lanes) {
        const auto c = load(cos + i, lanes);
        const auto s = load(sin + i, lanes) * direction;
        const auto first = load(x + i, lanes);
        const auto second = load(x + half + i, lanes);
        store(out + i, first * c - second * s, lanes);
        store(out + half + i, second * c + first * s, lanes);
      });
      x += a.head_stride;
      out += a.head_dim;
    }
  }
}

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

template <F32Vector (*function)(F32Vector)>
void of_each(const float* x, float* out, int64_t count) {
  sweep<float>(count,
               [&](int64_t i, auto lanes) { store(out + i, function(load(x + i, lanes)), lanes); });
}

template <class T>
void adamw(const AdamWElements<T>& elements, int64_t begin, int64_t end) {
  using Compute = ComputeType<T>;
  // A copy, which no store below can change: its numbers stay in registers.
  const AdamWElements<T> a = elements;
  const Compute second_scale =
      a.corrections ? static_cast<Compute>(a.corrections[0]) : a.second_scale;
  const Compute step_size = a.corrections ? static_cast<Compute>(a.corrections[1]) : a.step_size;
  T* parameters = a.parameter + begin;
  const T* gradients = a.gradient + begin;
  T* first_moments = a.first_moment + begin;
  T* second_moments = a.second_moment + begin;
  sweep_pairs<T>(end - begin, [&](int64_t i, auto lanes) {
    const auto gradient = load(gradients + i, lanes);
    auto m = load(first_moments + i, lanes);
    m += a.first_weight * (gradient - m);
    const auto v =
        load(second_moments + i, lanes) * a.second_decay + gradient * gradient * a.second_weight;
    store(first_moments + i, m, lanes);
    store(second_moments + i, v, lanes);
    const auto change = m / (vector_sqrt(v) * second_scale + a.eps);
    store(parameters + i, load(parameters + i, lanes) * a.decay - step_size * change, lanes);
  });
}

}  // namespace

void enter_elementwise(RangeKernels& table) {
  for_each_type(table, []<class T>(RangeKernelsOf<T>& kernels) {
    kernels.rotary = &rotary<T>;
    kernels.swiglu = &swiglu<T>;
    kernels.swiglu_gradient = &swiglu_gradient<T>;
    kernels.adamw = &adamw<T>;
  });
  table.exp = &of_each<vector_exp>;
  table.exp2 = &of_each<vector_exp2>;
  table.exp2_narrow = &of_each<vector_exp2_narrow>;
}

}  // namespace tinyllama::kernels::TINYLLAMA_ISA
