#include "benchmarks/training/data_parallel.hpp"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/distributed/fingerprint.hpp"
#include "benchmarks/instruments/context.hpp"

namespace tinyllama::training {
namespace {

std::string dimension_words(const ModelDimensions& d) {
  return fmt::format("{} {} {} {} {} {}", d.vocab_size, d.hidden_dim, d.n_layers, d.n_heads,
                     d.n_kv_heads, d.intermediate_dim);
}

}  // namespace

distributed::Agreement agreement_of(const TrainOptions& options) {
  distributed::Agreement all = distributed::shared_agreement(options);
  all.merge(distributed::Agreement{
      {"dimensions of the model", dimension_words(options.dimensions)},
      {"--variant", options.variant.switch_names()},
      {"--dtype", std::string(to_string(options.dtype))},
      {"--batch-size", std::to_string(options.batch_size)},
      {"--seq-len", std::to_string(options.seq_len)},
      {"--num-steps", std::to_string(options.num_steps)},
      {"--gradient-accumulation-steps", std::to_string(options.gradient_accumulation_steps)},
      {"--learning-rate", fmt::format("{:.17g}", options.learning_rate)},
      {"--log-interval", std::to_string(options.log_interval)},
      {"--seed", std::to_string(options.seed)},
      {"--deterministic", options.deterministic ? "yes" : "no"},
      {"--data", options.data_file.empty() ? "no" : "yes"}});
  return all;
}

DataParallel::DataParallel(const TrainOptions& options, ModelState& state,
                           distributed::ProcessGroup& group)
    : group_(group), state_(state) {
  const NamedTensors parameters = state.model.parameters();
  if (options.shard_optimizer) {
    sharded_.emplace(group, parameters, options.variant,
                     AdamWOptions{.learning_rate = options.learning_rate},
                     options.bucket_options());
  } else {
    reducer_.emplace(group, parameters, options.bucket_options());
  }
}

void DataParallel::begin_step(int64_t step) {
  group_.enter(fmt::format("step {}", step));
}

void DataParallel::begin_last_backward() {
  if (sharded_) {
    sharded_->attach();
    sharded_->begin();
  } else {
    reducer_->attach();
    reducer_->begin();
  }
}

void DataParallel::finish_last_backward() {
  if (sharded_) {
    sharded_->finish();
    sharded_->detach();
  } else {
    reducer_->finish();
    reducer_->detach();
  }
}

void DataParallel::update() {
  if (sharded_) return sharded_->step();
  state_.step.update();
}

void DataParallel::clear_gradients() {
  if (sharded_) return sharded_->clear_gradients();
  state_.optimizer.clear_gradients();
}

DataParallel::Agreed DataParallel::agree(double loss) {
  const double signalled = console::interrupted() ? 1 : 0;
  const at::Tensor values =
      at::tensor({loss, signalled}, at::TensorOptions(c10::ScalarType::Double))
          .to(group_.device().torch());
  group_.all_reduce(values).wait();
  const at::Tensor here = values.cpu();
  const double* const found = here.const_data_ptr<double>();
  return {found[0], found[1] > 0};
}

std::string DataParallel::differing_ranks(const std::string& when) {
  return distributed::differing_ranks(group_, when, state_.model.parameters());
}

}  // namespace tinyllama::training
