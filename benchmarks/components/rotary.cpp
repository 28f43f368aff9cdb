#include "model/rotary.hpp"

#include "benchmarks/components/components.hpp"
#include "benchmarks/components/layer_inputs.hpp"

namespace tinyllama::components {
namespace {

// Rotates the queries [B, S, H, head_dim] and the keys [B, S, KV, head_dim] of one layer, in the
// type that GEMMs run in.
std::unique_ptr<harness::WorkItem> build(const harness::BuildRequest& request) {
  const Workload& w = request.workload;
  TensorInitializer initializer(request.seed, w.dtype, request.device);
  const RotaryTable table(w.config, w.variant, w.seq, w.dtype, request.device);
  const auto draw = [&](int64_t heads) {
    return initializer.normal({w.batch, w.seq, heads, w.config.head_dim()})
        .to(compute_type(w.dtype));
  };
  const at::Tensor q = draw(w.config.n_heads()).requires_grad_(true);
  const at::Tensor k = draw(w.config.n_kv_heads()).requires_grad_(true);
  std::vector<at::Tensor> gradients;
  if (has_backward(request.pass))
    gradients = {draw(w.config.n_heads()), draw(w.config.n_kv_heads())};
  return std::make_unique<harness::LayerWork>(
      harness::Layer{
          {{"q", q}, {"k", k}},
          {},
          [=] {
            return NamedTensors{{"rotated q", table.rotate(q)}, {"rotated k", table.rotate(k)}};
          },
          gradients},
      request.pass, w.dtype, request.device.type());
}

}  // namespace

harness::Component rotary() {
  return {"rotary", kLayerPasses, rotary_cost, build, {}, Part::rotary};
}

}  // namespace tinyllama::components
