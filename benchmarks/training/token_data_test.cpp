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
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::training {
namespace {

namespace fs = std::filesystem;
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

/// A folder of its own for each test, and a text in which no two windows are alike.
class TextFileTest : public ::testing::Test {
 protected:
  fs::path write(const std::string& text, const std::string& name = "text.txt") {
    std::ofstream(folder() / name, std::ios::binary) << text;
    return folder() / name;
  }
  const fs::path& folder() const { return folder_.path(); }

  static std::string counting_text(int numbers = 500) {
    std::string text;
    for (int number = 0; number < numbers; ++number) text += std::to_string(number) + ' ';
    return text;
  }
  /// What opening the file says; fails the test where it says nothing.
  template <typename Error = std::invalid_argument>
  static std::string error_of(const fs::path& file, const ModelConfig& config = byte_config(),
                              const BatchOptions& with = options()) {
    try {
      text_file_data(file, config, with);
    } catch (const Error& error) {
      return error.what();
    }
    ADD_FAILURE() << file << " was accepted";
    return {};
  }

 private:
  TemporaryFolder folder_;
};

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

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
      expect_contains(text, sample_text(batch, sample));
      seen.insert(sample_text(batch, sample));
    }
  }
  EXPECT_GT(seen.size(), 50u) << "60 windows of a text of 1,890 bytes should rarely be the same";
  EXPECT_EQ(data->name(), "text.txt");
}

TEST_F(TextFileTest, AllByteValuesAreTokens) {
  std::string text;
  for (int i = 0; i < 2560; ++i) text += static_cast<char>(i / 10);
  const auto data = text_file_data(write(text), byte_config(), options());
  // Bytes above 127 must not become negative: the held-out tenth is 230 to 255.
  const TokenBatch batch = data->evaluation_batch(0);
  EXPECT_GE(batch.tokens.min().item<int64_t>(), 230);
  EXPECT_LE(batch.tokens.max().item<int64_t>(), 255);
}

TEST_F(TextFileTest, TheLastTenthIsHeldOut) {
  const auto data = text_file_data(write(std::string(900, 'a') + std::string(100, 'b')),
                                   byte_config(), options());
  for (int64_t index = 0; index < 50; ++index) {
    const TokenBatch trained = data->train_batch(index, 0);
    EXPECT_TRUE((trained.tokens == 'a').all().item<bool>());
    EXPECT_TRUE((data->evaluation_batch(index).tokens == 'b').all().item<bool>());
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
  const auto again = text_file_data(file, byte_config(), options(5));
  const auto other = text_file_data(file, byte_config(), options(6));
  EXPECT_TRUE(same(data->train_batch(9, 1), again->train_batch(9, 1)));
  EXPECT_TRUE(same(data->evaluation_batch(4), again->evaluation_batch(4)));
  EXPECT_FALSE(same(data->train_batch(9, 1), other->train_batch(9, 1)));
  EXPECT_FALSE(same(data->train_batch(9, 1), data->train_batch(9, 2)));
  EXPECT_FALSE(same(data->train_batch(9, 1), data->train_batch(1, 9)));
  EXPECT_FALSE(same(data->evaluation_batch(4), data->evaluation_batch(5)));
}

TEST_F(TextFileTest, TheShortestFileHasTenTimesTheSequence) {
  const fs::path shortest = write(std::string(10 * kSeq, 'x'));
  EXPECT_NO_THROW(text_file_data(shortest, byte_config(), options())->evaluation_batch(0));
  const fs::path shorter = write(std::string(10 * kSeq - 1, 'x'));
  const std::string error = error_of(shorter);
  expect_contains(error, shorter.string());
  expect_contains(error, "has 79 bytes");
  expect_contains(error, "10 x seq_len (8)");
}

TEST_F(TextFileTest, FilesThatCannotBeTextAreNamedWithTheReason) {
  expect_contains(error_of(write("")), "text.txt: is empty (0 bytes)");
  expect_contains(error_of(folder()), folder().string() + ": is a folder");
  expect_contains(error_of(folder() / "none.txt"),
                  "none.txt: cannot be read: No such file or directory");
  const fs::path pipe = folder() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_contains(error_of(pipe), "pipe: is not a regular file");
}

TEST_F(TextFileTest, AnUnreadableFileIsNamed) {
  if (::geteuid() == 0) GTEST_SKIP() << "root reads every file";
  const fs::path file = write(counting_text());
  fs::permissions(file, fs::perms::none);
  expect_contains(error_of(file), "text.txt: cannot be read: Permission denied");
}

TEST_F(TextFileTest, TheVocabularyHoldsEveryByte) {
  const std::string error = error_of(write(counting_text()), byte_config(255));
  expect_contains(error, "vocab_size = 255");
  expect_contains(error, "--vocab-size 256");
}

TEST_F(TextFileTest, AFileCutShortIsAnErrorAndNotTheEndOfTheProcess) {
  const fs::path file = write(counting_text(5000));
  const auto data = text_file_data(file, byte_config(), options());
  EXPECT_NO_THROW(data->train_batch(1, 0));
  fs::resize_file(file, 10);
  for (const bool training : {true, false}) {
    try {
      training ? data->train_batch(2, 0) : data->evaluation_batch(0);
      ADD_FAILURE() << "a file cut short was read";
    } catch (const std::runtime_error& error) {
      expect_contains(error.what(), "text.txt: had 23890 bytes when it was opened and has 10 now");
    }
  }
}

TEST_F(TextFileTest, AFileThatGrowsStaysTheSameData) {
  const fs::path file = write(counting_text());
  const auto data = text_file_data(file, byte_config(), options());
  const TokenBatch before = data->train_batch(3, 0);
  std::ofstream(file, std::ios::app) << "more";
  EXPECT_TRUE(same(before, data->train_batch(3, 0)));
}

}  // namespace
}  // namespace tinyllama::training
