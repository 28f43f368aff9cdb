#include "benchmarks/training/token_data.hpp"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <vector>

#include "core/file_io.hpp"
#include "model/loss.hpp"
#include "model/parameters.hpp"

namespace tinyllama::training {
namespace {

constexpr int64_t kByteValues = 256;
constexpr int64_t kHeldOutPart = 10;  // one in so many bytes is held out

/// Keeps what is drawn for training and for evaluation apart.
enum class Stream : uint64_t { training = 1, evaluation = 2 };

/// splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

/// One seed for each batch, so that any batch can be made without those before it. Mixed, because
/// libtorch's generator uses the low 32 bits of its seed.
uint64_t batch_seed(uint64_t seed, Stream stream, int64_t first, int64_t second) {
  uint64_t state = mix(seed);
  for (const uint64_t word : {static_cast<uint64_t>(stream), static_cast<uint64_t>(first),
                              static_cast<uint64_t>(second)}) {
    state = mix(state ^ word);
  }
  return state;
}

TensorInitializer initializer_of(uint64_t seed) {
  return {seed, Dtype::f32, c10::Device(c10::DeviceType::CPU)};
}

TokenBatch moved(const TokenBatch& batch, c10::Device device) {
  return {batch.tokens.to(device), batch.targets.to(device)};
}

void check(const BatchOptions& options) {
  check_batch_and_seq(options.batch, options.seq);
  if (options.seq < 2) {
    throw std::invalid_argument(
        fmt::format("seq = {}: must be at least 2, or no token has a next one", options.seq));
  }
}

class SyntheticData : public TokenData {
 public:
  SyntheticData(const ModelConfig& config, const BatchOptions& options)
      : config_(config), options_(options) {
    check(options_);
  }

  TokenBatch train_batch(int64_t, int64_t micro_step) override {
    const auto known = batches_.find(micro_step);
    if (known != batches_.end()) return known->second;
    return batches_.emplace(micro_step, make(Stream::training, micro_step)).first->second;
  }
  TokenBatch evaluation_batch(int64_t index) override { return make(Stream::evaluation, index); }
  std::string name() const override { return "synthetic"; }

 private:
  TokenBatch make(Stream stream, int64_t index) const {
    auto initializer = initializer_of(batch_seed(options_.seed, stream, index, 0));
    return moved(random_token_batch(config_, options_.batch, options_.seq, initializer),
                 options_.device);
  }

  ModelConfig config_;
  BatchOptions options_;
  std::map<int64_t, TokenBatch> batches_;
};

/// A range of the file's bytes.
struct Part {
  int64_t first = 0;
  int64_t bytes = 0;
};

class TextFileData : public TokenData {
 public:
  TextFileData(const std::filesystem::path& file, const BatchOptions& options)
      : options_(options), file_(file) {
    check(options_);
    if (file_.bytes() == 0) {
      throw std::invalid_argument(
          fmt::format("{}: is empty (0 bytes); name a file with text in it", file.string()));
    }
    const int64_t held_out = file_.bytes() / kHeldOutPart;
    if (held_out < options_.seq) {
      throw std::invalid_argument(fmt::format(
          "{}: has {} bytes; must have at least {} x seq_len ({}), so that its last tenth, which "
          "is held out for evaluation, holds one window of seq_len bytes; name a longer file or "
          "lower --seq-len",
          file.string(), file_.bytes(), kHeldOutPart, options_.seq));
    }
    training_ = {0, file_.bytes() - held_out};
    evaluation_ = {training_.bytes, held_out};
  }

  TokenBatch train_batch(int64_t step, int64_t micro_step) override {
    return windows(training_, batch_seed(options_.seed, Stream::training, step, micro_step));
  }
  TokenBatch evaluation_batch(int64_t index) override {
    return windows(evaluation_, batch_seed(options_.seed, Stream::evaluation, index, 0));
  }
  std::string name() const override { return file_.path().filename().string(); }

 private:
  TokenBatch windows(const Part& part, uint64_t seed) const {
    auto initializer = initializer_of(seed);
    const at::Tensor starts = initializer.tokens({options_.batch}, part.bytes - options_.seq + 1);
    const at::Tensor tokens = at::empty({options_.batch, options_.seq}, at::kLong);
    auto* to = tokens.mutable_data_ptr<int64_t>();
    std::vector<uint8_t> window(static_cast<size_t>(options_.seq));
    for (int64_t sample = 0; sample < options_.batch; ++sample, to += options_.seq) {
      const int64_t start = part.first + starts.const_data_ptr<int64_t>()[sample];
      file_.read(start, options_.seq, window.data());
      std::ranges::copy(window, to);
    }
    return moved({tokens, next_token_targets(tokens)}, options_.device);
  }

  BatchOptions options_;
  ReadableFile file_;
  Part training_;
  Part evaluation_;
};

}  // namespace

std::unique_ptr<TokenData> synthetic_data(const ModelConfig& config, const BatchOptions& options) {
  return std::make_unique<SyntheticData>(config, options);
}

std::unique_ptr<TokenData> text_file_data(const std::filesystem::path& file,
                                          const ModelConfig& config, const BatchOptions& options) {
  if (config.vocab_size() < kByteValues) {
    throw std::invalid_argument(
        fmt::format("vocab_size = {}: a text file is trained on byte by byte, and a byte has {} "
                    "values; pass --vocab-size {} or more",
                    config.vocab_size(), kByteValues, kByteValues));
  }
  return std::make_unique<TextFileData>(file, options);
}

}  // namespace tinyllama::training
