#include "model/block.hpp"

#include "benchmarks/components/components.hpp"
#include "benchmarks/components/layer_inputs.hpp"

namespace tinyllama::components {
namespace {

std::unique_ptr<harness::WorkItem> build(const harness::BuildRequest& request) {
  const Workload& w = request.workload;
  TensorInitializer initializer(request.seed, w.dtype, request.device);
  const Block layer(w.config, w.variant, initializer);
  load_weights(request, layer.parameters(kFirstLayer));
  const RotaryTable rotary_table(w.config, w.variant, w.seq, w.dtype, request.device);
  const at::Tensor mask = attention_mask(w.config, w.variant, w.seq, w.dtype, request.device);
  const at::Tensor x = hidden_states(w, initializer);
  return layer_work(request, {{"hidden_states", x}}, layer.parameters(""), storage_type(w.dtype),
                    initializer, [=] { return layer.forward(x, rotary_table, mask); });
}

}  // namespace

harness::Component block() {
  return {"block", kLayerPasses, block_cost, build, {}, kBlockParts, {"tiny"}, true};
}

}  // namespace tinyllama::components
