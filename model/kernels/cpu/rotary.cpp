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

}  // namespace

void enter_rotary(RangeKernels& table) {
  for_each_type(table, []<class T>(RangeKernelsOf<T>& kernels) { kernels.rotary = &rotary<T>; });
}

}  // namespace tinyllama::kernels::TINYLLAMA_ISA
