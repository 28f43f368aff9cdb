// The readers on the inputs that the fuzzer kept: tests/campaign/readers.py makes new ones.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/fuzzing/file_testing.hpp"
#include "tests/fuzzing/readers_fuzz.hpp"

namespace tinyllama::fuzzing {
namespace {

class ReaderTest : public ::testing::TestWithParam<std::string> {};

TEST_P(ReaderTest, RefusesKeptInputsByNameOrReadsThem) {
  const auto folder =
      std::filesystem::path(TINY_LLAMA_SOURCE_DIR) / "tests/fuzzing/corpus" / GetParam();
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    EXPECT_EQ(read_with(GetParam(), testing::read_bytes(entry.path())), "") << entry.path();
    ++count;
  }
  EXPECT_GT(count, 0);
  EXPECT_EQ(read_with(GetParam(), ""), "");
  EXPECT_EQ(read_with(GetParam(), std::string(100'000, '[')), "");
}

INSTANTIATE_TEST_SUITE_P(Readers, ReaderTest, ::testing::ValuesIn(reader_names()),
                         [](const auto& reader) { return reader.param; });

}  // namespace
}  // namespace tinyllama::fuzzing
