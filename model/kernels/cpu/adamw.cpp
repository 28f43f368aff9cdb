#include "model/kernels/cpu/pairs.hpp"
#include "model/kernels/cpu/table.hpp"

namespace tinyllama::kernels::TINYLLAMA_ISA {
namespace {

template <class T>
void adamw(const AdamWElements<T>& a, int64_t begin, int64_t end) {
  using Compute = ComputeType<T>;
  const auto decay = static_cast<Compute>(a.decay);
  const auto first_weight = static_cast<Compute>(a.first_weight);
  const auto second_decay = static_cast<Compute>(a.second_decay);
  const auto second_weight = static_cast<Compute>(a.second_weight);
  const auto second_scale = static_cast<Compute>(a.corrections ? a.corrections[0] : a.second_scale);
  const auto step_size = static_cast<Compute>(a.corrections ? a.corrections[1] : a.step_size);
  const auto eps = static_cast<Compute>(a.eps);
  T* parameters = a.parameter + begin;
  const T* gradients = a.gradient + begin;
  T* first_moments = a.first_moment + begin;
  T* second_moments = a.second_moment + begin;
  sweep_pairs<T>(end - begin, [&](int64_t i, auto lanes) {
    const auto gradient = load(gradients + i, lanes);
    auto m = load(first_moments + i, lanes);
    m += first_weight * (gradient - m);
    const auto v =
        load(second_moments + i, lanes) * second_decay + gradient * gradient * second_weight;
    store(first_moments + i, m, lanes);
    store(second_moments + i, v, lanes);
    const auto change = m / (vector_sqrt(v) * second_scale + eps);
    store(parameters + i, load(parameters + i, lanes) * decay - step_size * change, lanes);
  });
}

}  // namespace

void enter_adamw(RangeKernels& table) {
  for_each_type(table, []<class T>(RangeKernelsOf<T>& kernels) { kernels.adamw = &adamw<T>; });
}

}  // namespace tinyllama::kernels::TINYLLAMA_ISA
