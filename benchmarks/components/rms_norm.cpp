#include "model/rms_norm.hpp"

#include "benchmarks/components/components.hpp"
#include "benchmarks/components/layer_inputs.hpp"

namespace tinyllama::components {
namespace {

std::unique_ptr<harness::WorkItem> build(const harness::BuildRequest& request) {
  const Workload& w = request.workload;
  TensorInitializer initializer(request.seed, w.dtype, request.device);
  const RmsNorm layer(w.config.hidden_dim(), w.config.norm_eps(), w.variant, initializer);
  load_weights(request, layer.parameters(kFirstLayer + "input_layernorm."));
  const at::Tensor x = hidden_states(w, initializer);
  return layer_work(request, {{"hidden_states", x}}, layer.parameters(""), storage_type(w.dtype),
                    initializer, [=] { return layer.forward(x); });
}

}  // namespace

harness::Component rms_norm() {
  return {"rms_norm", kLayerPasses, rms_norm_cost, build, {}, Part::norm};
}

}  // namespace tinyllama::components
