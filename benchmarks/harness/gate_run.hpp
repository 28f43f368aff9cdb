// One iteration under the parity gate's conditions: memory that was not written holds NaN, and the
// results are what is there when the timed call returns.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/instruments/device.hpp"

namespace tinyllama::harness {

struct GateRun {
  NamedTensors results;  ///< copies, enqueued right after the work
  double seconds = 0;
};

/// prepare() and run(). Results are copied on the stream of the work before anything is waited for:
/// what another thread or stream writes later is not in them. Memory that run() gets from the
/// host's allocator holds NaN.
GateRun run_for_gate(const instruments::Device& device, WorkItem& item);

/// Gives the item inputs that it has never seen (`seed` says which), where the old ones lie. Before
/// that the last results become NaN, except where they are the inputs: memory that a GPU's
/// allocator hands out again would hold what the same iteration left there.
void change_inputs(WorkItem& item, uint64_t seed, int64_t distinct);

NamedTensors copies_of(const NamedTensors& tensors);

/// Inputs, weights and state of a work item as they are now, to be put back where they lie. They
/// are kept in the host's memory, outside the allocator that serves and counts tensors.
class KeptValues {
 public:
  explicit KeptValues(const WorkItem& item);
  void put_back() const;

 private:
  struct Kept {
    at::Tensor tensor;
    std::unique_ptr<uint8_t[]> bytes;
    at::Tensor values;  // which lie in them
  };
  std::vector<Kept> all_;
};

/// Which of the tensors no longer has the values of its copy; empty if all have.
std::string first_changed(const NamedTensors& tensors, const NamedTensors& copies);

/// Whether work is skipped where inputs are as before: iterations with inputs that change and with
/// inputs that do not are timed in turns, and the fastest compared. The answer says by how much,
/// empty where nothing is skipped. `usual_seconds`: as timed; `changed_seconds`: of one iteration
/// with changed inputs; where it is not much longer, nothing more is timed.
std::string skipped_work(const instruments::Device& device, WorkItem& item, double usual_seconds,
                         double changed_seconds, const std::function<void()>& change);

}  // namespace tinyllama::harness
