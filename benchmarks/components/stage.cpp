#include "benchmarks/components/components.hpp"
#include "benchmarks/components/layer_inputs.hpp"
#include "model/tiny_llama.hpp"

namespace tinyllama::components {
namespace {

// The layers of a pipeline's stage, from the hidden states that the stage before sends to those
// that the next one gets.
std::unique_ptr<harness::WorkItem> build(const harness::BuildRequest& request) {
  const Workload& w = request.workload;
  TensorInitializer initializer(request.seed, w.dtype, request.device);
  ModelDimensions dimensions = w.config.dimensions();
  dimensions.only_layers = true;
  TinyLlama layers(ModelConfig(dimensions), w.variant, w.seq, initializer);
  load_weights(request, layers.parameters());
  layers.set_hooks(request.hooks);
  const at::Tensor x = hidden_states(w, initializer);
  return layer_work(request, {{"hidden_states", x}}, layers.parameters(), storage_type(w.dtype),
                    initializer, [=] { return layers.run_layers(x); });
}

}  // namespace

harness::Component stage() {
  harness::Component stage{"stage", kLayerPasses, layers_cost, build, {}, kBlockParts, {}};
  stage.missing_in = [](const ModelConfig& config) {
    return config.only_layers() ? "" : "a stage is of a pipeline: --pipeline-parallel N";
  };
  return stage;
}

}  // namespace tinyllama::components
