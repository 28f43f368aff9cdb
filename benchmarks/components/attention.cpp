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
  return layer_work(request, {{"hidden_states", x}}, layer.parameters(""), compute_type(w.dtype),
                    initializer, [=] { return layer.forward(x, rotary_table, mask); });
}

}  // namespace

harness::Component attention() {
  return {"attention", kLayerPasses, attention_cost, build, {}, kAttentionParts, {"tiny"}, true};
}

}  // namespace tinyllama::components
