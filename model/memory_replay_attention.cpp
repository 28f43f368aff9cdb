#include "model/memory_replay.hpp"

namespace tinyllama {

void MemoryReplay::rotate_temporaries(int64_t width) {
  // Negated half and concatenation, then times sin; x cos, which the sum replaces.
  if (!fused_rotary) touch(3 * T * width * c);
}

void MemoryReplay::rotate(int64_t width, bool consumes_input) {
  keep(T * width * c);
  rotate_temporaries(width);
  if (!fused_rotary) touch(T * width * c);
  if (consumes_input) drop(T * width * c);
}

void MemoryReplay::project_and_rotate(Input input) {
  if (qkv) {
    linear_forward(D, D + 2 * Kd, Source::own_cast, true);
  } else {
    const bool shared = shares_casts(input);
    linear_forward(D, D, shared ? Source::first_of_shared_cast : Source::own_cast);
    linear_forward(D, Kd, shared ? Source::shared_cast : Source::own_cast);
    linear_forward(D, Kd, shared ? Source::shared_cast : Source::own_cast);
  }
  rotate(D, !qkv);
  rotate(Kd, !qkv);
}

void MemoryReplay::unproject(Input input) {
  touch(3 * T * D * c);  // rotary backward
  if (qkv) {
    keep(T * (D + 2 * Kd) * c);  // the three gradients become one
    drop(T * (D + 2 * Kd) * c);
    linear_backward(D, D + 2 * Kd, Source::own_cast, true);
    return;
  }
  const Source source = shares_casts(input) ? Source::shared_cast : Source::own_cast;
  linear_backward(D, Kd, source);
  linear_backward(D, Kd, source);
  join_input_gradients(input);
  linear_backward(D, D, source);
  join_input_gradients(input);
  leave_input_cast(input);
}

// Saves q, k, v as the products read them, the probabilities (twice where softmax is wider) and the
// context.
void MemoryReplay::materialized_forward() {
  touch(T * D * c);  // layout copies of q, k, v replace the originals one by one
  // Where v needs no copy, it holds the buffer that it is part of.
  if (qkv && !v_stays_in_place) drop(T * (D + Kd) * c);
  keep(scores * c);
  if (c < w) keep(scores * w);
  keep(scores * w);
  if (c < w) {
    drop(scores * w);  // widened scores
    keep(scores * c);  // probabilities for the product with v
  }
  drop(scores * c);  // raw scores
  keep(T * D * c);
  touch(T * D * c);  // context, before its heads are joined
}

void MemoryReplay::materialized_backward() {
  keep(scores * c);
  keep(T * Kd * c);
  drop(T * D * c);                                                  // gradient of the context
  drop((qkv && v_stays_in_place ? T * (D + 2 * Kd) : T * Kd) * c);  // v
  if (c < w) {
    drop(scores * c);  // probabilities
    keep(scores * w);
    drop(scores * c);
  }
  keep(scores * w);
  drop(scores * w);  // gradient of the probabilities
  drop(scores * w);  // probabilities
  if (c < w) {
    keep(scores * c);
    drop(scores * w);
  }
  keep(T * (D + Kd) * c);
  drop(scores * c);
  drop(T * (D + Kd) * c);  // q, k
}

// Saves q, k, v, the context and one log-sum-exp a score row; v holds the buffer that it is part
// of.
void MemoryReplay::tiled_forward() {
  keep(T * D * c);
  keep(score_rows * w);
  touch(scratch.forward_bytes);
}

void MemoryReplay::tiled_backward() {
  keep(T * (D + 2 * Kd) * c);  // gradients of q, k, v
  touch(scratch.backward_bytes);
  drop(T * D * c);  // gradient of the context
  drop(score_rows * w);
  drop(T * (D + Kd) * c);                       // q, k
  drop((qkv ? T * (D + 2 * Kd) : T * Kd) * c);  // v
}

void MemoryReplay::attention_forward(Input input) {
  project_and_rotate(input);
  tiled_attention ? tiled_forward() : materialized_forward();
  linear_forward(D, D, Source::product_type);
}

void MemoryReplay::attention_backward(Input input) {
  linear_backward(D, D, Source::product_type);
  if (!tiled_attention) {
    drop(T * D * c);   // joined context
    touch(T * D * c);  // its gradient, split into heads
    materialized_backward();
  } else {
    tiled_backward();
    drop(T * D * c);  // context
  }
  unproject(input);
}

}  // namespace tinyllama
