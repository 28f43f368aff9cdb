#include "benchmarks/components/components.hpp"
#include "benchmarks/components/layer_inputs.hpp"
#include "benchmarks/components/optimizer_state.hpp"
#include "model/memory_prediction.hpp"
#include "model/train_step.hpp"

namespace tinyllama::components {
namespace {

// Updates stay visible beside the weights, and training on one batch stays finite.
constexpr double kLearningRate = 1e-3;

// Steps before the moments are drawn anew. The batch stays the same, so where it gives no gradient,
// in the embedding's rows of tokens that it lacks, first moments only shrink, by 0.9 a step: after
// some 785 steps they would be denormal numbers, and a step on a CPU 1.1 to 1.25 times as long
// (tiny, 1 x 16, on a Xeon with AVX-512).
constexpr int64_t kStepsOfOneState = 500;

// Forward, loss, backward and update of the whole model on one batch; gradients are none before
// each step.
class FullStepWork final : public harness::WorkItem {
 public:
  explicit FullStepWork(const harness::BuildRequest& request)
      : request_(request),
        initializer_(request.seed, request.workload.dtype, request.device),
        model_(request.workload.config, request.workload.variant, request.workload.seq,
               initializer_),
        optimizer_(model_.parameters(), request.workload.variant, {.learning_rate = kLearningRate}),
        batch_(random_token_batch(request.workload.config, request.workload.batch,
                                  request.workload.seq, initializer_)),
        step_(model_, optimizer_) {
    load_weights(request, model_.parameters());
    model_.set_hooks(request.hooks);
    set_mid_training_state(optimizer_, initializer_);
    if (request.workload.variant.has(Switch::graph) && !request.device.is_meta())
      graph_.emplace(step_, optimizer_, batch_);
  }

  void prepare() override {
    if (++steps_ % kStepsOfOneState == 0) set_mid_training_state(optimizer_, initializer_);
    // A replayed step writes gradients and loss where the captured one did.
    if (graph_) return;
    optimizer_.clear_gradients();
    loss_.reset();
    // Predicted as a step before the capture, and then the capture.
    if (request_.workload.variant.has(Switch::graph) && steps_ == 2) note_capture();
  }
  void run() override { loss_ = graph_ ? graph_->run() : step_.run({&batch_, 1}); }

  NamedTensors results() const override {
    NamedTensors all = optimizer_results(optimizer_);
    all.emplace_back("loss", loss_);
    for (const auto& [name, parameter] : optimizer_.parameters())
      all.emplace_back("gradient of " + name, parameter.grad());
    return all;
  }
  NamedTensors parameters() const override { return optimizer_.parameters(); }
  NamedTensors optimizer_state() const override { return moments(optimizer_); }
  NamedTensors givens() const override {
    return {{"tokens", batch_.tokens}, {"targets", batch_.targets}};
  }
  void change_inputs(uint64_t seed, int64_t distinct) override {
    const Workload& w = request_.workload;
    begin_anew(optimizer_, request_, seed);
    step_.reset_scale();
    steps_ = 0;
    harness::ChangedInputs(seed, distinct, w.dtype, request_.device)
        .fill(harness::TokenInputs{batch_.tokens, batch_.targets, w.config.token_count()});
  }

 private:
  harness::BuildRequest request_;
  TensorInitializer initializer_;
  TinyLlama model_;
  AdamW optimizer_;
  TokenBatch batch_;
  TrainStep step_;
  std::optional<StepGraph> graph_;
  at::Tensor loss_;
  int64_t steps_ = 0;
};

}  // namespace

harness::Component full_step() {
  harness::Component step{
      "full_step",
      {Pass::train},
      [](const Workload& workload, Pass) { return full_step_cost(workload); },
      [](const harness::BuildRequest& request) { return std::make_unique<FullStepWork>(request); },
      refuse_loss,
      kModelParts | Part::update | Part::step,
      {"tiny", "small"},
      true};
  step.missing_in = missing_in_stages;
  return step;
}

}  // namespace tinyllama::components
