#include "model/rms_norm.hpp"

#include "benchmarks/components/components.hpp"
#include "benchmarks/components/layer_inputs.hpp"

namespace tinyllama::components {
namespace {

std::unique_ptr<harness::WorkItem> build(const harness::BuildRequest& request) {
  const Workload& w = request.workload;
  TensorInitializer initializer(request.seed, w.dtype, request.device);
  const RmsNorm layer(w.config, w.variant, initializer);
  load_weights(request, layer.parameters(kFirstLayer + "input_layernorm."));
  const at::Tensor x = hidden_states(w, initializer);
  std::vector<at::Tensor> gradients;
  if (has_backward(request.pass))
    gradients = {output_gradient(x.sizes(), storage_type(w.dtype), initializer)};
  return std::make_unique<harness::LayerWork>(
      harness::Layer{{{"hidden_states", x}},
                     layer.parameters(""),
                     [=] {
                       return NamedTensors{{"output", layer.forward(x)}};
                     },
                     gradients},
      request.pass, w.dtype, request.device.type());
}

}  // namespace

harness::Component rms_norm() {
  return {"rms_norm",
          kLayerPasses,
          rms_norm_cost,
          rms_norm_memory,
          build,
          {},
          switches_of(ModelPart::rms_norm)};
}

}  // namespace tinyllama::components
