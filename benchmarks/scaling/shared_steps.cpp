#include "benchmarks/scaling/shared_steps.hpp"

#include <algorithm>
#include <utility>

#include "benchmarks/distributed/gradient_reducer.hpp"
#include "benchmarks/distributed/sharded_parameters.hpp"
#include "benchmarks/distributed/tensor_parallel.hpp"
#include "model/memory_prediction.hpp"

namespace tinyllama::scaling {

using distributed::Share;

namespace {

constexpr AdamWOptions kOptimizer = {.learning_rate = kLearningRate};

// The whole model with a step whose own optimizer updates nothing.
struct WholeModel {
  WholeModel(const ScalingOptions& options, c10::Device device)
      : initializer(options.seed, options.dtype, device),
        model(ModelConfig(options.dimensions), options.variant, options.seq, initializer),
        none({}, Variant()),
        step(model, none) {}
  TensorInitializer initializer;
  TinyLlama model;
  AdamW none;
  TrainStep step;
};

std::vector<at::Tensor> tensors_of(const NamedTensors& named) {
  std::vector<at::Tensor> found;
  for (const auto& [name, tensor] : named) found.push_back(tensor.detach());
  return found;
}

// Ranks with the whole model, at least at first, and samples of their own.
class WholeModelStep : public SharedStep {
 protected:
  WholeModelStep(const ScalingOptions& options, const ProcessGroup& group,
                 const RankSamples& samples)
      : ranks_(group.size()),
        samples_(samples),
        whole_(options, group.device().torch()),
        parameters_(whole_.model.parameters()) {}

  // `sharded`: parameters or optimizer, cut over the ranks.
  template <class Sharded>
  void run_with(Sharded& sharded) {
    const at::Tensor loss = whole_.step.forward(samples_.own, ranks_);
    sharded.backward([&] { whole_.step.backward(loss); });
    sharded.step();
  }
  WholeModel& whole() { return whole_; }
  const NamedTensors& named_parameters() const { return parameters_; }

 private:
  int ranks_;
  RankSamples samples_;
  WholeModel whole_;
  NamedTensors parameters_;
};

// zero1: its parameters lie in the buckets' memory.
class ShardedOptimizerStep final : public WholeModelStep {
 public:
  ShardedOptimizerStep(const ScalingOptions& options, ProcessGroup& group,
                       const RankSamples& samples)
      : WholeModelStep(options, group, samples),
        optimizer_(group, named_parameters(), options.variant, kOptimizer,
                   options.bucket_options()) {
    leave_first_step(optimizer_.of_shares());
  }

  void run(StepMode /*mode*/) override { run_with(optimizer_); }
  void run_all_samples() override { run(StepMode::sharded); }
  void clear_gradients() override { optimizer_.clear_gradients(); }
  std::vector<at::Tensor> parameters() override { return tensors_of(named_parameters()); }

 private:
  distributed::ShardedAdamW optimizer_;
};

class ShardedParametersStep final : public WholeModelStep {
 public:
  ShardedParametersStep(const ScalingOptions& options, ProcessGroup& group,
                        const RankSamples& samples)
      : WholeModelStep(options, group, samples),
        sharded_(group, whole().model, options.variant, kOptimizer, options.overlap) {
    leave_first_step(sharded_.of_shares());
  }

  void run(StepMode mode) override {
    if (mode == StepMode::zero3_communication) return sharded_.communicate();
    sharded_.set_overlap(mode == StepMode::zero3);
    run_with(sharded_);
  }
  void run_all_samples() override { run(StepMode::zero3); }
  void clear_gradients() override {
    sharded_.clear_gradients();
    sharded_.release_parameters();
  }
  std::vector<at::Tensor> parameters() override {
    sharded_.gather_parameters();
    return tensors_of(named_parameters());
  }

 private:
  distributed::ShardedParameters sharded_;
};

class TensorStep final : public SharedStep {
 public:
  TensorStep(const ScalingOptions& options, ProcessGroup& group, const RankSamples& samples)
      : group_(group),
        samples_(samples),
        timed_(options.global_batch ? samples.all : samples.own),
        config_(options.dimensions),
        shapes_(WholeModel(options, c10::Device(c10::DeviceType::Meta)).model.parameters()),
        initializer_(options.seed, options.dtype, group.device().torch()),
        model_(distributed::tensor_share(config_, group.rank(), group.size()), options.variant,
               options.seq, initializer_),
        parameters_(model_.parameters()),
        ranks_(group, config_),
        optimizer_(parameters_, options.variant, kOptimizer),
        step_(model_, optimizer_) {
    distributed::copy_share(WholeModel(options, group.device().torch()).model.parameters(),
                            parameters_, group.rank());
    leave_first_step(optimizer_);
    model_.set_hooks(&ranks_);
  }

  void run(StepMode mode) override {
    if (mode == StepMode::tensor_communication) return ranks_.communicate();
    ranks_.set_connected(mode == StepMode::tensor);
    if (mode == StepMode::tensor) ranks_.begin();
    step_.run({&timed_, 1});
  }

  // By the ranks' batches, which need no more memory than one of them.
  void run_all_samples() override {
    std::vector<TokenBatch> batches;
    const int64_t samples = samples_.own.tokens.size(0);
    for (int rank = 0; rank < group_.size(); ++rank)
      batches.push_back(rows_of(samples_.all, samples * rank, samples));
    ranks_.set_connected(true);
    step_.run(batches);
  }
  void clear_gradients() override { optimizer_.clear_gradients(); }
  std::vector<at::Tensor> parameters() override {
    return distributed::join_shares(group_, shapes_, tensors_of(parameters_));
  }

 private:
  ProcessGroup& group_;
  RankSamples samples_;
  const TokenBatch& timed_;
  ModelConfig config_;
  NamedTensors shapes_;  // of the whole model, without data
  TensorInitializer initializer_;
  TinyLlama model_;
  NamedTensors parameters_;
  distributed::TensorParallel ranks_;
  AdamW optimizer_;
  TrainStep step_;
};

}  // namespace

std::vector<StepMode> modes_of(Share share, int ranks, bool overlap) {
  std::vector<StepMode> modes;
  if (share == Share::zero1) modes = {StepMode::sharded};
  if (share == Share::zero3 && (ranks > 1 || !overlap)) modes = {StepMode::zero3_no_overlap};
  if (share == Share::zero3 && overlap) modes.push_back(StepMode::zero3);
  if (share == Share::zero3 && ranks > 1) modes.push_back(StepMode::zero3_communication);
  if (share == Share::tensor && ranks > 1) modes = {StepMode::tensor_local};
  if (share == Share::tensor) modes.push_back(StepMode::tensor);
  if (share == Share::tensor && ranks > 1) modes.push_back(StepMode::tensor_communication);
  return modes;
}

std::unique_ptr<SharedStep> make_shared_step(const ScalingOptions& options, ProcessGroup& group,
                                             const RankSamples& samples) {
  switch (options.share) {
    case Share::ddp:
      return nullptr;
    case Share::zero1:
      return std::make_unique<ShardedOptimizerStep>(options, group, samples);
    case Share::zero3:
      return std::make_unique<ShardedParametersStep>(options, group, samples);
    case Share::tensor:
      return std::make_unique<TensorStep>(options, group, samples);
  }
  return nullptr;
}

int64_t shared_step_bytes(const ScalingOptions& options, int ranks, c10::DeviceType device) {
  const ModelConfig config(options.dimensions);
  const int64_t weights = count_parameters(config) * storage_bytes(options.dtype);
  if (options.share == Share::ddp) return 0;
  // Tables that this model has of its own, and a batch.
  const int64_t tables = predict_step_memory(options.workload(), device).inputs;
  switch (options.share) {
    case Share::ddp:
      break;
    case Share::zero1: {
      const WholeModel whole(options, c10::Device(c10::DeviceType::Meta));
      const auto bytes =
          distributed::sharded_adamw_bytes(whole.model.parameters(), ranks, options.bucket_bytes());
      // While it runs, a plain step has neither its gradients nor those of a proof: Gloo's copies
      // have that room.
      const int64_t copies = bytes.flat + bytes.kept_over(device) - 2 * weights;
      return tables + weights + bytes.held() + std::max(int64_t{0}, copies);
    }
    case Share::zero3: {
      const WholeModel whole(options, c10::Device(c10::DeviceType::Meta));
      const auto bytes = distributed::sharded_bytes(whole.model.parts(), ranks);
      // It begins with the whole model, and ends a proof with it.
      return tables + std::max(weights, bytes.in_flight_over(device)) + bytes.held();
    }
    case Share::tensor: {
      Workload workload = options.workload();
      workload.config = distributed::tensor_share(config, 0, ranks);
      if (options.global_batch) workload.batch = *options.global_batch;
      ShareHooks hooks(0, ranks, config.vocab_size());
      // A proof's step has micro-batches.
      const auto step =
          predict_step_memory(workload, device, {.has_gradients = true, .hooks = &hooks});
      return std::max(weights, step.peak());
    }
  }
  return 0;
}

void leave_first_step(AdamW& optimizer) {
  for (const auto& [name, moment] : optimizer.second_moments()) moment.fill_(0x1p-20);
}

TokenBatch rows_of(const TokenBatch& all, int64_t first, int64_t count) {
  return {all.tokens.narrow(0, first, count).contiguous(),
          all.targets.narrow(0, first, count).contiguous()};
}

}  // namespace tinyllama::scaling
