// Operators of a recorded trace as cases: GEMMs, attention and norms, each with inputs of the same
// shapes, strides and types.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/harness/recorded_operators.hpp"

namespace tinyllama::harness {

/// One distinct operator. Its name has all that makes it distinct:
/// replay/mm/f32/1024x256x768/nt, of an m x k matrix whose rows and a k x n matrix whose columns
/// are contiguous (m x n x k).
struct ReplayCase {
  std::string name;
  int64_t count = 0;            ///< calls in the trace
  double recorded_seconds = 0;  ///< of all calls; 0 where the trace has no times
  int64_t flops = 0;  ///< of one call; of causal attention without masked scores; 0: norms
  int64_t bytes = 0;  ///< of its inputs
  /// Throws c10::Error where this libtorch has no such kernel on the device.
  std::function<std::unique_ptr<WorkItem>(c10::Device device, uint64_t seed)> build;
};

struct ReplayPlan {
  std::vector<ReplayCase> cases;  ///< in the order of their first calls
  /// Operators that compute and are in no case, and those that only make views or allocate; by
  /// name, with the number of their calls.
  std::map<std::string, int64_t> not_replayed;
  std::map<std::string, int64_t> without_computing;
};

/// What an operator calls is part of it, unless it only makes views, or calls what is replayed.
/// Throws std::invalid_argument that names the operator and its shapes where they do not
/// fit together.
ReplayPlan plan_replay(const RecordedTrace& trace);

}  // namespace tinyllama::harness
