#include "model/memory_cost.hpp"

#include <algorithm>

namespace tinyllama {
namespace {

constexpr int64_t kTokenBytes = 8;

// Replays the baseline's allocations in the order in which forward and backward make them. Each
// member function leaves alive what the operation saves or returns and drops what it consumed;
// `peak` is the highest water mark.
//
// c: bytes of a value in products; s: of parameters and the residual stream; w: of float32 parts
// (norms, softmax, loss).
class Replay {
 public:
  explicit Replay(const Workload& workload)
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
        autocast(uses_autocast(workload.dtype)) {}

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

  // Saves x in float32 if it is narrower, the factors and the normalised rows; returns rows of s
  // bytes.
  void norm_forward() {
    const bool narrow = s < w;
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
    const bool narrow = s < w;
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
  void attention_forward() {
    linear_forward(D, D, false);
    rotate(D);
    linear_forward(D, Kd, false);
    rotate(Kd);
    linear_forward(D, Kd, false);
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
  void attention_backward() {
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
    linear_backward(D, Kd, false);
    linear_backward(D, Kd, false);
    drop(T * D * (autocast ? s : c));  // gradients of the shared input are added up
    linear_backward(D, D, false);
    drop(T * D * (autocast ? s : c));
  }

  // Saves gate, up, silu(gate) and their product.
  void feed_forward_forward() {
    linear_forward(D, F, false);
    linear_forward(D, F, false);
    keep(2 * T * F * c);
    linear_forward(F, D, true);
  }
  void feed_forward_backward() {
    linear_backward(F, D, true);
    drop(T * F * c);      // product
    keep(2 * T * F * c);  // gradients of silu(gate) and up
    drop(3 * T * F * c);  // gradient of the product, silu(gate), up
    keep(T * F * c);
    drop(2 * T * F * c);  // gradient of silu(gate), gate
    linear_backward(D, F, false);
    linear_backward(D, F, false);
    drop(T * D * (autocast ? s : c));
  }

  // x + f(norm(x)): the sum is kept, what f returned is not.
  void residual_forward() {
    keep(T * D * s);
    drop(T * D * c);
  }
  // Where the branch is narrower than the stream (autocast), its gradient is a cast copy.
  void branch_gradient() { keep(T * D * c); }
  void join_gradients() { drop(T * D * s); }

  void block_forward() {
    norm_forward();
    attention_forward();
    if (autocast) drop(T * D * s);  // the norm's output: only its casts are saved
    residual_forward();
    norm_forward();
    feed_forward_forward();
    if (autocast) drop(T * D * s);
    residual_forward();
  }
  void block_backward() {
    branch_gradient();
    feed_forward_backward();
    if (!autocast) drop(T * D * s);  // the norm's output
    norm_backward();
    join_gradients();
    drop(T * D * s);  // the attended stream
    branch_gradient();
    attention_backward();
    if (!autocast) drop(T * D * s);
    norm_backward();
    join_gradients();
  }

  void head_forward() { linear_forward(D, V, false); }
  // Consumes the logits, saves the log-probabilities.
  void cross_entropy_forward() {
    if (c < w) keep(T * V * w);
    keep(T * V * w);
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
};

int64_t rotary_table_bytes(const Workload& workload) {
  return 2 * workload.seq * workload.config.head_dim() * compute_bytes(workload.dtype);
}

int64_t mask_bytes(const Workload& workload) {
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
  Replay replay(workload);
  forward(replay);
  memory.activations = replay.live;
  if (has_backward(pass)) {
    memory.inputs += output_bytes;  // the gradient that backward starts from
    backward(replay);
    memory.gradients = memory.weights;
  }
  memory.temporary = std::max<int64_t>(0, replay.peak - memory.activations - memory.gradients);
  return memory;
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
      [&](Replay& r) { r.keep(bytes); },
      [&](Replay& r) { r.keep(table * storage_bytes(workload.dtype)); });
}

MemoryCost rms_norm_memory(const Workload& workload, Pass pass) {
  const int64_t bytes = hidden_bytes(workload);
  return component(
      workload, pass, workload.config.hidden_dim(), 0, bytes, bytes,
      [](Replay& r) { r.norm_forward(); },
      [&](Replay& r) {
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
      [&](Replay& r) {
        r.keep(r.T * (r.D + r.Kd) * r.c);
        r.touch(3 * r.T * r.D * r.c);
      },
      [&](Replay& r) {
        r.keep(bytes);
        r.touch(3 * r.T * r.D * r.c);
      });
}

MemoryCost attention_memory(const Workload& workload, Pass pass) {
  const int64_t bytes = hidden_bytes(workload);
  return component(
      workload, pass, attention_cost(workload, pass).parameters,
      rotary_table_bytes(workload) + mask_bytes(workload), bytes,
      workload.tokens() * workload.config.hidden_dim() * compute_bytes(workload.dtype),
      [](Replay& r) { r.attention_forward(); },
      [](Replay& r) {
        r.branch_gradient();
        r.attention_backward();
      });
}

MemoryCost feed_forward_memory(const Workload& workload, Pass pass) {
  const int64_t bytes = hidden_bytes(workload);
  return component(
      workload, pass, feed_forward_cost(workload, pass).parameters, 0, bytes,
      workload.tokens() * workload.config.hidden_dim() * compute_bytes(workload.dtype),
      [](Replay& r) { r.feed_forward_forward(); },
      [](Replay& r) {
        r.branch_gradient();
        r.feed_forward_backward();
      });
}

MemoryCost block_memory(const Workload& workload, Pass pass) {
  const int64_t bytes = hidden_bytes(workload);
  return component(
      workload, pass, block_cost(workload, pass).parameters,
      rotary_table_bytes(workload) + mask_bytes(workload), bytes, bytes,
      [](Replay& r) { r.block_forward(); },
      [&](Replay& r) {
        r.keep(bytes);
        r.block_backward();
      });
}

MemoryCost loss_memory(const Workload& workload, Pass pass) {
  return component(
      workload, pass, loss_cost(workload, pass).parameters, workload.tokens() * kTokenBytes,
      hidden_bytes(workload), 0,
      [](Replay& r) {
        r.head_forward();
        r.cross_entropy_forward();
      },
      [](Replay& r) {
        r.cross_entropy_backward();
        r.head_backward();
      });
}

MemoryCost model_memory(const Workload& workload, Pass pass) {
  const int64_t layers = workload.config.n_layers();
  const int64_t stream = hidden_bytes(workload);
  const auto forward = [&](Replay& r) {
    r.keep(stream);  // embedded tokens
    for (int64_t layer = 0; layer < layers; ++layer) r.block_forward();
    r.norm_forward();
    r.head_forward();
    if (r.autocast) r.drop(stream);
    if (pass != Pass::forward) r.cross_entropy_forward();
  };
  const auto backward = [&](Replay& r) {
    r.cross_entropy_backward();
    r.head_backward();
    if (!r.autocast) r.drop(stream);  // the final norm's output
    r.norm_backward();
    for (int64_t layer = 0; layer < layers; ++layer) {
      r.drop(stream);  // the block's output
      r.block_backward();
    }
    r.keep(workload.config.vocab_size() * stream / workload.tokens());
  };
  return component(workload, pass, count_parameters(workload.config),
                   rotary_table_bytes(workload) + mask_bytes(workload),
                   2 * workload.tokens() * kTokenBytes, 0, forward, backward);
}

MemoryCost optimizer_memory(const Workload& workload) {
  const int64_t element = storage_bytes(workload.dtype);
  MemoryCost memory;
  memory.weights = count_parameters(workload.config) * element;
  memory.gradients = memory.weights;
  memory.optimizer_state = 2 * memory.weights;
  memory.temporary = largest_parameter(workload.config) * element;  // the update's denominator
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
