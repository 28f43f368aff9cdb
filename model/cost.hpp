// Exact parameters, FLOPs and bytes of every component: pure functions that allocate nothing.
//
// Conventions (docs/counters.md): a multiply-add is 2 FLOPs; projections at
// their true grouped-query width; scores in full (S^2); backward = 2 x forward; the LM
// head over all S positions, the loss over S - 1.
#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>
#include <string_view>

#include "model/config.hpp"
#include "model/dtype.hpp"
#include "model/variant.hpp"

namespace tinyllama {

enum class Pass { forward, backward, forward_backward, forward_loss, update, train };
std::string_view to_string(Pass pass);
/// Throws std::invalid_argument naming the text and the allowed names.
Pass parse_pass(std::string_view text);
/// Whether the pass leaves gradients behind.
bool has_backward(Pass pass);

/// What a component computes on: B samples of S tokens, on this type of device.
struct Workload {
  ModelConfig config;
  Variant variant;
  Dtype dtype = Dtype::f32;
  int64_t batch = 1;
  int64_t seq = 1;
  c10::DeviceType device = c10::DeviceType::CPU;

  int64_t tokens() const { return batch * seq; }
  auto operator<=>(const Workload&) const = default;
};

/// Bytes of a token, an int64.
inline constexpr int64_t kTokenBytes = 8;
/// Bytes of one value that float32 statistics (norm factors, log-sum-exp) take, whatever the dtype.
inline constexpr int64_t kStatisticBytes = 4;

struct Cost {
  int64_t parameters = 0;
  int64_t model_flops = 0;     ///< matrix multiplications of the model, scores in full
  int64_t causal_flops = 0;    ///< the same with S (S + 1) / 2 scores a head
  int64_t hardware_flops = 0;  ///< those that the variant really runs
  int64_t elementwise_flops =
      0;  ///< norms, activations, softmax, rotary, residuals, optimiser; an exp or sqrt is 1
  int64_t bytes =
      0;  ///< least traffic: inputs, weights, saved tensors and outputs, each once per pass
  /// The embedding look-up as if it multiplied by one-hot rows, which the estimate of 6 FLOPs
  /// a parameter and token counts and nobody computes; in none of the figures above.
  int64_t lookup_flops = 0;
  /// What one rank's share sends or receives: all-reduces of tensor parallelism, and the hidden
  /// states between stages of a pipeline. None of it runs here.
  int64_t comm_calls = 0;
  int64_t comm_bytes = 0;  ///< of their buffers, whatever an algorithm makes of them
  /// Those of hardware_flops inside operators that no profiler looks into: attention kernels.
  int64_t opaque_flops = 0;

  /// What an intensity is of: components without matrix multiplications are described by what else
  /// they compute.
  int64_t intensity_flops() const {
    return hardware_flops > 0 ? hardware_flops : elementwise_flops;
  }

  Cost& operator+=(const Cost& other);
};
Cost operator+(Cost a, const Cost& b);
/// `n` times the work on n times the parameters.
Cost operator*(int64_t n, Cost cost);

/// What the forward half of a pass does, and what the backward half.
struct Halves {
  Cost forward;
  Cost backward;
};
/// The halves that the pass runs, on so many parameters.
Cost select_halves(Pass pass, int64_t parameters, Halves halves);
/// The cost of matrix multiplications of the model that every variant runs in full: the same model,
/// causal and hardware FLOPs.
Cost gemm_cost(int64_t flops);
/// `calls` calls that send, receive or reduce `bytes` each.
Cost comm_cost(int64_t calls, int64_t bytes);
/// Of attention or a feed-forward network divided among ranks: the sum of the ranks' outputs in the
/// forward, that of the gradients of its input in the backward, [B, S, D] each.
Cost all_reduces_of_a_layer(const Workload& workload, Pass pass);
/// `cost` with these two figures set, which it does not have yet.
Cost with_traffic(Cost cost, int64_t elementwise_flops, int64_t bytes);

/// Of one layer's attention, of its feed-forward network, and of the whole model, tied embeddings
/// counted once.
int64_t attention_parameters(const ModelConfig& config);
int64_t feed_forward_parameters(const ModelConfig& config);
int64_t count_parameters(const ModelConfig& config);

}  // namespace tinyllama
