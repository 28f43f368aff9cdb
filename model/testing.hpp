// Helpers of tests: how values are printed and tests named, a small shape, texts and errors.
#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <ostream>
#include <string>
#include <type_traits>

#include "model/config.hpp"
#include "tests/fuzzing/file_testing.hpp"

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

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
#define EXPECT_CONTAINS(text, part) \
  EXPECT_PRED2(::tinyllama::testing::contains, std::string(text), std::string(part))

}  // namespace tinyllama::testing
