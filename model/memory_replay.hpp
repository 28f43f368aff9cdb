// Replays the tensors of the baseline: what forward and backward allocate, save and free, in their
// order.
//
// Kept beside memory_cost.cpp, which asks it for peaks; a variant that saves other tensors changes
// this replay.
#pragma once

#include <algorithm>
#include <cstdint>

#include "model/cost.hpp"

namespace tinyllama {

// Replays the baseline's allocations in the order in which forward and backward make them. Each
// member function leaves alive what the operation saves or returns and drops what it consumed;
// `peak` is the highest water mark.
//
// c: bytes of a value in products; s: of parameters and the residual stream; w: of float32 parts
// (norms, softmax, loss).
class MemoryReplay {
 public:
  explicit MemoryReplay(const Workload& workload)
      : T(workload.tokens()),
        S(workload.seq),
        D(workload.config.hidden_dim()),
        Kd(workload.config.kv_dim()),
        F(workload.config.intermediate_dim()),
        V(workload.config.vocab_size()),
        scores(workload.batch * workload.config.n_heads() * workload.seq * workload.seq),
        c(compute_bytes(workload.dtype)),
        s(storage_bytes(workload.dtype)),
        w(std::max<int64_t>(4, compute_bytes(workload.dtype))),
        autocast(uses_autocast(workload.dtype)),
        narrow(s < w) {}

  int64_t live = 0;
  int64_t peak = 0;
  int64_t parameter_gradients = 0;

  void keep(int64_t bytes) {
    live += bytes;
    peak = std::max(peak, live);
  }
  void drop(int64_t bytes) { live -= bytes; }
  void touch(int64_t bytes) {
    keep(bytes);
    drop(bytes);
  }

  // Who the input of a layer is: autocast keeps one cast of a leaf for all products that read it,
  // but casts another layer's output for each.
  enum class Input { leaf, other_layer };

  // y = x W^T. Under autocast the input and the weight are cast, and the casts are saved; else x
  // itself is, counted by its maker.
  void linear_forward(int64_t in, int64_t out, bool input_is_cast) {
    if (autocast) keep(in * out * c);
    if (autocast && !input_is_cast) keep(T * in * c);
    keep(T * out * c);
  }
  // Leaves the input's gradient alive, in the input's type.
  void linear_backward(int64_t in, int64_t out, bool input_is_cast) {
    keep(T * in * c);
    keep(in * out * c);
    if (autocast) {
      keep(in * out * s);  // the gradient cast back to the parameter's type
      drop(2 * in * out * c);
      if (!input_is_cast) {
        drop(T * in * c);  // the saved cast
        keep(T * in * s);
        drop(T * in * c);
      }
    }
    parameter_gradients += in * out * s;
    drop(T * out * c);
  }

  // Two products' gradients of the input they share become one.
  void join_input_gradients(Input input) {
    drop(T * D * (autocast && input == Input::other_layer ? s : c));
  }
  // The one cast of a leaf goes, and its gradient becomes that of the leaf.
  void leave_input_cast(Input input) {
    if (!autocast || input == Input::other_layer) return;
    drop(T * D * c);
    keep(T * D * s);
    drop(T * D * c);
  }

  // Saves x in float32 if it is narrower, the factors and the normalised rows; returns rows of s
  // bytes.
  void norm_forward() {
    if (narrow) keep(T * D * w);
    keep(T * w);
    touch(T * D * w);  // x^2
    keep(T * D * w);   // normalised
    if (narrow) keep(T * D * s);
    keep(T * D * s);
    if (narrow) drop(T * D * w);
  }
  // Consumes the incoming gradient, leaves that of the input.
  void norm_backward() {
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

  // rotary on `width` values a token: consumes the input, returns the rotated values.
  void rotate(int64_t width) {
    keep(T * width * c);       // x cos
    touch(3 * T * width * c);  // negated half and concatenation, then times sin
    keep(T * width * c);       // sum
    drop(T * width * c);       // x cos
    drop(T * width * c);       // x
  }

  // Saves q, k, v as the products read them, the probabilities (twice where softmax is wider) and
  // the context.
  void attention_forward(Input input) {
    const bool input_is_cast = input == Input::leaf;
    linear_forward(D, D, false);
    rotate(D);
    linear_forward(D, Kd, input_is_cast);
    rotate(Kd);
    linear_forward(D, Kd, input_is_cast);
    touch(T * D * c);  // layout copies of q, k, v replace the originals one by one
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
    linear_forward(D, D, true);
  }
  void attention_backward(Input input) {
    linear_backward(D, D, true);
    drop(T * D * c);   // joined context
    touch(T * D * c);  // its gradient, split into heads
    keep(scores * c);
    keep(T * Kd * c);
    drop(T * D * c);   // gradient of the context
    drop(T * Kd * c);  // v
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
    touch(3 * T * D * c);    // rotary backward
    const bool input_is_cast = input == Input::leaf;
    linear_backward(D, Kd, input_is_cast);
    linear_backward(D, Kd, input_is_cast);
    join_input_gradients(input);
    linear_backward(D, D, input_is_cast);
    join_input_gradients(input);
    leave_input_cast(input);
  }

  // Saves gate, up, silu(gate) and their product.
  void feed_forward_forward(Input input) {
    linear_forward(D, F, false);
    linear_forward(D, F, input == Input::leaf);
    keep(2 * T * F * c);
    linear_forward(F, D, true);
  }
  void feed_forward_backward(Input input) {
    linear_backward(F, D, true);
    drop(T * F * c);      // product
    keep(2 * T * F * c);  // gradients of silu(gate) and up
    drop(3 * T * F * c);  // gradient of the product, silu(gate), up
    keep(T * F * c);
    drop(2 * T * F * c);  // gradient of silu(gate), gate
    linear_backward(D, F, input == Input::leaf);
    linear_backward(D, F, input == Input::leaf);
    join_input_gradients(input);
    leave_input_cast(input);
  }

  // x + f(norm(x)): the sum is kept, what f returned is not.
  void residual_forward() {
    keep(T * D * s);
    drop(T * D * c);
  }
  // The norm that reads the stream saves it, unless it saves a wider copy.
  void leave_stream() {
    if (narrow) drop(T * D * s);
  }
  void leave_saved_stream() {
    if (!narrow) drop(T * D * s);
  }
  // Where the branch is narrower than the stream (autocast), its gradient is a cast copy.
  void branch_gradient() { keep(T * D * c); }
  void join_gradients() { drop(T * D * s); }

  // The block's input is its caller's.
  void block_forward() {
    norm_forward();
    attention_forward(Input::other_layer);
    if (autocast) drop(T * D * s);  // the norm's output: only its casts are saved
    residual_forward();
    norm_forward();
    feed_forward_forward(Input::other_layer);
    if (autocast) drop(T * D * s);
    residual_forward();
    leave_stream();
  }
  void block_backward() {
    branch_gradient();
    feed_forward_backward(Input::other_layer);
    if (!autocast) drop(T * D * s);  // the norm's output
    norm_backward();
    join_gradients();
    leave_saved_stream();
    branch_gradient();
    attention_backward(Input::other_layer);
    if (!autocast) drop(T * D * s);
    norm_backward();
    join_gradients();
  }

  void head_forward() { linear_forward(D, V, false); }
  // Consumes the logits, saves the log-probabilities; the loss and the number of targets are
  // scalars.
  void cross_entropy_forward() {
    if (c < w) keep(T * V * w);
    keep(T * V * w);
    keep(2 * w);
    if (c < w) drop(T * V * w);
    drop(T * V * c);
  }
  void cross_entropy_backward() {
    keep(2 * T * V * w);  // gradients of the log-probabilities and of the logits
    drop(2 * T * V * w);
    if (c < w) {
      keep(T * V * c);
      drop(T * V * w);
    }
  }
  void head_backward() { linear_backward(D, V, false); }

  const int64_t T, S, D, Kd, F, V, scores, c, s, w;
  const bool autocast;
  const bool narrow;  // the residual stream is narrower than the float32 parts
};

}  // namespace tinyllama
