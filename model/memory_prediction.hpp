// How much memory work will take, found by running it on libtorch's meta device, where tensors have
// no data: the same code makes the same allocations, and nothing is computed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "model/caching_allocator.hpp"
#include "model/cost.hpp"
#include "model/model_hooks.hpp"
#include "model/parameters.hpp"

namespace tinyllama {

/// Bytes, as the memory meter of the device counts them: of tensors, without scratch of libraries.
/// peak = weights + gradients + optimizer_state + inputs + activations + temporary.
struct PredictedMemory {
  int64_t weights = 0;
  int64_t gradients = 0;        ///< of the parameters, at the end
  int64_t optimizer_state = 0;  ///< AdamW's two moments
  int64_t inputs = 0;       ///< what else lives from the start: tokens, rotary tables, mask, ...
  int64_t activations = 0;  ///< alive where the backward begins, or at the end without one
  int64_t temporary = 0;  ///< what the peak has beyond these; below 0 where it comes before the end
  int64_t live = 0;       ///< at the end

  /// Highest in each phase. A forward done in preparation counts as forward.
  struct Phases {
    int64_t build = 0;
    int64_t forward = 0;
    int64_t backward = 0;
    int64_t update = 0;
  };
  Phases peaks = {};

  /// On a GPU every allocation of the work, in order; else null.
  std::shared_ptr<const std::vector<AllocationEvent>> allocations = {};

  /// Whether the tensors find room in so many bytes; on a GPU in the segments that its allocator
  /// takes.
  bool fits(int64_t bytes) const {
    return peak() <= bytes && (!allocations || segment_bytes(*allocations, bytes));
  }

  int64_t peak() const {
    return weights + gradients + optimizer_state + inputs + activations + temporary;
  }
};

/// Work on the meta device, and which of its tensors are weights and optimizer state.
struct WorkOnMeta {
  std::function<void()> iteration;
  NamedTensors parameters;
  NamedTensors optimizer_state;
};

/// Builds the work and runs one iteration. `device`: what it is to run on. Needs nothing of the
/// device, and can be called from any thread, also while others compute.
PredictedMemory predict_memory(c10::DeviceType device, const std::function<WorkOnMeta()>& build);

/// More bytes than any device has. Work that needs as many is not even run on meta, because its
/// sizes may not fit into 64 bits and its layers may be too many.
inline constexpr double kBeyondAnyDevice = 17592186044416;  // 16 TiB
/// A prediction that only says that `bytes`, at least that many, are needed.
PredictedMemory beyond_any_device(double bytes);

/// Says that what this thread predicts is captured from here on; nothing while it predicts nothing.
void note_capture();

/// What a training step may find, other than one that a process runs alone.
struct StepSetting {
  /// Memory of all gradients from the start: of micro-batches before, or of messages.
  bool has_gradients = false;
  ModelHooks* hooks = nullptr;  ///< of the model; they must outlive the call
};

/// Predicts a training step on one batch, after the first step; where the variant has operators
/// without a Meta kernel, with the model's own operations.
PredictedMemory predict_step_memory(const Workload& workload, c10::DeviceType device,
                                    const StepSetting& setting = {});

}  // namespace tinyllama
