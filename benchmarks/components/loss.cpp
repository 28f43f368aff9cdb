#include "model/loss.hpp"

#include "benchmarks/components/components.hpp"
#include "benchmarks/components/layer_inputs.hpp"

namespace tinyllama::components {
namespace {

// LM head and cross-entropy behind the final norm's output.
std::unique_ptr<harness::WorkItem> build(const harness::BuildRequest& request) {
  const Workload& w = request.workload;
  TensorInitializer initializer(request.seed, w.dtype, request.device);
  const LmHead head(w.config, w.variant, initializer);
  const std::string name = w.config.tied_embeddings() ? "model.embed_tokens." : "lm_head.";
  load_weights(request, head.parameters(name));
  const at::Tensor x = hidden_states(w, initializer);
  const at::Tensor targets =
      next_token_targets(initializer.tokens({w.batch, w.seq}, w.config.token_count()));
  return std::make_unique<harness::LayerWork>(
      harness::Layer{{{"hidden_states", x}},
                     head.parameters(name),
                     [=] {
                       return NamedTensors{{"loss", head.loss(x, targets)}};
                     },
                     {},
                     {at::Tensor(), targets, w.config.token_count()}},
      request.pass, w.dtype, request.device.type());
}

// Its forward is the loss as well.
std::string refusal(const Workload& workload, Pass pass) {
  return refuse_loss(workload, pass == Pass::forward ? Pass::forward_loss : pass);
}

}  // namespace

harness::Component loss() {
  return {"loss", kLayerPasses, loss_cost, build, refusal, kLossParts};
}

}  // namespace tinyllama::components
