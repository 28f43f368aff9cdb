// Orders that all ranks draw alike, without talking to each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tinyllama::scaling {

/// 0 to count - 1 in an order drawn from the two numbers, the same with every standard library.
std::vector<size_t> random_order(size_t count, uint64_t seed, uint64_t round);

}  // namespace tinyllama::scaling
