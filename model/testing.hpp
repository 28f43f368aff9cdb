// Helpers of the tests in this folder: small shapes, plain loops.
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cctype>
#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

#include "model/config.hpp"

namespace tinyllama {

/// How GoogleTest prints a value that has a name; it would print bytes.
template <class Enum>
requires(std::is_enum_v<Enum>&& requires(Enum value) {
  to_string(value);
}) void PrintTo(const Enum& value, std::ostream* out) {
  *out << to_string(value);
}

}  // namespace tinyllama

namespace tinyllama::testing {

/// Names a test of INSTANTIATE_TEST_SUITE_P by its parameter, as GoogleTest prints that: words and
/// numbers, for a name can hold nothing else.
inline constexpr auto kNamedByParameter = [](const auto& instance) {
  std::string name;
  for (const char c : ::testing::PrintToString(instance.param)) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      name += c;
    } else if (!name.empty() && name.back() != '_') {
      name += '_';
    }
  }
  if (name.ends_with('_')) name.pop_back();
  return name;
};

/// Grouped-query attention (2 groups), odd sizes elsewhere, so that swapped dimensions do not go
/// unnoticed.
inline ModelConfig small_config() {
  return ModelConfig({.vocab_size = 11,
                      .hidden_dim = 12,
                      .n_layers = 2,
                      .n_heads = 6,
                      .n_kv_heads = 3,
                      .intermediate_dim = 7});
}

/// The message of the exception of this type that `f` throws, or "no error".
template <typename Exception, typename F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Exception& error) {
    return error.what();
  }
  return "no error";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
#define EXPECT_CONTAINS(text, part) \
  EXPECT_PRED2(::tinyllama::testing::contains, std::string(text), std::string(part))

/// Values of a float64 tensor, row by row.
inline std::vector<double> values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().contiguous().view(-1);
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

inline void expect_near(const std::vector<double>& actual, const std::vector<double>& expected,
                        double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], tolerance) << "at index " << i;
}

}  // namespace tinyllama::testing
