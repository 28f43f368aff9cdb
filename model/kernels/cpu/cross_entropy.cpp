#include "model/kernels/cpu/pairs.hpp"
#include "model/kernels/cpu/table.hpp"

namespace tinyllama::kernels::TINYLLAMA_ISA {
namespace {

/// The lanes behind a Part become `value`.
template <class V, class C>
inline V with_padding(V v, Part lanes, C value) {
  for (int64_t i = lanes.count; i < int64_t{sizeof(V) / sizeof(C)}; ++i) v[i] = value;
  return v;
}
template <class V, class Lanes, class C>
inline V with_padding(V v, Lanes /*lanes*/, C /*value*/) {
  return v;
}

/// The largest logit; NaNs are passed over, the sum of exponentials will meet them.
template <class T>
inline ComputeType<T> largest(const T* logits, int64_t classes) {
  Vector<T> max = broadcast<T>(static_cast<ComputeType<T>>(-__builtin_inf()));
  sweep_pairs<T>(classes, [&](int64_t i, auto lanes) {
    max = vector_max(folded_max(with_padding(load(logits + i, lanes), lanes, max[0])), max);
  });
  return max_of_lanes<T>(max);
}

inline double log_of(double x) {
  return __builtin_log(x);
}

template <class T>
inline ComputeType<T> row_loss(const T* logits, int64_t target, ComputeType<T> max,
                               ComputeType<T> sum) {
  const ComputeType<T> of_target = load(logits + target, Part{1})[0];
  return static_cast<ComputeType<T>>(log_of(sum) - (double{of_target} - double{max}));
}

template <class T>
inline ComputeType<T> loss_only(const CrossEntropyRows<T>& a, const T* logits, int64_t target) {
  const ComputeType<T> max = largest(logits, a.classes);
  const auto sum = sum_over_pairs<T>(a.classes, [&](int64_t i, auto lanes) {
    return with_padding(vector_exp(load(logits + i, lanes) - max), lanes, ComputeType<T>{0});
  });
  return row_loss(logits, target, max, sum);
}

template <class T>
inline ComputeType<T> loss_and_gradient(const CrossEntropyRows<T>& a, const T* logits,
                                        int64_t target, T* gradient) {
  const ComputeType<T> max = largest(logits, a.classes);
  const auto sum = sum_over_pairs<T>(a.classes, [&](int64_t i, auto lanes) {
    const auto e = vector_exp(load(logits + i, lanes) - max);
    store(a.scratch + i, e, lanes);
    return with_padding(e, lanes, ComputeType<T>{0});
  });
  const ComputeType<T> loss = row_loss(logits, target, max, sum);
  const ComputeType<T> scale = 1 / sum;
  const ComputeType<T> of_target = vector_exp(load(logits + target, Part{1}) - max)[0];
  sweep_pairs<T>(a.classes, [&](int64_t i, auto lanes) {
    store(gradient + i, load(a.scratch + i, lanes) * scale, lanes);
  });
  // From what is not rounded, so that a probability near 1 keeps its distance from 1.
  store(gradient + target, broadcast<T>((of_target - sum) * scale), Part{1});
  return loss;
}

template <class T>
void cross_entropy(const CrossEntropyRows<T>& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* logits = a.logits + row * a.classes;
    T* gradient = a.gradient ? a.gradient + row * a.classes : nullptr;
    if (a.targets[row] == a.ignored_target) {
      a.losses[row] = 0;
      if (gradient) __builtin_memset(gradient, 0, static_cast<uint64_t>(a.classes) * sizeof(T));
    } else if (gradient) {
      a.losses[row] = loss_and_gradient(a, logits, a.targets[row], gradient);
    } else {
      a.losses[row] = loss_only(a, logits, a.targets[row]);
    }
  }
}

}  // namespace

void enter_cross_entropy(RangeKernels& table) {
  for_each_type(table, []<class T>(RangeKernelsOf<T>& kernels) {
    kernels.cross_entropy = &cross_entropy<T>;
  });
}

}  // namespace tinyllama::kernels::TINYLLAMA_ISA
