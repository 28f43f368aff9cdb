// The model with its optimizer, and the ways to run a step of it.
#pragma once

#include <optional>

#include "benchmarks/training/train_options.hpp"
#include "model/adamw.hpp"
#include "model/tiny_llama.hpp"
#include "model/train_step.hpp"

namespace tinyllama::training {

struct ModelState {
  /// Weights from --weights or drawn from the seed. Throws what Weights throws, c10::Error where
  /// memory does not suffice.
  ModelState(const TrainOptions& options, c10::Device device);

  /// Mean loss over the batch, without gradients.
  double evaluate(const TokenBatch& batch) const;

  TensorInitializer initializer;
  TinyLlama model;
  AdamW optimizer;
  TrainStep step;
};

}  // namespace tinyllama::training
