#include <ATen/ops/empty_like.h>

#include "benchmarks/components/components.hpp"
#include "benchmarks/components/layer_inputs.hpp"
#include "benchmarks/components/optimizer_state.hpp"
#include "model/tiny_llama.hpp"

namespace tinyllama::components {
namespace {

// Gradients of the magnitude of the moments, so that a wrong term of either would show.
constexpr double kGradientStd = 1e-1;
// Updates stay visible beside the weights, whose std is 0.02.
constexpr double kLearningRate = 1e-3;

// AdamW over every parameter of the model, with gradients that stay.
class OptimizerWork final : public harness::WorkItem {
 public:
  explicit OptimizerWork(const harness::BuildRequest& request)
      : request_(request),
        initializer_(request.seed, request.workload.dtype, request.device),
        optimizer_(TinyLlama(request.workload.config, request.workload.variant, 1, initializer_)
                       .parameters(),
                   // What is not captured counts its steps on the host.
                   request.workload.variant.without(Switch::graph),
                   {.learning_rate = kLearningRate}) {
    load_weights(request, optimizer_.parameters());
    set_mid_training_state(optimizer_, initializer_);
    for (const auto& [name, parameter] : optimizer_.parameters()) {
      // In the parameter's own order of elements, as a backward leaves it.
      parameter.mutable_grad() = at::empty_like(parameter, parameter.options().requires_grad(false),
                                                c10::MemoryFormat::Preserve)
                                     .copy_(initializer_.normal(parameter.sizes(), kGradientStd));
    }
  }

  void prepare() override {}
  void run() override { optimizer_.step(); }
  bool runs_in_a_row() const override { return true; }
  NamedTensors results() const override { return optimizer_results(optimizer_); }
  NamedTensors parameters() const override { return optimizer_.parameters(); }
  NamedTensors optimizer_state() const override { return moments(optimizer_); }
  NamedTensors givens() const override {
    NamedTensors gradients;
    for (const auto& [name, parameter] : optimizer_.parameters())
      gradients.emplace_back("gradient of " + name, parameter.grad());
    return gradients;
  }
  void change_inputs(uint64_t seed, int64_t /*distinct*/) override {
    begin_anew(optimizer_, request_, seed);
    harness::reverse_in_place(givens());
  }

 private:
  harness::BuildRequest request_;
  TensorInitializer initializer_;
  AdamW optimizer_;
};

}  // namespace

harness::Component optimizer() {
  return {
      "optimizer",
      {Pass::update},
      [](const Workload& workload, Pass) { return optimizer_cost(workload); },
      [](const harness::BuildRequest& request) { return std::make_unique<OptimizerWork>(request); },
      {},
      Part::update};
}

}  // namespace tinyllama::components
