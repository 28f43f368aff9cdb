#include "benchmarks/instruments/peaks.hpp"
#include "model/fused_loss.hpp"

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

}  // namespace tinyllama::instruments
