#include "model/embedding.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>

#include "model/component_range.hpp"

namespace tinyllama {

Embedding::Embedding(const ModelConfig& config, TensorInitializer& initializer)
    : weight_(initializer.normal_parameter({config.vocab_size(), config.hidden_dim()})),
      is_share_(config.has_vocabulary_share()),
      padding_token_(config.padding_token().value_or(-1)) {}

at::Tensor Embedding::forward(const at::Tensor& tokens) const {
  const ComponentRange range("embedding");
  if (!is_share_) return at::embedding(weight_, tokens, padding_token_);
  const at::Tensor others = tokens.ge(weight_.size(0));
  return at::embedding(weight_, tokens.masked_fill(others, 0), padding_token_)
      .masked_fill(others.unsqueeze(-1), 0);
}

NamedTensors Embedding::parameters(const std::string& prefix) const {
  return {{prefix + "weight", weight_}};
}

Cost embedding_cost(const Workload& workload, Pass pass) {
  const int64_t D = workload.config.hidden_dim();
  const int64_t V = workload.config.vocab_size();
  const int64_t T = workload.tokens();
  const int64_t e = storage_bytes(workload.dtype);
  // A look-up reads at most one row a token; the gradient is the whole table. Of a share of the
  // vocabulary as many tokens less.
  const int64_t own_tokens = T * V / workload.config.token_count();
  const int64_t rows_bytes = std::min(V, own_tokens) * D * e;
  Cost forward{.lookup_flops = 2 * T * V * D};
  if (workload.config.has_vocabulary_share()) forward += comm_cost(1, T * D * e);
  const Cost backward{.lookup_flops = 4 * T * V * D};
  return select_halves(pass, V * D,
                       {with_traffic(forward, 0, T * kTokenBytes + rows_bytes + T * D * e),
                        with_traffic(backward, T * D, T * kTokenBytes + T * D * e + V * D * e)});
}

}  // namespace tinyllama
