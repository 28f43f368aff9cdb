// Work that is built, and what iterations of their own, never timed, tell about it: memory,
// operators, FLOPs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/instruments/device.hpp"
#include "benchmarks/instruments/hardware_counters.hpp"
#include "benchmarks/instruments/operator_profile.hpp"

namespace tinyllama::harness {

/// A case's work item with its inputs and weights.
struct CaseWork {
  std::unique_ptr<WorkItem> item;
  int64_t other_bytes = 0;  ///< live before this case, and not its own
  /// While a step was captured as a graph, which its replay needs too; else 0.
  int64_t capture_peak_bytes = 0;
};

/// `weights`: null where they are drawn from the seed. Throws what the component's build throws.
CaseWork build_work(const instruments::Device& device, const Case& test_case, uint64_t seed,
                    const Weights* weights);

struct Metering {
  int64_t peak_bytes = 0;   ///< of all tensors that the case holds or creates
  int64_t allocations = 0;  ///< in an iteration
  int64_t operators = 0;    ///< in an iteration
  instruments::OperatorProfile profile;
  /// Largest scratch memory of libraries; nothing where it is counted with the tensors.
  std::optional<int64_t> library_scratch_bytes{};
  /// On a CPU: oneDNN's implementations, the one with most time first.
  std::vector<std::string> onednn_kernels{};
  /// On a CPU: what its counters say of an iteration; of a GPU's work nothing.
  instruments::HardwareCounts hardware{};
};

Metering meter(const instruments::Device& device, const CaseWork& work);

/// Compares the formula's FLOPs with those that the profiler counted while the work ran. Returns
/// the difference in words; empty where there is none, or where the profiler met operators that it
/// cannot count.
std::string wrong_flops(const Case& test_case, const Metering& metering);

}  // namespace tinyllama::harness
