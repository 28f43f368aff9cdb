#include "benchmarks/components/components.hpp"
#include "benchmarks/components/layer_inputs.hpp"
#include "model/train_step.hpp"

namespace tinyllama::components {
namespace {

// forward: tokens to logits; the other passes: tokens to the loss, and back.
std::unique_ptr<harness::WorkItem> build(const harness::BuildRequest& request) {
  const Workload& w = request.workload;
  TensorInitializer initializer(request.seed, w.dtype, request.device);
  TinyLlama model(w.config, w.variant, w.seq, initializer);
  load_weights(request, model.parameters());
  model.set_hooks(request.hooks);
  const at::Tensor tokens = initializer.tokens({w.batch, w.seq}, w.config.token_count());
  const bool with_loss = request.pass != Pass::forward;
  const at::Tensor targets = with_loss ? next_token_targets(tokens) : at::Tensor();
  return std::make_unique<harness::LayerWork>(
      harness::Layer{{},
                     model.parameters(),
                     [=] {
                       return with_loss ? NamedTensors{{"loss", model.loss(tokens, targets)}}
                                        : NamedTensors{{"logits", model.logits(tokens)}};
                     },
                     {},
                     {tokens, targets, w.config.token_count()}},
      request.pass, w.dtype, request.device.type());
}

}  // namespace

harness::Component model() {
  harness::Component model{
      "model",     {Pass::forward, Pass::forward_loss, Pass::backward, Pass::forward_backward},
      model_cost,  build,
      refuse_loss, kModelParts};
  model.missing_in = missing_in_stages;
  return model;
}

}  // namespace tinyllama::components
