#include "model/memory_replay.hpp"

#include "model/attention.hpp"
#include "model/loss.hpp"

namespace tinyllama {
namespace {

kernels::AttentionScratch attention_scratch(const Workload& workload) {
  if (!workload.variant.has(Switch::fused_attention)) return {};
  const ModelConfig& config = workload.config;
  return kernels::causal_attention_scratch(
      {workload.batch, workload.seq, config.n_heads(), config.n_kv_heads(), config.head_dim()},
      compute_type(workload.dtype));
}

}  // namespace

MemoryReplay::MemoryReplay(const Workload& workload)
    : T(workload.tokens()),
      S(workload.seq),
      D(workload.config.hidden_dim()),
      Kd(workload.config.kv_dim()),
      F(workload.config.intermediate_dim()),
      V(workload.config.vocab_size()),
      scores(workload.batch * workload.config.n_heads() * workload.seq * workload.seq),
      score_rows(workload.batch * workload.config.n_heads() * workload.seq),
      c(compute_bytes(workload.dtype)),
      s(storage_bytes(workload.dtype)),
      w(std::max<int64_t>(4, compute_bytes(workload.dtype))),
      v_stays_in_place(workload.batch == 1 || workload.config.n_kv_heads() == 1),
      scratch(attention_scratch(workload)),
      autocast(uses_autocast(workload.dtype)),
      narrow(s < w),
      qkv(workload.variant.has(Switch::qkv)),
      gate_up(workload.variant.has(Switch::gate_up)),
      fused_swiglu(workload.variant.has(Switch::fused_swiglu)),
      tiled_attention(!has_score_matrix(workload.variant)),
      fused_norm(workload.variant.has(Switch::fused_norm)),
      fused_rotary(workload.variant.has(Switch::fused_rotary)),
      fused_loss(workload.variant.has(Switch::fused_loss)),
      checkpoint(workload.variant.has(Switch::checkpoint)),
      wide(workload.variant.has(Switch::wide_products)),
      onednn(workload.variant.has(Switch::onednn)),
      own_product(!Gemm(workload.variant).is_default()) {}

// --- linear layers ---

MemoryReplay::Source MemoryReplay::resolved(Source source, bool own) const {
  if (!autocast) return Source::product_type;
  // Autocast's cache serves libtorch's own products only.
  if (own && source != Source::product_type) return Source::own_cast;
  return source;
}

// The default product of operands in their own type takes nothing but its result, which the caller
// keeps.
void MemoryReplay::product(int64_t a, int64_t b, int64_t result, FirstOperand first) {
  const int64_t operands = wide ? (a + b) * w : 0;
  // libtorch gives oneDNN a contiguous first operand, of which it makes a copy where it is not.
  const int64_t copy = onednn && first == FirstOperand::transposed ? a * w : 0;
  if (wide) touch(operands + result * (w + c));
  touch(operands + copy + result * (wide ? w : c));
}

void MemoryReplay::linear_forward(int64_t in, int64_t out, Source source, bool merged) {
  source = resolved(source, merged || own_product);
  if (autocast) keep(in * out * c);
  if (source == Source::own_cast || source == Source::first_of_shared_cast) keep(T * in * c);
  product(T * in, in * out, T * out, FirstOperand::contiguous);
  keep(T * out * c);
}

void MemoryReplay::linear_backward(int64_t in, int64_t out, Source source, bool merged) {
  source = resolved(source, merged || own_product);
  product(T * out, in * out, T * in, FirstOperand::contiguous);
  keep(T * in * c);
  product(T * out, T * in, in * out, FirstOperand::transposed);
  keep(in * out * c);
  if (autocast) {
    keep(in * out * s);  // the gradient cast back to the parameter's type
    drop(2 * in * out * c);
    if (source == Source::own_cast) {
      drop(T * in * c);  // the saved cast
      keep(T * in * s);
      drop(T * in * c);
    }
  }
  parameter_gradients += in * out * s;
  drop(T * out * c);
}

void MemoryReplay::join_input_gradients(Input input) {
  drop(T * D * (autocast && !shares_casts(input) ? s : c));
}

void MemoryReplay::leave_input_cast(Input input) {
  if (!shares_casts(input)) return;
  drop(T * D * c);
  keep(T * D * s);
  drop(T * D * c);
}

// --- norm: saves x in float32 if it is narrower, the factors and the normalised rows; returns rows
// of s bytes. The fused one saves x as it is and the factors.

void MemoryReplay::norm_forward() {
  if (fused_norm) {
    keep(T * w);
    keep(T * D * s);
    return;
  }
  if (narrow) keep(T * D * w);
  keep(T * w);
  touch(T * D * w);  // x^2
  keep(T * D * w);   // normalised
  if (narrow) keep(T * D * s);
  keep(T * D * s);
  if (narrow) drop(T * D * w);
}

void MemoryReplay::norm_backward() {
  if (fused_norm) {
    keep(T * D * s);
    keep(D * s);
    parameter_gradients += D * s;
    drop(T * D * s);  // incoming gradient
    drop(T * w);
    return;
  }
  touch(T * D * s);  // gradient x normalised, before its sum over rows
  keep(D * s);
  parameter_gradients += D * s;
  keep(T * D * s);
  drop(T * D * s);  // incoming gradient
  drop(T * D * s);  // normalised
  if (narrow) {
    keep(T * D * w);
    drop(T * D * s);
  }
  keep(T * D * w);   // through the product with the factors
  touch(T * D * w);  // gradient x input, before its sum
  drop(T * D * w);
  drop(T * w);
  touch(3 * T * D * w);  // through the mean square
  if (narrow) {
    drop(T * D * w);  // float32 copy of the input
    keep(T * D * s);
    drop(T * D * w);
  }
}

// --- feed-forward: saves gate, up, silu(gate) and their product; without silu(gate) where fused
// ---

void MemoryReplay::feed_forward_forward(Input input) {
  if (gate_up) {
    linear_forward(D, 2 * F, Source::own_cast, true);
  } else {
    const bool shared = shares_casts(input);
    linear_forward(D, F, shared ? Source::first_of_shared_cast : Source::own_cast);
    linear_forward(D, F, shared ? Source::shared_cast : Source::own_cast);
  }
  keep((fused_swiglu ? 1 : 2) * T * F * c);
  linear_forward(F, D, Source::product_type);
}

void MemoryReplay::feed_forward_backward(Input input) {
  linear_backward(F, D, Source::product_type);
  drop(T * F * c);  // product
  if (fused_swiglu) {
    keep(2 * T * F * c);  // gradients of gate and up
    drop(3 * T * F * c);  // gradient of the product, gate, up
  } else {
    keep(2 * T * F * c);                  // gradients of silu(gate) and up
    drop((gate_up ? 2 : 3) * T * F * c);  // gradient of the product, silu(gate), up
    keep(T * F * c);
    drop((gate_up ? 3 : 2) * T * F * c);  // gradient of silu(gate), gate
  }
  if (gate_up) {
    if (!fused_swiglu) touch(2 * T * F * c);  // the two gradients become one
    linear_backward(D, 2 * F, Source::own_cast, true);
    return;
  }
  const Source source = shares_casts(input) ? Source::shared_cast : Source::own_cast;
  linear_backward(D, F, source);
  linear_backward(D, F, source);
  join_input_gradients(input);
  leave_input_cast(input);
}

// --- block ---

void MemoryReplay::run_block_forward() {
  norm_forward();
  attention_forward(Input::other_layer);
  if (autocast) drop(T * D * s);  // the norm's output: only its casts are saved
  keep(T * D * s);                // sum of stream and branch
  drop(T * D * c);                // the branch
  norm_forward();
  feed_forward_forward(Input::other_layer);
  if (autocast) drop(T * D * s);
  keep(T * D * s);
  drop(T * D * c);
  if (!norm_saves_stream()) drop(T * D * s);  // the first sum
}

void MemoryReplay::run_block_backward() {
  branch_gradient();
  feed_forward_backward(Input::other_layer);
  if (!autocast) drop(T * D * s);  // the norm's output
  norm_backward();
  drop(T * D * s);                           // two gradients of the stream become one
  if (norm_saves_stream()) drop(T * D * s);  // the first sum
  branch_gradient();
  attention_backward(Input::other_layer);
  if (!autocast) drop(T * D * s);
  norm_backward();
  drop(T * D * s);
}

void MemoryReplay::block_forward() {
  const int64_t before = live;
  run_block_forward();
  if (checkpoint) drop(live - before - T * D * s);  // all but the output
}

void MemoryReplay::block_backward() {
  if (checkpoint) {
    run_block_forward();
    drop(T * D * s);  // the output, once more
  }
  run_block_backward();
}

// --- loss ---

void MemoryReplay::head_forward() {
  linear_forward(D, V, Source::own_cast);
}

// Consumes the logits, saves the log-probabilities; the loss and the number of targets are scalars.
void MemoryReplay::cross_entropy_forward() {
  if (c < w) keep(T * V * w);
  keep(T * V * w);
  keep(2 * w);
  if (c < w) drop(T * V * w);
  drop(T * V * c);
}

void MemoryReplay::cross_entropy_backward() {
  keep(2 * T * V * w);  // gradients of the log-probabilities and of the logits
  drop(2 * T * V * w);
  if (c < w) {
    keep(T * V * c);
    drop(T * V * w);
  }
}

void MemoryReplay::head_backward() {
  linear_backward(D, V, Source::own_cast);
}

// Saves both gradients, the weight's in float32; the logits of one chunk live for a moment.
void MemoryReplay::fused_loss_forward() {
  const int64_t chunk = fused_loss_chunk(T, V);
  keep(T * D * c + V * D * w);
  const int64_t before = live;
  if (autocast) keep((T * D + V * D) * c);
  product(chunk * D, V * D, chunk * V, FirstOperand::contiguous);
  keep(chunk * V * c);
  product(chunk * V, V * D, chunk * D, FirstOperand::contiguous);
  touch(chunk * D * c);
  // The weight's gradient is added to a sum: by a product of its own, or by one that adds.
  const int64_t widened = wide ? (chunk * V + chunk * D) * w : 0;
  if (onednn) {
    touch(widened + (chunk * V + V * D) * w);
  } else {
    touch(widened + (c < w && !wide ? V * D * c : 0));
  }
  drop(live - before);
  keep(2 * w);
}

void MemoryReplay::fused_loss_backward() {
  keep(T * D * c);
  if (s != c) {
    keep(T * D * s);
    drop(T * D * c);
  }
  keep(V * D * w);
  if (s != w) {
    keep(V * D * s);
    drop(V * D * w);
  }
  parameter_gradients += V * D * s;
  drop(T * D * c + V * D * w);
}

}  // namespace tinyllama
