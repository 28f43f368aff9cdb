#include "benchmarks/training/token_data.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>

#include "model/loss.hpp"
#include "model/testing.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::training {
namespace {

namespace fs = std::filesystem;
using ::tinyllama::testing::contains;
using ::tinyllama::testing::error_of;
using ::tinyllama::testing::TemporaryFolder;

constexpr int64_t kBatch = 3;
constexpr int64_t kSeq = 8;

ModelConfig byte_config(int64_t vocab_size = 256) {
  return ModelConfig({.vocab_size = vocab_size});
}

BatchOptions options(uint64_t seed = 1) {
  return {.batch = kBatch, .seq = kSeq, .seed = seed};
}

bool same(const TokenBatch& a, const TokenBatch& b) {
  return at::equal(a.tokens, b.tokens) && at::equal(a.targets, b.targets);
}

std::string sample_text(const TokenBatch& batch, int64_t sample) {
  std::string text;
  for (int64_t position = 0; position < batch.tokens.size(1); ++position) {
    text += static_cast<char>(batch.tokens[sample][position].item<int64_t>());
  }
  return text;
}

/// A text in which no two windows are alike.
std::string counting_text(int numbers = 500) {
  std::string text;
  for (int number = 0; number < numbers; ++number) text += std::to_string(number) + ' ';
  return text;
}

class TextFileTest : public ::testing::Test {
 protected:
  const fs::path& folder() const { return folder_.path(); }
  fs::path write(const std::string& text) const {
    std::ofstream(folder() / "text.txt", std::ios::binary) << text;
    return folder() / "text.txt";
  }
  /// What opening the file says; fails the test where it says nothing.
  static std::string refusal(const fs::path& file, const ModelConfig& config = byte_config()) {
    return error_of<std::invalid_argument>([&] { text_file_data(file, config, options()); });
  }

 private:
  TemporaryFolder folder_;
};

TEST(SyntheticDataTest, BatchesHaveTheModelsTokensAndTheirTargets) {
  const auto data = synthetic_data(byte_config(10), options());
  const TokenBatch batch = data->train_batch(1, 0);
  EXPECT_EQ(batch.tokens.sizes(), at::IntArrayRef({kBatch, kSeq}));
  EXPECT_EQ(batch.tokens.scalar_type(), at::kLong);
  EXPECT_GE(batch.tokens.min().item<int64_t>(), 0);
  EXPECT_LT(batch.tokens.max().item<int64_t>(), 10);
  EXPECT_TRUE(at::equal(batch.targets, next_token_targets(batch.tokens)));
  EXPECT_EQ(data->name(), "synthetic");
}

TEST(SyntheticDataTest, EveryStepSeesTheSameBatchesAndEachMicroStepItsOwn) {
  const auto data = synthetic_data(byte_config(), options());
  EXPECT_TRUE(same(data->train_batch(1, 0), data->train_batch(7, 0)));
  EXPECT_TRUE(same(data->train_batch(1, 1), data->train_batch(7, 1)));
  EXPECT_FALSE(same(data->train_batch(1, 0), data->train_batch(1, 1)));
}

TEST(SyntheticDataTest, TheSeedDecides) {
  const auto first = synthetic_data(byte_config(), options(5));
  // Asked in another order: what a batch holds must not depend on it.
  const auto again = synthetic_data(byte_config(), options(5));
  const TokenBatch later = again->train_batch(1, 1);
  EXPECT_TRUE(same(first->train_batch(1, 0), again->train_batch(1, 0)));
  EXPECT_TRUE(same(first->train_batch(1, 1), later));
  EXPECT_TRUE(same(first->evaluation_batch(2), again->evaluation_batch(2)));
  const auto other = synthetic_data(byte_config(), options(6));
  EXPECT_FALSE(same(first->train_batch(1, 0), other->train_batch(1, 0)));
  // The generator itself knows the low 32 bits only.
  const auto high = synthetic_data(byte_config(), options(5 + (uint64_t{1} << 32)));
  EXPECT_FALSE(same(first->train_batch(1, 0), high->train_batch(1, 0)));
}

TEST(SyntheticDataTest, EvaluationIsNotWhatIsTrainedOn) {
  const auto data = synthetic_data(byte_config(), options());
  EXPECT_FALSE(same(data->evaluation_batch(0), data->train_batch(1, 0)));
  EXPECT_FALSE(same(data->evaluation_batch(0), data->evaluation_batch(1)));
  EXPECT_TRUE(same(data->evaluation_batch(0), data->evaluation_batch(0)));
}

TEST(SyntheticDataTest, RefusesSizesWithoutANextToken) {
  EXPECT_THROW(synthetic_data(byte_config(), {.batch = 0, .seq = 8}), std::invalid_argument);
  EXPECT_THROW(synthetic_data(byte_config(), {.batch = 1, .seq = 1}), std::invalid_argument);
}

TEST_F(TextFileTest, SamplesAreWindowsOfTheText) {
  const std::string text = counting_text();
  const auto data = text_file_data(write(text), byte_config(), options());
  std::set<std::string> seen;
  for (int64_t step = 1; step <= 20; ++step) {
    const TokenBatch batch = data->train_batch(step, 0);
    ASSERT_EQ(batch.tokens.sizes(), at::IntArrayRef({kBatch, kSeq}));
    EXPECT_TRUE(at::equal(batch.targets, next_token_targets(batch.tokens)));
    for (int64_t sample = 0; sample < kBatch; ++sample) {
      EXPECT_TRUE(contains(text, sample_text(batch, sample)));
      seen.insert(sample_text(batch, sample));
    }
  }
  EXPECT_GT(seen.size(), 50u) << "60 windows of a text of 1,890 bytes should rarely be the same";
  EXPECT_EQ(data->name(), "text.txt");
}

TEST_F(TextFileTest, AllByteValuesAreTokensAndTheLastTenthIsHeldOut) {
  std::string text;
  for (int i = 0; i < 2560; ++i) text += static_cast<char>(i / 10);
  const auto data = text_file_data(write(text), byte_config(), options());
  for (int64_t index = 0; index < 50; ++index) {
    // Bytes above 127 must not become negative.
    const at::Tensor held_out = data->evaluation_batch(index).tokens;
    EXPECT_GE(held_out.min().item<int64_t>(), 230);
    EXPECT_LE(held_out.max().item<int64_t>(), 255);
    EXPECT_LE(data->train_batch(index, 0).tokens.max().item<int64_t>(), 230);
  }
}

TEST_F(TextFileTest, EveryWindowOfBothPartsCanBeDrawn) {
  // 18 bytes to train on hold 17 windows of 2, the two that are held out hold one.
  const std::string text = "abcdefghijklmnopqrst";
  const auto data = text_file_data(write(text), byte_config(), {.batch = 1, .seq = 2, .seed = 3});
  std::set<std::string> trained;
  std::set<std::string> evaluated;
  for (int64_t i = 0; i < 400; ++i) {
    trained.insert(sample_text(data->train_batch(i, 0), 0));
    evaluated.insert(sample_text(data->evaluation_batch(i), 0));
  }
  EXPECT_EQ(trained.size(), 17u);
  EXPECT_EQ(*trained.begin(), "ab");
  EXPECT_EQ(*trained.rbegin(), "qr");
  EXPECT_EQ(evaluated, std::set<std::string>{"st"});
}

TEST_F(TextFileTest, BatchesFollowFromSeedStepAndMicroStep) {
  const fs::path file = write(counting_text());
  const auto data = text_file_data(file, byte_config(), options(5));
  const TokenBatch batch = data->train_batch(9, 1);
  // A file that grows stays the same data.
  std::ofstream(file, std::ios::app) << "more";
  EXPECT_TRUE(same(batch, data->train_batch(9, 1)));
  fs::resize_file(file, fs::file_size(file) - 4);
  const auto again = text_file_data(file, byte_config(), options(5));
  EXPECT_TRUE(same(batch, again->train_batch(9, 1)));
  EXPECT_TRUE(same(data->evaluation_batch(4), again->evaluation_batch(4)));
  const auto other = text_file_data(file, byte_config(), options(6));
  EXPECT_FALSE(same(batch, other->train_batch(9, 1)));
  EXPECT_FALSE(same(batch, data->train_batch(9, 2)));
  EXPECT_FALSE(same(batch, data->train_batch(1, 9)));
  EXPECT_FALSE(same(data->evaluation_batch(4), data->evaluation_batch(5)));
}

TEST_F(TextFileTest, WhatCannotBeTrainedOnIsNamedWithTheReason) {
  const fs::path pipe = folder() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::pair<std::string, std::string> cases[] = {
      {refusal(write(std::string(10 * kSeq - 1, 'x'))),
       "text.txt: has 79 bytes; must have at least 10 x seq_len (8)"},
      {refusal(write("")), "text.txt: is empty (0 bytes)"},
      {refusal(folder()), folder().string() + ": cannot be read: it is a folder"},
      {refusal(folder() / "none.txt"), "none.txt: cannot be read: No such file or directory"},
      {refusal(pipe), "pipe: cannot be read: it is not a regular file"},
      {refusal(write(counting_text()), byte_config(255)), "pass --vocab-size 256 or more"}};
  for (const auto& [said, expected] : cases) EXPECT_TRUE(contains(said, expected)) << said;
  if (::geteuid() == 0) return;  // root reads every file
  fs::permissions(folder() / "text.txt", fs::perms::none);
  EXPECT_TRUE(contains(refusal(folder() / "text.txt"), "cannot be read: Permission denied"));
}

TEST_F(TextFileTest, AFileCutShortIsAnErrorAndNotTheEndOfTheProcess) {
  const fs::path file = write(counting_text(5000));
  const auto data = text_file_data(file, byte_config(), options());
  EXPECT_NO_THROW(data->train_batch(1, 0));
  fs::resize_file(file, 10);
  for (const bool training : {true, false}) {
    const std::string said = error_of<std::runtime_error>(
        [&] { training ? data->train_batch(2, 0) : data->evaluation_batch(0); });
    EXPECT_TRUE(contains(said, "but had 23890 when it was opened")) << said;
  }
}

}  // namespace
}  // namespace tinyllama::training
