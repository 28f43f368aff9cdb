#include "model/step_gemms.hpp"

#include <ATen/ops/bmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>

#include "model/gemm.hpp"
#include "model/loss.hpp"

namespace tinyllama {
namespace {

at::Tensor multiply_default(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  return a.dim() == 3 ? at::bmm_out(out, a, b) : at::mm_out(out, a, b);
}

at::Tensor multiply_linear(const at::Tensor& a, const at::Tensor& b, at::Tensor&) {
  return at::linear(a, b.t());
}

at::Tensor multiply_onednn(const at::Tensor& a, const at::Tensor& b, at::Tensor&) {
  return multiply_by_onednn(a, b.t());
}

/// Narrow operands, multiplied in float32 as the switch wide_gemm does.
GemmFunction widened(bool onednn) {
  return [gemm = Gemm(onednn, /*wide=*/true)](const at::Tensor& a, const at::Tensor& b,
                                              at::Tensor&) { return gemm.forward(a, b.t()); };
}

at::Tensor multiply_batched_widened(const at::Tensor& a, const at::Tensor& b, at::Tensor&) {
  return a.to(at::kFloat).bmm(b.to(at::kFloat)).to(a.scalar_type());
}

}  // namespace

std::set<GemmShape> linear_gemms(const Workload& workload) {
  const ModelConfig& config = workload.config;
  const Variant& variant = workload.variant;
  const int64_t tokens = workload.tokens();
  const int64_t D = config.hidden_dim();
  std::set<GemmShape> shapes;
  for (const int64_t out : {D, config.kv_dim(), config.intermediate_dim(), config.vocab_size()})
    shapes.insert({1, tokens, out, D});
  shapes.insert({1, tokens, D, config.intermediate_dim()});
  if (variant.has(Switch::qkv)) shapes.insert({1, tokens, D + 2 * config.kv_dim(), D});
  if (variant.has(Switch::gate_up)) shapes.insert({1, tokens, 2 * config.intermediate_dim(), D});
  if (variant.has(Switch::fused_loss)) {
    const int64_t chunk = fused_loss_chunk(tokens, config.vocab_size());
    shapes.insert({1, chunk, config.vocab_size(), D});
  }
  return shapes;
}

std::set<GemmShape> step_gemms(const Workload& workload) {
  const ModelConfig& config = workload.config;
  std::set<GemmShape> shapes;
  Workload merged = workload;
  merged.variant = Variant({Switch::qkv, Switch::gate_up, Switch::fused_loss});
  for (const auto& [batch, m, n, k] : linear_gemms(merged)) {
    shapes.insert({batch, m, n, k});
    shapes.insert({batch, m, k, n});
    shapes.insert({batch, n, k, m});
  }
  const int64_t batch = workload.batch * config.n_kv_heads();
  const int64_t queries = workload.seq * config.n_heads() / config.n_kv_heads();
  const int64_t keys = workload.seq;
  const int64_t width = config.head_dim();
  // q k^T and the gradient of the probabilities; probabilities x v and the gradient of q; the
  // gradients of k and v
  shapes.insert({batch, queries, keys, width});
  shapes.insert({batch, queries, width, keys});
  shapes.insert({batch, keys, width, queries});
  return shapes;
}

std::map<std::string, GemmFunction> gemm_paths(c10::ScalarType type, c10::DeviceType device,
                                               bool batched) {
  const bool on_cpu = device == c10::DeviceType::CPU;
  const bool narrow = on_cpu && c10::elementSize(type) < sizeof(float);
  if (batched) {
    std::map<std::string, GemmFunction> paths{{"at::bmm", multiply_default}};
    if (narrow) paths["at::bmm in float32, rounded once"] = multiply_batched_widened;
    return paths;
  }
  if (!on_cpu) return {{"at::mm", multiply_default}, {"at::linear", multiply_linear}};
  std::map<std::string, GemmFunction> paths{{"default BLAS", multiply_default}};
  if (has_onednn_gemm(type)) paths["oneDNN"] = multiply_onednn;
  if (narrow) paths["default BLAS in float32, rounded once"] = widened(/*onednn=*/false);
  if (narrow && has_onednn_gemm())
    paths["oneDNN in float32, rounded once"] = widened(/*onednn=*/true);
  return paths;
}

}  // namespace tinyllama
