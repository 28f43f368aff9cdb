#include <fmt/format.h>

#include "benchmarks/instruments/peaks.hpp"
#include "model/loss.hpp"

namespace tinyllama::instruments {

std::set<GemmShape> product_shapes(const Workload& workload) {
  const ModelConfig& config = workload.config;
  const Variant& variant = workload.variant;
  const int64_t tokens = workload.tokens();
  const int64_t D = config.hidden_dim();
  std::set<GemmShape> shapes;
  for (const int64_t out : {D, config.kv_dim(), config.intermediate_dim(), config.vocab_size()})
    shapes.insert({tokens, out, D});
  shapes.insert({tokens, D, config.intermediate_dim()});
  if (variant.has(Switch::qkv)) shapes.insert({tokens, D + 2 * config.kv_dim(), D});
  if (variant.has(Switch::gate_up)) shapes.insert({tokens, 2 * config.intermediate_dim(), D});
  if (variant.has(Switch::fused_loss)) {
    const int64_t chunk = fused_loss_chunk(tokens, config.vocab_size());
    shapes.insert({chunk, config.vocab_size(), D});
  }
  return shapes;
}

std::string to_string(const BatchedGemmShape& shape) {
  const auto& [m, n, k] = shape.product;
  const std::string one = fmt::format("{}x{}x{}", m, n, k);
  return shape.count == 1 ? one : fmt::format("{}x{}", shape.count, one);
}

std::set<BatchedGemmShape> step_products(const Workload& workload) {
  const ModelConfig& config = workload.config;
  std::set<BatchedGemmShape> products;
  Workload merged = workload;
  merged.variant = Variant({Switch::qkv, Switch::gate_up, Switch::fused_loss});
  for (const auto& [m, n, k] : product_shapes(merged)) {
    products.insert({1, {m, n, k}});
    products.insert({1, {m, k, n}});
    products.insert({1, {n, k, m}});
  }
  const int64_t count = workload.batch * config.n_kv_heads();
  const int64_t queries = workload.seq * config.n_heads() / config.n_kv_heads();
  const int64_t keys = workload.seq;
  const int64_t width = config.head_dim();
  // q k^T and the gradient of the probabilities; probabilities x v and the gradient of q; the
  // gradients of k and v
  products.insert({count, {queries, keys, width}});
  products.insert({count, {queries, width, keys}});
  products.insert({count, {keys, width, queries}});
  return products;
}

}  // namespace tinyllama::instruments
