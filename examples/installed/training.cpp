// Three training steps of the model library alone.
#include <fmt/format.h>

#include "model/train_step.hpp"

int main() {
  using namespace tinyllama;
  const ModelConfig config;  // the workshop's: D 256, 4 layers, 8 heads over 4 KV heads
  const Variant variant;     // the baseline; Variant::parse("optimized") has all our kernels
  TensorInitializer initializer(/*seed=*/42, Dtype::f32, c10::kCPU);
  const TinyLlama model(config, variant, /*max_seq=*/128, initializer);
  AdamW optimizer(model.parameters(), variant);
  TrainStep step(model, optimizer);
  const TokenBatch batch = random_token_batch(config, /*batch=*/8, /*seq=*/128, initializer);
  for (int i = 0; i < 3; ++i) {
    fmt::print("step {}: loss {:.4f}\n", i, step.run({&batch, 1}).item<float>());
    optimizer.clear_gradients();
  }
}
