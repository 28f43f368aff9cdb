#include "model/embedding.hpp"

#include "benchmarks/components/components.hpp"
#include "benchmarks/components/layer_inputs.hpp"

namespace tinyllama::components {
namespace {

std::unique_ptr<harness::WorkItem> build(const harness::BuildRequest& request) {
  const Workload& w = request.workload;
  TensorInitializer initializer(request.seed, w.dtype, request.device);
  const Embedding layer(w.config, initializer);
  load_weights(request, layer.parameters("model.embed_tokens."));
  const at::Tensor tokens = initializer.tokens({w.batch, w.seq}, w.config.token_count());
  return layer_work(request, {}, layer.parameters(""), storage_type(w.dtype), initializer,
                    [=] { return layer.forward(tokens); },
                    {tokens, at::Tensor(), w.config.token_count()});
}

}  // namespace

harness::Component embedding() {
  return {"embedding", kLayerPasses, embedding_cost, build};
}

}  // namespace tinyllama::components
