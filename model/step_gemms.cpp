#include "model/step_gemms.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>

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

/// As the linear layers of a variant do.
GemmFunction of_layers(GemmPath path) {
  return [gemm = Gemm(path)](const at::Tensor& a, const at::Tensor& b, at::Tensor&) {
    return gemm.forward(a, b.t());
  };
}

/// oneDNN's GEMM, which of float32 is another than the default BLAS. libtorch keeps it for
/// torch.compile and gives no C++ function: called by name and with boxed arguments, because its
/// C++ signature differs between versions.
std::optional<GemmFunction> onednn_gemm() {
  const auto linear = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  if (!linear) return {};
  return [linear = *linear](const at::Tensor& a, const at::Tensor& b, at::Tensor&) {
    torch::jit::Stack stack;
    torch::jit::push(stack, a, b.t(), c10::IValue(), "none", c10::List<std::optional<at::Scalar>>(),
                     "");
    linear.callBoxed(stack);
    return torch::jit::pop(stack).toTensor();
  };
}

}  // namespace

std::string to_string(const GemmShape& shape) {
  const auto& [batch, m, n, k] = shape;
  const std::string one = fmt::format("{}x{}x{}", m, n, k);
  return batch == 1 ? one : fmt::format("{}x{}", batch, one);
}

std::set<GemmShape> linear_gemms(const Workload& workload) {
  const ModelConfig& config = workload.config;
  const Variant& variant = workload.variant;
  const int64_t tokens = workload.tokens();
  const int64_t D = config.hidden_dim();
  std::set<GemmShape> shapes;
  const int64_t Q = config.q_dim();
  for (const int64_t out : {Q, config.kv_dim(), config.intermediate_dim(), config.vocab_size()})
    shapes.insert({1, tokens, out, D});
  shapes.insert({1, tokens, D, Q});
  shapes.insert({1, tokens, D, config.intermediate_dim()});
  if (variant.has(Switch::qkv)) shapes.insert({1, tokens, Q + 2 * config.kv_dim(), D});
  if (variant.has(Switch::gate_up)) shapes.insert({1, tokens, 2 * config.intermediate_dim(), D});
  if (variant.has(Switch::fused_loss)) {
    const int64_t chunk = fused_loss_chunk(tokens, config.vocab_size(), workload.device);
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

GemmPaths gemm_paths(c10::ScalarType type, c10::DeviceType device, bool batched) {
  const bool on_cpu = device == c10::DeviceType::CPU;
  const bool narrow = on_cpu && c10::elementSize(type) < sizeof(float);
  if (batched) {
    GemmPaths paths{{"at::bmm", multiply_default}};
    if (narrow) {
      paths["at::bmm in float32, rounded once"] = [](const at::Tensor& a, const at::Tensor& b,
                                                     at::Tensor&) {
        return a.to(at::kFloat).bmm(b.to(at::kFloat)).to(a.scalar_type());
      };
    }
    return paths;
  }
  if (!on_cpu) return {{"at::mm", multiply_default}, {"at::linear", multiply_linear}};
  GemmPaths paths{{kDefaultPath, multiply_default}, {"tiled_gemm", of_layers(GemmPath::tiled)}};
  const auto onednn = type == at::kFloat ? onednn_gemm() : std::nullopt;
  if (onednn) paths["oneDNN"] = *onednn;
  if (narrow) paths["default BLAS in float32, rounded once"] = of_layers(GemmPath::wide);
  return paths;
}

}  // namespace tinyllama
