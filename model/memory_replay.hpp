// Replays the tensors of a variant: what forward and backward allocate, save and free, in their
// order. Internal to memory_cost.cpp, which asks it for peaks.
#pragma once

#include <algorithm>
#include <cstdint>

#include "model/cost.hpp"
#include "model/kernels/kernels.hpp"

namespace tinyllama {

// Each member function leaves alive what the operation saves or returns and drops what it consumed;
// `peak` is the highest water mark.
//
// c: bytes of a value in products; s: of parameters and the residual stream; w: of float32 parts
// (norms, softmax, loss).
class MemoryReplay {
 public:
  explicit MemoryReplay(const Workload& workload);

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

  // Who the input of a layer is: autocast keeps one cast of a leaf for all products of libtorch's
  // own that read it, but casts another layer's output for each.
  enum class Input { leaf, other_layer };

  void norm_forward();
  // Consumes the incoming gradient, leaves that of the input.
  void norm_backward();
  // rotary on `width` values a token: returns the rotated values; consumes the input unless it is
  // part of a larger buffer.
  void rotate(int64_t width, bool consumes_input = true);
  void rotate_temporaries(int64_t width);

  void attention_forward(Input input);
  void attention_backward(Input input);
  void feed_forward_forward(Input input);
  void feed_forward_backward(Input input);
  // The block's input is its caller's; its output stays, unless nothing will need it.
  void block_forward();
  void block_backward();

  // LM head and loss of T tokens; the scalars stay.
  void head_forward();
  void cross_entropy_forward();
  void cross_entropy_backward();
  void head_backward();
  void fused_loss_forward();
  void fused_loss_backward();

  // Where the branch is narrower than the stream (autocast), its gradient is a cast copy.
  void branch_gradient() { keep(T * D * c); }
  // Whether a norm that read the stream keeps the stream itself, and not a wider copy.
  bool norm_saves_stream() const { return !narrow || fused_norm; }

  const int64_t T, S, D, Kd, F, V, scores, score_rows, c, s, w;
  const bool v_stays_in_place;              // its heads need no copy to be multiplied
  const kernels::AttentionScratch scratch;  // of our own attention; 0 for others
  const bool autocast;
  const bool narrow;  // the residual stream is narrower than the float32 parts
  const bool qkv, gate_up, fused_swiglu, tiled_attention, fused_norm, fused_rotary, fused_loss,
      checkpoint;
  const bool wide;         // products widen their operands
  const bool onednn;       // products in float32 through oneDNN
  const bool own_product;  // every linear layer is our own function, not at::linear

 private:
  // Where a product's operand comes from: it has the type of products, is cast by this product
  // alone, or shares the one cast of a leaf, which its first reader makes.
  enum class Source { product_type, own_cast, first_of_shared_cast, shared_cast };
  Source resolved(Source source, bool own) const;

  // y = x W^T. Under autocast the input and the weight are cast, and the casts are saved; else x
  // itself is, counted by its maker. `merged`: for several weights side by side.
  void linear_forward(int64_t in, int64_t out, Source source, bool merged = false);
  // Leaves the input's gradient alive, in the input's type unless its cast is shared.
  void linear_backward(int64_t in, int64_t out, Source source, bool merged = false);
  // The moment of a product: what it takes beside its operands of `a` and `b` elements.
  enum class FirstOperand { contiguous, transposed };
  void product(int64_t a, int64_t b, int64_t result, FirstOperand first);

  // Two products' gradients of the input they share become one.
  void join_input_gradients(Input input);
  // The one cast of a leaf goes, and its gradient becomes that of the leaf.
  void leave_input_cast(Input input);
  bool shares_casts(Input input) const { return autocast && !own_product && input == Input::leaf; }

  void project_and_rotate(Input input);
  void unproject(Input input);
  void materialized_forward();
  void materialized_backward();
  void tiled_forward();
  void tiled_backward();

  void run_block_forward();
  void run_block_backward();
};

}  // namespace tinyllama
