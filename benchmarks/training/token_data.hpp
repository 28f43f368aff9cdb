// What a training run learns from: batches of tokens for training and for evaluation.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "model/config.hpp"
#include "model/train_step.hpp"

namespace tinyllama::training {

/// Batches are made on the CPU and then moved to the device. The same seed gives the same batches,
/// in whatever order they are asked for.
class TokenData {
 public:
  virtual ~TokenData() = default;
  /// tokens [B, S] and targets [B, S], int64. Throws std::runtime_error where the data can no
  /// longer be read.
  virtual TokenBatch train_batch(int64_t step, int64_t micro_step) = 0;
  /// One of the batches that training never sees. Same shapes and errors.
  virtual TokenBatch evaluation_batch(int64_t index) = 0;
  /// "synthetic", or the file's name without its folder.
  virtual std::string name() const = 0;
};

struct BatchOptions {
  int64_t batch = 1;  ///< B
  int64_t seq = 2;    ///< S, at least 2
  uint64_t seed = 0;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
};

/// Random tokens. Each micro-step has one batch, the same in every step, so that the loss falls;
/// it is made when first asked for and kept. Throws std::invalid_argument unless B >= 1 and S >= 2.
std::unique_ptr<TokenData> synthetic_data(const ModelConfig& config, const BatchOptions& options);

/// The file's bytes as tokens 0 to 255. The last tenth is held out for evaluation; each sample is a
/// window of S bytes from anywhere in its part, drawn anew for each batch. Throws
/// std::invalid_argument, naming the value, the rule and what to do, where vocab_size < 256, B < 1
/// or S < 2, where the file cannot be read (see ReadableFile), or where it has fewer than 10 S
/// bytes, the least with which both parts hold a window.
std::unique_ptr<TokenData> text_file_data(const std::filesystem::path& file,
                                          const ModelConfig& config, const BatchOptions& options);

}  // namespace tinyllama::training
