#include "model/memory_cost.hpp"

#include <algorithm>

#include "model/attention.hpp"
#include "model/memory_replay.hpp"
#include "model/tiny_llama.hpp"

namespace tinyllama {
namespace {

int64_t rotary_table_bytes(const Workload& workload) {
  return 2 * workload.seq * workload.config.head_dim() * compute_bytes(workload.dtype);
}

int64_t mask_bytes(const Workload& workload) {
  if (!has_score_matrix(workload.variant)) return 0;
  return workload.config.n_groups() * workload.seq * workload.seq * compute_bytes(workload.dtype);
}

// What a component that runs alone has around it: weights, the hidden-state input and, with a
// backward, its gradient's seed.
template <typename Forward, typename Backward>
MemoryCost component(const Workload& workload, Pass pass, int64_t parameters, int64_t extra_inputs,
                     int64_t input_bytes, int64_t output_bytes, Forward forward,
                     Backward backward) {
  MemoryCost memory;
  memory.weights = parameters * storage_bytes(workload.dtype);
  memory.inputs = input_bytes + extra_inputs;
  MemoryReplay replay(workload);
  forward(replay);
  memory.activations = replay.live;
  if (has_backward(pass)) {
    memory.inputs += output_bytes;  // the gradient that backward starts from
    backward(replay);
    memory.gradients = memory.weights;
  }
  memory.temporary = replay.peak - memory.activations - memory.gradients;
  return memory;
}

void whole_loss_forward(MemoryReplay& r) {
  if (r.fused_loss) {
    r.fused_loss_forward();
  } else {
    r.head_forward();
    r.cross_entropy_forward();
  }
}

void whole_loss_backward(MemoryReplay& r) {
  if (r.fused_loss) {
    r.fused_loss_backward();
  } else {
    r.cross_entropy_backward();
    r.head_backward();
  }
}

int64_t hidden_bytes(const Workload& workload) {
  return workload.tokens() * workload.config.hidden_dim() * storage_bytes(workload.dtype);
}

}  // namespace

MemoryCost embedding_memory(const Workload& workload, Pass pass) {
  const int64_t table = workload.config.vocab_size() * workload.config.hidden_dim();
  const int64_t bytes = hidden_bytes(workload);
  return component(
      workload, pass, table, 0, workload.tokens() * kTokenBytes, bytes,
      [&](MemoryReplay& r) { r.keep(bytes); },
      [&](MemoryReplay& r) { r.keep(table * storage_bytes(workload.dtype)); });
}

MemoryCost rms_norm_memory(const Workload& workload, Pass pass) {
  const int64_t bytes = hidden_bytes(workload);
  return component(
      workload, pass, workload.config.hidden_dim(), 0, bytes, bytes,
      [](MemoryReplay& r) { r.norm_forward(); },
      [&](MemoryReplay& r) {
        r.keep(bytes);
        r.norm_backward();
      });
}

MemoryCost rotary_memory(const Workload& workload, Pass pass) {
  const int64_t bytes = workload.tokens() *
                        (workload.config.hidden_dim() + workload.config.kv_dim()) *
                        compute_bytes(workload.dtype);
  return component(
      workload, pass, 0, rotary_table_bytes(workload), bytes, bytes,
      [&](MemoryReplay& r) {
        r.keep(r.T * (r.D + r.Kd) * r.c);
        r.rotate_temporaries(r.D);
      },
      [&](MemoryReplay& r) {
        r.keep(bytes);
        r.rotate_temporaries(r.D);
      });
}

MemoryCost attention_memory(const Workload& workload, Pass pass) {
  const int64_t bytes = hidden_bytes(workload);
  return component(
      workload, pass, attention_cost(workload, pass).parameters,
      rotary_table_bytes(workload) + mask_bytes(workload), bytes,
      workload.tokens() * workload.config.hidden_dim() * compute_bytes(workload.dtype),
      [](MemoryReplay& r) { r.attention_forward(MemoryReplay::Input::leaf); },
      [](MemoryReplay& r) {
        r.branch_gradient();
        r.attention_backward(MemoryReplay::Input::leaf);
      });
}

MemoryCost feed_forward_memory(const Workload& workload, Pass pass) {
  const int64_t bytes = hidden_bytes(workload);
  return component(
      workload, pass, feed_forward_cost(workload, pass).parameters, 0, bytes,
      workload.tokens() * workload.config.hidden_dim() * compute_bytes(workload.dtype),
      [](MemoryReplay& r) { r.feed_forward_forward(MemoryReplay::Input::leaf); },
      [](MemoryReplay& r) {
        r.branch_gradient();
        r.feed_forward_backward(MemoryReplay::Input::leaf);
      });
}

MemoryCost block_memory(const Workload& workload, Pass pass) {
  const int64_t bytes = hidden_bytes(workload);
  return component(
      workload, pass, block_cost(workload, pass).parameters,
      rotary_table_bytes(workload) + mask_bytes(workload), bytes, bytes,
      [](MemoryReplay& r) { r.block_forward(); },
      [&](MemoryReplay& r) {
        r.keep(bytes);
        r.block_backward();
      });
}

MemoryCost loss_memory(const Workload& workload, Pass pass) {
  return component(
      workload, pass, loss_cost(workload, pass).parameters, workload.tokens() * kTokenBytes,
      hidden_bytes(workload), 0, [](MemoryReplay& r) { whole_loss_forward(r); },
      [](MemoryReplay& r) { whole_loss_backward(r); });
}

MemoryCost model_memory(const Workload& workload, Pass pass) {
  const int64_t layers = workload.config.n_layers();
  const int64_t stream = hidden_bytes(workload);
  const auto forward = [&](MemoryReplay& r) {
    r.keep(stream);  // embedded tokens
    for (int64_t layer = 0; layer < layers; ++layer) {
      r.block_forward();
      if (!r.norm_saves_stream() && !r.checkpoint) r.drop(stream);  // the block's input
    }
    r.norm_forward();
    if (!r.norm_saves_stream()) r.drop(stream);
    if (pass == Pass::forward) {
      r.head_forward();
    } else {
      whole_loss_forward(r);
    }
    // What the head read: its product saved it, or a cast of it; the fused loss saved neither.
    if (r.autocast || (r.fused_loss && pass != Pass::forward)) r.drop(stream);
  };
  const auto backward = [&](MemoryReplay& r) {
    whole_loss_backward(r);
    if (!r.autocast && !r.fused_loss) r.drop(stream);  // the final norm's output
    r.norm_backward();
    if (r.norm_saves_stream()) r.drop(stream);  // the last block's output
    for (int64_t layer = 0; layer < layers; ++layer) {
      r.block_backward();
      if (r.norm_saves_stream() || r.checkpoint) r.drop(stream);  // the block's input
    }
    r.keep(workload.config.vocab_size() * stream / workload.tokens());
  };
  return component(workload, pass, count_parameters(workload.config),
                   rotary_table_bytes(workload) + mask_bytes(workload),
                   (pass == Pass::forward ? 1 : 2) * workload.tokens() * kTokenBytes, 0, forward,
                   backward);
}

MemoryCost optimizer_memory(const Workload& workload) {
  const int64_t element = storage_bytes(workload.dtype);
  MemoryCost memory;
  memory.weights = count_parameters(workload.config) * element;
  memory.gradients = memory.weights;
  memory.optimizer_state = 2 * memory.weights;
  // The update's denominators: one at a time, of all parameters, or none.
  if (workload.variant.has(Switch::foreach_adamw)) {
    memory.temporary = memory.weights;
  } else if (!workload.variant.has(Switch::fused_adamw)) {
    memory.temporary = largest_parameter(workload.config) * element;
  }
  return memory;
}

MemoryCost full_step_memory(const Workload& workload) {
  MemoryCost memory = model_memory(workload, Pass::forward_backward);
  const MemoryCost update = optimizer_memory(workload);
  memory.optimizer_state = update.optimizer_state;
  // The update starts when the activations are gone, and may yet be the higher of the two peaks.
  const int64_t missing = update.peak() + memory.inputs - memory.peak();
  memory.temporary += std::max<int64_t>(0, missing);
  return memory;
}

}  // namespace tinyllama
