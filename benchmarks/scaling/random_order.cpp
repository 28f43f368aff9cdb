#include "benchmarks/scaling/random_order.hpp"

#include <numeric>
#include <random>
#include <utility>

namespace tinyllama::scaling {

std::vector<size_t> random_order(size_t count, uint64_t seed, uint64_t round) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937_64 draw(seed + 0x9e3779b97f4a7c15ULL * (round + 1));
  // std::shuffle may differ between libraries; a remainder's bias does not matter for so few.
  for (size_t left = count; left > 1; --left) std::swap(order[left - 1], order[draw() % left]);
  return order;
}

}  // namespace tinyllama::scaling
