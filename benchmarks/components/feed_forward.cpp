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
  return layer_work(request, {{"hidden_states", x}}, layer.parameters(""), compute_type(w.dtype),
                    initializer, [=] { return layer.forward(x); });
}

}  // namespace

harness::Component feed_forward() {
  return {"ffn", kLayerPasses, feed_forward_cost, build, {}, kFeedForwardParts, {"tiny"}, true};
}

}  // namespace tinyllama::components
