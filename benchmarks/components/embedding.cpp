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
  const at::Tensor tokens = initializer.tokens({w.batch, w.seq}, w.config.vocab_size());
  std::vector<at::Tensor> gradients;
  if (has_backward(request.pass)) {
    gradients = {output_gradient({w.batch, w.seq, w.config.hidden_dim()}, storage_type(w.dtype),
                                 initializer)};
  }
  return std::make_unique<harness::LayerWork>(
      harness::Layer{{},
                     layer.parameters(""),
                     [=] {
                       return NamedTensors{{"output", layer.forward(tokens)}};
                     },
                     gradients},
      request.pass, w.dtype, request.device.type());
}

}  // namespace

harness::Component embedding() {
  return {"embedding",
          kLayerPasses,
          embedding_cost,
          embedding_memory,
          build,
          {},
          switches_of(ModelPart::embedding)};
}

}  // namespace tinyllama::components
