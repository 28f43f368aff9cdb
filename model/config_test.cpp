#include "model/config.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace tinyllama {
namespace {

std::string error_of(const ModelDimensions& dimensions) {
  try {
    ModelConfig config(dimensions);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(ModelConfig, DefaultsAreTheWorkshopsTiny) {
  const ModelConfig config;
  EXPECT_EQ(config.head_dim(), 32);
  EXPECT_EQ(config.kv_dim(), 128);
  EXPECT_EQ(config.n_groups(), 2);
}

TEST(ModelConfig, NamesFieldValueAndRule) {
  EXPECT_EQ(error_of({.hidden_dim = 250}),
            "n_heads = 8: must divide hidden_dim = 250, but 250 % 8 = 2");
  EXPECT_EQ(error_of({.n_kv_heads = 3}), "n_kv_heads = 3: must divide n_heads = 8, but 8 % 3 = 2");
  EXPECT_EQ(error_of({.vocab_size = 0}), "vocab_size = 0: must be between 1 and 1048576");
  EXPECT_EQ(error_of({.n_layers = -4}), "n_layers = -4: must be between 1 and 1048576");
  EXPECT_EQ(error_of({.intermediate_dim = int64_t{1} << 40}),
            "intermediate_dim = 1099511627776: must be between 1 and 1048576");
  EXPECT_NE(error_of({.hidden_dim = 24, .n_heads = 8}).find("head_dim must be even"),
            std::string::npos);
  EXPECT_NE(error_of({.norm_eps = 0}).find("norm_eps = 0: must be positive"), std::string::npos);
}

TEST(ModelConfig, ChecksBatchAndSeq) {
  EXPECT_NO_THROW(check_batch_and_seq(1, 1));
  EXPECT_THROW(check_batch_and_seq(0, 1), std::invalid_argument);
  EXPECT_THROW(check_batch_and_seq(1, -1), std::invalid_argument);
}

}  // namespace
}  // namespace tinyllama
