#include "model/kernels/cpu/pairs.hpp"
#include "model/kernels/cpu/table.hpp"

namespace tinyllama::kernels::TINYLLAMA_ISA {
namespace {

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

void enter_adamw(RangeKernels& table) {
  for_each_type(table, []<class T>(RangeKernelsOf<T>& kernels) { kernels.adamw = &adamw<T>; });
}

}  // namespace tinyllama::kernels::TINYLLAMA_ISA
