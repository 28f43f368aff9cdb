#include "model/attention.hpp"

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/triu.h>

#include <cmath>
#include <limits>

#include "model/component_range.hpp"
#include "model/dtype.hpp"
#include "model/kernels/kernels.hpp"
#include "model/meta_device.hpp"

namespace tinyllama {

Attention::Attention(const ModelConfig& config, const Variant& variant,
                     TensorInitializer& initializer)
    : config_(config),
      variant_(variant),
      qkv_(config.hidden_dim(), {config.q_dim(), config.kv_dim(), config.kv_dim()},
           variant.has(Switch::qkv), variant, initializer, config.qkv_bias()),
      o_proj_(config.q_dim(), config.hidden_dim(), variant, initializer, config.o_bias()) {
  if (!config.qk_norm()) return;
  q_norm_.emplace(config.head_dim(), config.norm_eps(), variant, initializer);
  k_norm_.emplace(config.head_dim(), config.norm_eps(), variant, initializer);
}

std::vector<at::Tensor> Attention::project(const at::Tensor& hidden_states) const {
  std::vector<at::Tensor> heads = [&] {
    const ComponentRange range("attention/qkv_proj");
    return qkv_.forward_parts(hidden_states);
  }();
  for (at::Tensor& x : heads) x = x.view({x.size(0), x.size(1), -1, config_.head_dim()});
  if (q_norm_) {
    // Under autocast a norm answers in its weight's type, float32.
    const auto type = heads[2].scalar_type();
    heads[0] = q_norm_->forward(heads[0]).to(type);
    heads[1] = k_norm_->forward(heads[1]).to(type);
  }
  return heads;
}

at::Tensor Attention::forward(const at::Tensor& hidden_states, const RotaryTable& rotary,
                              const at::Tensor& mask) const {
  auto heads = project(hidden_states);
  at::Tensor q = rotary.rotate(heads[0]);
  at::Tensor k = rotary.rotate(heads[1]);
  at::Tensor v = std::move(heads[2]);
  heads.clear();
  const at::Tensor attended = [&] {
    const ComponentRange range("attention/core");
    if (const SlotOperator* op = variant_.filling(Slot::causal_attention))
      return operator_attention(*op, std::move(q), std::move(k), std::move(v));
    if (variant_.has(Switch::fused_attention))
      return fused_attention(std::move(q), std::move(k), std::move(v),
                             config_.window(hidden_states.size(1)));
    if (variant_.has(Switch::sdpa))
      return library_attention(std::move(q), std::move(k), std::move(v), mask);
    // What an operator returned may be saved for its backward.
    const bool owns_q = variant_.filling(Slot::rotary) == nullptr;
    return materialized_attention(std::move(q), std::move(k), std::move(v), mask, owns_q);
  }();
  const ComponentRange range("attention/o_proj");
  return o_proj_.forward(attended);
}

NamedTensors Attention::parameters(const std::string& prefix) const {
  NamedTensors all = qkv_.parameters(prefix + "q_proj.", 0);
  append(all, qkv_.parameters(prefix + "k_proj.", 1));
  append(all, qkv_.parameters(prefix + "v_proj.", 2));
  append(all, o_proj_.parameters(prefix + "o_proj."));
  if (q_norm_) {
    append(all, q_norm_->parameters(prefix + "q_norm."));
    append(all, k_norm_->parameters(prefix + "k_norm."));
  }
  return all;
}

at::Tensor attention_mask(const ModelConfig& config, const Variant& variant, int64_t seq,
                          Dtype dtype, c10::Device device) {
  const int64_t window = config.window(seq);
  const bool for_library = variant.has(Switch::sdpa) && window < seq;
  if (!has_score_matrix(variant) && !for_library) return {};
  const auto options = at::TensorOptions().dtype(compute_type(dtype)).device(device);
  const at::Tensor hidden = at::full({seq, seq}, -std::numeric_limits<double>::infinity(), options);
  at::Tensor mask = hidden.triu(1);
  if (window < seq) mask.add_(hidden.tril(-window));
  return for_library ? mask : mask.repeat({config.n_groups(), 1});
}

namespace {

double score_scale(const at::Tensor& q) {
  return 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
}

}  // namespace

bool has_score_matrix(const Variant& variant) {
  return !variant.has(Switch::sdpa) && !variant.has(Switch::fused_attention) &&
         variant.filling(Slot::causal_attention) == nullptr;
}

// G = query heads a KV head; head h uses KV head h / G, so the heads of one KV head lie side by
// side and their queries can be stacked to [G x S, head_dim]: K and V are multiplied as they are,
// never copied G times.
at::Tensor materialized_attention(at::Tensor q, at::Tensor k, at::Tensor v, const at::Tensor& mask,
                                  bool owns_q) {
  const int64_t batch = q.size(0);
  const int64_t seq = q.size(1);
  const int64_t heads = q.size(2);
  const int64_t kv_heads = k.size(2);
  const int64_t head_dim = q.size(3);

  // Scaling q instead of the scores touches S / head_dim times fewer elements.
  q = owns_q ? q.mul_(score_scale(q)) : q * score_scale(q);
  q = q.transpose(1, 2).reshape({batch * kv_heads, -1, head_dim});         // [B KV, G S, hd]
  k = k.permute({0, 2, 3, 1}).reshape({batch * kv_heads, head_dim, seq});  // [B KV, hd, S]
  v = v.transpose(1, 2).reshape({batch * kv_heads, seq, head_dim});        // [B KV, S, hd]

  at::Tensor scores = at::bmm(q, k).add_(mask);  // [B KV, G S, S]
  const auto wide_type = at_least_float(scores.scalar_type());
  scores = at::softmax(scores, -1, wide_type).to(v.scalar_type());

  return at::bmm(scores, v)  // [B KV, G S, hd]
      .view({batch, heads, seq, head_dim})
      .transpose(1, 2)
      .reshape({batch, seq, heads * head_dim});
}

namespace {

// x [B, KV heads, S, hd] once for each query head: [B, heads, S, hd].
at::Tensor for_each_query_head(const at::Tensor& x, int64_t heads) {
  const int64_t groups = heads / x.size(1);
  return x.unsqueeze(2)
      .expand({x.size(0), x.size(1), groups, x.size(2), x.size(3)})
      .reshape({x.size(0), heads, x.size(2), x.size(3)});
}

}  // namespace

at::Tensor library_attention(at::Tensor q, at::Tensor k, at::Tensor v, const at::Tensor& mask) {
  const int64_t batch = q.size(0);
  const int64_t seq = q.size(1);
  const double scale = score_scale(q);
  q = q.transpose(1, 2);
  k = k.transpose(1, 2);
  v = v.transpose(1, 2);
  // The one kernel without a score matrix that libtorch has for float32 or with a mask on a GPU
  // takes no grouped heads: left to itself, libtorch multiplies out all scores there.
  const bool takes_no_groups = q.scalar_type() == c10::ScalarType::Float || mask.defined();
  if (is_on_gpu(q) && takes_no_groups && q.size(1) != k.size(1)) {
    k = for_each_query_head(k, q.size(1));
    v = for_each_query_head(v, q.size(1));
  }
  const bool grouped = q.size(1) != k.size(1);
  const auto given = mask.defined() ? std::optional(mask) : std::nullopt;
  const at::Tensor context =
      q.is_meta() ? meta_attention(q, k, v, given, scale)
                  : at::scaled_dot_product_attention(q, k, v, given, /*dropout_p=*/0.0,
                                                     /*is_causal=*/!given, scale,
                                                     /*enable_gqa=*/grouped);
  return context.transpose(1, 2).reshape({batch, seq, -1});
}

bool library_attention_is_math(c10::Device device, c10::ScalarType type) {
  const auto& context = at::globalContext();
  const bool is_wanted = !context.userEnabledFlashSDP() && !context.userEnabledMemEfficientSDP() &&
                         !context.userEnabledCuDNNSDP();
  if (is_wanted) return false;
  try {
    const auto options = at::TensorOptions().device(device).dtype(type);
    const at::Tensor x = at::empty({1, 2, 64, 64}, options).requires_grad_();
    const int64_t choice = at::_fused_sdp_choice(x, x, x, std::nullopt, /*dropout_p=*/0.0,
                                                 /*is_causal=*/true);
    return choice == static_cast<int64_t>(at::SDPBackend::math);
  } catch (const c10::Error&) {
    return false;  // a case that computes it will say what is wrong
  }
}

at::Tensor fused_attention(at::Tensor q, at::Tensor k, at::Tensor v, int64_t window) {
  const int64_t batch = q.size(0);
  const int64_t seq = q.size(1);
  return kernels::causal_attention(q, k, v, score_scale(q), window).view({batch, seq, -1});
}

at::Tensor operator_attention(const SlotOperator& op, at::Tensor q, at::Tensor k, at::Tensor v) {
  const int64_t batch = q.size(0);
  const int64_t seq = q.size(1);
  const double scale = score_scale(q);
  return op({std::move(q), std::move(k), std::move(v), scale}).front().reshape({batch, seq, -1});
}

namespace {

// The two matrix multiplications of attention, q k^T and probabilities x v.
Cost scores_cost(const Workload& workload) {
  const ModelConfig& config = workload.config;
  const int64_t S = workload.seq;
  const int64_t pair_flops = 4 * workload.batch * config.n_heads() * config.head_dim();
  Cost cost;
  const int64_t W = config.window(S);
  cost.model_flops = pair_flops * S * S;
  // S (S + 1) / 2 of S^2 scores are not masked; with a window each query behind it sees W.
  cost.causal_flops = pair_flops * (W * (W + 1) / 2 + (S - W) * W);
  if (workload.variant.has(Switch::fused_attention)) {
    cost.hardware_flops = pair_flops * kernels::causal_attention_scores(S, W);
    cost.opaque_flops = cost.hardware_flops;
  } else if (!has_score_matrix(workload.variant)) {
    // What a causal kernel computes at least; how much more its tiles cover is its own. A mask in
    // memory saves it nothing.
    cost.hardware_flops = W < S ? cost.model_flops : cost.causal_flops;
    cost.opaque_flops = cost.hardware_flops;
  } else {
    cost.hardware_flops = cost.model_flops;
  }
  return cost;
}

// The four of its backward; kernels that did not keep the scores compute them once more.
Cost scores_backward_cost(const Workload& workload) {
  const Cost forward = scores_cost(workload);
  Cost cost = 2 * forward;
  if (forward.opaque_flops > 0) {
    cost.hardware_flops += forward.hardware_flops / 2;
    cost.opaque_flops = cost.hardware_flops;
  }
  return cost;
}

}  // namespace

Cost attention_cost(const Workload& workload, Pass pass) {
  const ModelConfig& config = workload.config;
  const int64_t D = config.hidden_dim();
  const int64_t Q = config.q_dim();
  const int64_t Kd = config.kv_dim();
  const int64_t T = workload.tokens();
  const int64_t S = workload.seq;
  const int64_t e = storage_bytes(workload.dtype);
  const int64_t c = compute_bytes(workload.dtype);
  const int64_t weights = D * (2 * Q + 2 * Kd);
  const int64_t scores = workload.batch * config.n_heads() * S * S;
  const Cost projections = gemm_cost(2 * T * weights);
  // Saved for backward by the least of implementations: q, k, v, the context and one log-sum-exp a
  // score row.
  const int64_t saved =
      (2 * T * Q + 2 * T * Kd) * c + workload.batch * config.n_heads() * S * kStatisticBytes;
  const int64_t rotary_flops = rotary_cost(workload, Pass::forward).elementwise_flops;
  const int64_t biases = T * ((config.qkv_bias() ? Q + 2 * Kd : 0) + (config.o_bias() ? D : 0));
  // A score: mask, then maximum, difference, exp, sum, division; backward: product, sum,
  // difference, product. Scaling: 1 a q.
  // A bias: an addition an element, in both directions.
  Cost cost = select_halves(
      pass, 0,
      {with_traffic(projections + scores_cost(workload), rotary_flops + T * Q + 6 * scores + biases,
                    2 * T * D * e + weights * e + saved),
       with_traffic(2 * projections + scores_backward_cost(workload),
                    rotary_flops + T * Q + 4 * scores + biases,
                    3 * T * D * e + 2 * weights * e + saved)});
  if (config.qk_norm()) cost += qk_norm_cost(workload, pass);
  cost.parameters = attention_parameters(config);
  if (config.has_vocabulary_share()) cost += all_reduces_of_a_layer(workload, pass);
  // The norms' weights are every rank's, and their gradients are of its heads alone.
  if (config.has_vocabulary_share() && config.qk_norm() && has_backward(pass))
    cost += comm_cost(2, config.head_dim() * e);
  // Of K and V that several ranks have, each has the gradients of its own queries.
  if (config.kv_head_ranks() > 1 && has_backward(pass)) {
    cost += comm_cost(2, D * Kd * e);
    if (config.qkv_bias()) cost += comm_cost(2, Kd * e);
  }
  return cost;
}

}  // namespace tinyllama
