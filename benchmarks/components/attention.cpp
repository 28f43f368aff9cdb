#include "model/attention.hpp"

#include "benchmarks/components/components.hpp"
#include "benchmarks/components/layer_inputs.hpp"

namespace tinyllama::components {
namespace {

std::unique_ptr<harness::WorkItem> build(const harness::BuildRequest& request) {
  const Workload& w = request.workload;
  TensorInitializer initializer(request.seed, w.dtype, request.device);
  const Attention layer(w.config, w.variant, initializer);
  load_weights(request, layer.parameters(kFirstLayer + "self_attn."));
  const RotaryTable rotary_table(w.config, w.variant, w.seq, w.dtype, request.device);
  const at::Tensor mask = attention_mask(w.config, w.variant, w.seq, w.dtype, request.device);
  const at::Tensor x = hidden_states(w, initializer);
  std::vector<at::Tensor> gradients;
  if (has_backward(request.pass))
    gradients = {output_gradient(x.sizes(), gemm_output_type(w), initializer)};
  return std::make_unique<harness::LayerWork>(
      harness::Layer{{{"hidden_states", x}},
                     layer.parameters(""),
                     [=] {
                       return NamedTensors{{"output", layer.forward(x, rotary_table, mask)}};
                     },
                     gradients},
      request.pass, w.dtype, request.device.type());
}

}  // namespace

harness::Component attention() {
  return {"attention", kLayerPasses, attention_cost, build, {}, kAttentionParts, {"tiny"}, true};
}

}  // namespace tinyllama::components
