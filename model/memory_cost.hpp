// Peak memory of every component and of the step, predicted from sizes alone.
//
// The prediction replays the variant's tensors: which are saved for backward, which live for a
// moment, when each is freed. What it adds up is what the allocator is asked for, to be compared
// with the memory meter; scratch inside libraries is outside both.
#pragma once

#include "model/cost.hpp"

namespace tinyllama {

/// Bytes. peak = weights + gradients + optimizer_state + inputs + activations + temporary.
struct MemoryCost {
  int64_t weights = 0;
  int64_t gradients = 0;        ///< of the parameters, at the end of backward
  int64_t optimizer_state = 0;  ///< AdamW's two moments
  int64_t inputs = 0;  ///< tokens, hidden-state inputs with their gradients, rotary tables, mask
  int64_t activations = 0;  ///< alive at the end of forward: saved for backward, and the output
  int64_t temporary = 0;    ///< what the peak has beyond all of the above
  int64_t peak() const {
    return weights + gradients + optimizer_state + inputs + activations + temporary;
  }
};

MemoryCost embedding_memory(const Workload& workload, Pass pass);
MemoryCost rms_norm_memory(const Workload& workload, Pass pass);
MemoryCost rotary_memory(const Workload& workload, Pass pass);
MemoryCost attention_memory(const Workload& workload, Pass pass);
MemoryCost feed_forward_memory(const Workload& workload, Pass pass);
MemoryCost block_memory(const Workload& workload, Pass pass);
MemoryCost loss_memory(const Workload& workload, Pass pass);
MemoryCost model_memory(const Workload& workload, Pass pass);
MemoryCost optimizer_memory(const Workload& workload);
MemoryCost full_step_memory(const Workload& workload);

}  // namespace tinyllama
