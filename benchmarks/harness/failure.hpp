// What a case throws, in words, so that the run goes on; and the limit of memory meanwhile.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "benchmarks/instruments/device.hpp"

namespace tinyllama::harness {

/// The user's limit of host memory, for as long as it lives, and then again what was before; 0:
/// none.
class AllocationLimit {
 public:
  explicit AllocationLimit(int64_t bytes);
  ~AllocationLimit();
  AllocationLimit(const AllocationLimit&) = delete;
  AllocationLimit& operator=(const AllocationLimit&) = delete;

 private:
  int64_t before_;
};

/// Runs `step` with this limit of host memory (0: none; it does not hold on a GPU) and returns in
/// words what it threw; empty if nothing.
std::string failure_of(const instruments::Device& device, int64_t memory_limit_bytes,
                       const std::function<void()>& step);

}  // namespace tinyllama::harness
