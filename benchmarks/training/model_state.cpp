#include "benchmarks/training/model_state.hpp"

#include <ATen/core/grad_mode.h>

#include "model/weights.hpp"

namespace tinyllama::training {

ModelState::ModelState(const TrainOptions& options, c10::Device device)
    : initializer(options.seed, options.dtype, device),
      model(ModelConfig(options.dimensions), options.variant, options.seq_len, initializer),
      // A sharded optimizer has moments of its own (DataParallel).
      optimizer(options.shard_optimizer ? NamedTensors() : model.parameters(), options.variant,
                {.learning_rate = options.learning_rate}),
      step(model, optimizer) {
  if (options.weights_folder.empty()) return;
  Weights(options.weights_folder).copy_to(model.parameters());
}

double ModelState::evaluate(const TokenBatch& batch) const {
  const at::NoGradGuard no_grad;
  return step.forward(batch).item<double>();
}

}  // namespace tinyllama::training
