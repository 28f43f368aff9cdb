#include "model/cost.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <vector>

#include "model/kernels/attention.hpp"

namespace tinyllama {
namespace {

constexpr std::array<std::string_view, 6> kPassNames = {
    "forward", "backward", "forward_backward", "forward_loss", "update", "train"};

// Bytes of one value that float32 statistics (norm factors, log-sum-exp) take, whatever the dtype.
constexpr int64_t kStatisticBytes = 4;

// How often a pass runs the forward and the backward half.
bool runs_forward(Pass pass) {
  return pass != Pass::backward && pass != Pass::update;
}

struct Halves {
  Cost forward;
  Cost backward;
};

Cost select(Pass pass, int64_t parameters, Halves halves) {
  Cost cost;
  if (runs_forward(pass)) cost += halves.forward;
  if (has_backward(pass)) cost += halves.backward;
  cost.parameters = parameters;
  return cost;
}

// Products of the model that every variant runs as they are.
Cost products(int64_t flops) {
  return {.model_flops = flops, .causal_flops = flops, .hardware_flops = flops};
}

// The two products of attention, q k^T and probabilities x v.
Cost score_products(const Workload& workload) {
  const ModelConfig& config = workload.config;
  const int64_t S = workload.seq;
  const int64_t pair_flops = 4 * workload.batch * config.n_heads() * config.head_dim();
  Cost cost;
  cost.model_flops = pair_flops * S * S;
  // S (S + 1) / 2 of S^2 scores are not masked.
  cost.causal_flops = pair_flops * (S * (S + 1) / 2);
  if (workload.variant.has(Switch::fused_attention)) {
    cost.hardware_flops = pair_flops * kernels::causal_attention_scores(S);
    cost.opaque_flops = cost.hardware_flops;
  } else if (workload.variant.has(Switch::sdpa)) {
    // What a causal kernel computes at least; how much more a library's tiles cover is its own.
    cost.hardware_flops = cost.causal_flops;
    cost.opaque_flops = cost.hardware_flops;
  } else {
    cost.hardware_flops = cost.model_flops;
  }
  return cost;
}

// The four products of its backward; kernels that did not keep the scores compute them once more.
Cost score_products_backward(const Workload& workload) {
  const Cost forward = score_products(workload);
  Cost cost = 2 * forward;
  if (forward.opaque_flops > 0) {
    cost.hardware_flops += forward.hardware_flops / 2;
    cost.opaque_flops = cost.hardware_flops;
  }
  return cost;
}

Cost with(Cost cost, int64_t elementwise_flops, int64_t bytes) {
  cost.elementwise_flops = elementwise_flops;
  cost.bytes = bytes;
  return cost;
}

// The products of `again`, run but not asked for.
Cost recomputed(const Cost& again) {
  return {.hardware_flops = again.hardware_flops, .opaque_flops = again.opaque_flops};
}

}  // namespace

std::string_view to_string(Pass pass) {
  return kPassNames[static_cast<size_t>(pass)];
}

Pass parse_pass(std::string_view text) {
  const auto found = std::find(kPassNames.begin(), kPassNames.end(), text);
  if (found == kPassNames.end()) {
    throw std::invalid_argument(
        fmt::format("pass '{}': must be one of {}", text, fmt::join(kPassNames, ", ")));
  }
  return static_cast<Pass>(found - kPassNames.begin());
}

bool has_backward(Pass pass) {
  return pass == Pass::backward || pass == Pass::forward_backward || pass == Pass::train;
}

Cost& Cost::operator+=(const Cost& other) {
  parameters += other.parameters;
  model_flops += other.model_flops;
  causal_flops += other.causal_flops;
  hardware_flops += other.hardware_flops;
  opaque_flops += other.opaque_flops;
  elementwise_flops += other.elementwise_flops;
  bytes += other.bytes;
  lookup_flops += other.lookup_flops;
  return *this;
}

Cost operator+(Cost a, const Cost& b) {
  return a += b;
}

Cost operator*(int64_t n, Cost cost) {
  return {n * cost.parameters,     n * cost.model_flops,       n * cost.causal_flops,
          n * cost.hardware_flops, n * cost.elementwise_flops, n * cost.bytes,
          n * cost.lookup_flops,   n * cost.opaque_flops};
}

Cost embedding_cost(const Workload& workload, Pass pass) {
  const int64_t D = workload.config.hidden_dim();
  const int64_t V = workload.config.vocab_size();
  const int64_t T = workload.tokens();
  const int64_t e = storage_bytes(workload.dtype);
  // A look-up reads at most one row a token; the gradient is the whole table.
  const int64_t rows_bytes = std::min(V, T) * D * e;
  const Cost forward{.lookup_flops = 2 * T * V * D};
  const Cost backward{.lookup_flops = 4 * T * V * D};
  return select(pass, V * D,
                {with(forward, 0, T * kTokenBytes + rows_bytes + T * D * e),
                 with(backward, T * D, T * kTokenBytes + T * D * e + V * D * e)});
}

Cost rms_norm_cost(const Workload& workload, Pass pass) {
  const int64_t D = workload.config.hidden_dim();
  const int64_t T = workload.tokens();
  const int64_t e = storage_bytes(workload.dtype);
  // Forward per element: square, add, two products; per row: division, eps, root. Backward per
  // element: two for the weight's gradient, one for its product, two for the row's dot product,
  // three to combine; per row: two.
  return select(pass, D,
                {with({}, 4 * T * D + 3 * T, 2 * T * D * e + D * e + T * kStatisticBytes),
                 with({}, 8 * T * D + 2 * T, 3 * T * D * e + 2 * D * e + T * kStatisticBytes)});
}

Cost rotary_cost(const Workload& workload, Pass pass) {
  const int64_t T = workload.tokens();
  const int64_t c = compute_bytes(workload.dtype);
  const int64_t elements = T * (workload.config.hidden_dim() + workload.config.kv_dim());
  const int64_t table_bytes = 2 * workload.seq * workload.config.head_dim() * c;
  // Two products and a sum an element, in both directions: the transpose of a rotation is a
  // rotation.
  const Cost either = with({}, 3 * elements, 2 * elements * c + table_bytes);
  return select(pass, 0, {either, either});
}

Cost attention_cost(const Workload& workload, Pass pass) {
  const ModelConfig& config = workload.config;
  const int64_t D = config.hidden_dim();
  const int64_t Kd = config.kv_dim();
  const int64_t T = workload.tokens();
  const int64_t S = workload.seq;
  const int64_t e = storage_bytes(workload.dtype);
  const int64_t c = compute_bytes(workload.dtype);
  const int64_t weights = D * (2 * D + 2 * Kd);
  const int64_t scores = workload.batch * config.n_heads() * S * S;
  const Cost projections = products(2 * T * weights);
  // Saved for backward by the least of implementations: q, k, v, the context and one log-sum-exp a
  // score row.
  const int64_t saved =
      (2 * T * D + 2 * T * Kd) * c + workload.batch * config.n_heads() * S * kStatisticBytes;
  const int64_t rotary_flops = rotary_cost(workload, Pass::forward).elementwise_flops;
  // A score: mask, then maximum, difference, exp, sum, division; backward: product, sum,
  // difference, product. Scaling: 1 a q.
  return select(pass, weights,
                {with(projections + score_products(workload), rotary_flops + T * D + 6 * scores,
                      2 * T * D * e + weights * e + saved),
                 with(2 * projections + score_products_backward(workload),
                      rotary_flops + T * D + 4 * scores, 3 * T * D * e + 2 * weights * e + saved)});
}

Cost feed_forward_cost(const Workload& workload, Pass pass) {
  const int64_t D = workload.config.hidden_dim();
  const int64_t F = workload.config.intermediate_dim();
  const int64_t T = workload.tokens();
  const int64_t e = storage_bytes(workload.dtype);
  const int64_t weights = 3 * D * F;
  const Cost forward_products = products(2 * T * weights);
  const int64_t saved = 2 * T * F * compute_bytes(workload.dtype);  // gate and up
  // silu: negation, exp, sum, division; then the product. Backward: two products, and silu' from a
  // recomputed sigmoid (8).
  return select(pass, weights,
                {with(forward_products, 5 * T * F, 2 * T * D * e + weights * e + saved),
                 with(2 * forward_products, 10 * T * F, 3 * T * D * e + 2 * weights * e + saved)});
}

Cost block_cost(const Workload& workload, Pass pass) {
  const int64_t elements = workload.tokens() * workload.config.hidden_dim();
  // A residual addition reads the stream once more; its backward adds the two branches' gradients.
  const Cost residual = with({}, elements, elements * storage_bytes(workload.dtype));
  Cost cost = 2 * rms_norm_cost(workload, pass) + attention_cost(workload, pass) +
              feed_forward_cost(workload, pass) + 2 * select(pass, 0, {residual, residual});
  if (workload.variant.has(Switch::checkpoint) && has_backward(pass)) {
    cost += recomputed(attention_cost(workload, Pass::forward) +
                       feed_forward_cost(workload, Pass::forward));
  }
  return cost;
}

Cost loss_cost(const Workload& workload, Pass pass) {
  const int64_t D = workload.config.hidden_dim();
  const int64_t V = workload.config.vocab_size();
  const int64_t T = workload.tokens();
  const int64_t e = storage_bytes(workload.dtype);
  const int64_t scored = workload.batch * (workload.seq - 1) * V;
  Cost forward_products = products(2 * T * D * V);
  Cost backward_products = 2 * forward_products;
  if (workload.variant.has(Switch::fused_loss)) {
    // Gradients are computed while a chunk's logits are at hand.
    forward_products.hardware_flops *= 3;
    backward_products.hardware_flops = 0;
  }
  const int64_t inputs = T * D * e + V * D * e + T * (kTokenBytes + kStatisticBytes);
  // Maximum, difference, exp, sum, logarithm's difference; backward: exp, difference, product.
  return select(pass, V * D,
                {with(forward_products, 5 * scored, inputs + kStatisticBytes),
                 with(backward_products, 3 * scored, inputs + T * D * e + V * D * e)});
}

Cost model_cost(const Workload& workload, Pass pass) {
  const Cost body = embedding_cost(workload, pass) +
                    workload.config.n_layers() * block_cost(workload, pass) +
                    rms_norm_cost(workload, pass);
  if (pass != Pass::forward) return body + loss_cost(workload, pass);
  Workload with_logits = workload;
  with_logits.variant = workload.variant.without(Switch::fused_loss);
  Cost head = loss_cost(with_logits, pass);
  head.elementwise_flops = 0;
  const int64_t T = workload.tokens();
  const int64_t D = workload.config.hidden_dim();
  const int64_t V = workload.config.vocab_size();
  head.bytes =
      (T * D + V * D) * storage_bytes(workload.dtype) + T * V * compute_bytes(workload.dtype);
  return body + head;
}

Cost optimizer_cost(const Workload& workload) {
  Cost cost;
  cost.parameters = count_parameters(workload.config);
  // Decay 1, first moment 3, second moment 4, root, division, eps, and 3 to apply. Reads p, g, m,
  // v; writes p, m, v.
  cost.elementwise_flops = 14 * cost.parameters;
  cost.bytes = 7 * cost.parameters * storage_bytes(workload.dtype);
  return cost;
}

Cost full_step_cost(const Workload& workload) {
  Cost cost = model_cost(workload, Pass::forward_backward) + optimizer_cost(workload);
  cost.parameters = count_parameters(workload.config);
  // Of a replayed step a profiler sees kernels, but no operators.
  if (workload.variant.has(Switch::graph)) cost.opaque_flops = cost.hardware_flops;
  return cost;
}

int64_t count_parameters(const ModelConfig& config) {
  const int64_t D = config.hidden_dim();
  const int64_t block =
      2 * D + D * (2 * D + 2 * config.kv_dim()) + 3 * D * config.intermediate_dim();
  return 2 * config.vocab_size() * D + config.n_layers() * block + D;
}

}  // namespace tinyllama
