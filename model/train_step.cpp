#include "model/train_step.hpp"

#include <ATen/TensorOperators.h>

#include <stdexcept>

#include "model/component_range.hpp"

namespace tinyllama {

TokenBatch random_token_batch(const ModelConfig& config, int64_t batch, int64_t seq,
                              TensorInitializer& initializer) {
  const at::Tensor tokens = initializer.tokens({batch, seq}, config.vocab_size());
  return {tokens, next_token_targets(tokens)};
}

TrainStep::TrainStep(const TinyLlama& model, AdamW& optimizer)
    : model_(model),
      optimizer_(optimizer),
      device_type_(model.parameters().front().second.device().type()) {
  if (model.dtype() == Dtype::amp_f16) scaler_.emplace(model.parameters().front().second.device());
}

at::Tensor TrainStep::forward(const TokenBatch& batch, int64_t accumulation_steps) const {
  const AutocastScope autocast(model_.dtype(), device_type_);
  const at::Tensor loss = model_.loss(batch.tokens, batch.targets);
  return accumulation_steps == 1 ? loss : loss / static_cast<double>(accumulation_steps);
}

void TrainStep::backward(const at::Tensor& loss) const {
  (scaler_ ? scaler_->scale(loss) : loss).backward();
}

bool TrainStep::update() {
  const ComponentRange range("optimizer");
  if (scaler_) return scaler_->unscale_and_step(optimizer_);
  optimizer_.step();
  return true;
}

at::Tensor TrainStep::run(std::span<const TokenBatch> micro_batches) {
  if (micro_batches.empty()) {
    throw std::invalid_argument("micro_batches = 0: a step needs at least one");
  }
  at::Tensor total;
  for (const TokenBatch& batch : micro_batches) {
    const at::Tensor loss = forward(batch, static_cast<int64_t>(micro_batches.size()));
    backward(loss);
    total = total.defined() ? total + loss.detach() : loss.detach();
  }
  update();
  return total;
}

}  // namespace tinyllama
