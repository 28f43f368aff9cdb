#include "model/feed_forward.hpp"

#include "benchmarks/components/components.hpp"
#include "benchmarks/components/layer_inputs.hpp"

namespace tinyllama::components {
namespace {

std::unique_ptr<harness::WorkItem> build(const harness::BuildRequest& request) {
  const Workload& w = request.workload;
  TensorInitializer initializer(request.seed, w.dtype, request.device);
  const FeedForward layer(w.config, w.variant, initializer);
  load_weights(request, layer.parameters(kFirstLayer + "mlp."));
  const at::Tensor x = hidden_states(w, initializer);
  std::vector<at::Tensor> gradients;
  if (has_backward(request.pass))
    gradients = {output_gradient(x.sizes(), gemm_output_type(w), initializer)};
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

harness::Component feed_forward() {
  return {"ffn", kLayerPasses, feed_forward_cost, build, {}, kFeedForwardParts, {"tiny"}, true};
}

}  // namespace tinyllama::components
