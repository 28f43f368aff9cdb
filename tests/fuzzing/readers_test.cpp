// The readers on the inputs that the fuzzer kept (tests/campaign/sanitizers.py makes new ones),
// whole and damaged at random, whatever the reader: it refuses them with a message that names the
// file, or what it read keeps every rule.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <random>

#include "model/proof_record.hpp"
#include "model/safetensors.hpp"
#include "tests/fuzzing/file_testing.hpp"
#include "tests/fuzzing/readers_fuzz.hpp"

// Of the address sanitizer's library; absent from programs without it.
extern "C" __attribute__((weak)) void __asan_init();
extern "C" __attribute__((weak)) void __sanitizer_set_report_path(const char* path);

// What they start with. libtorch's memory at exit is no leak of ours; a request that no memory can
// serve is an error of the program's own, as it is without sanitizers.
// NOLINTBEGIN: the names are the sanitizers'
extern "C" const char* __asan_default_options() {
  return "detect_leaks=0:allocator_may_return_null=1:malloc_context_size=5";
}
extern "C" const char* __ubsan_default_options() {
  return "print_stacktrace=1";
}
// NOLINTEND

namespace tinyllama::fuzzing {
namespace {

// Otherwise the sanitizers would not watch what the tests below call.
TEST(SanitizerTest, SeesAByteReadBehindAHeader) {
  if (__asan_init == nullptr) GTEST_SKIP() << "only in the program built with sanitizers";
  const std::string header = R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]})";
  // with nothing of its own behind it, not even a terminating zero
  const auto exact = std::make_unique<char[]>(header.size());
  std::ranges::copy(header, exact.get());
  const auto read_behind = [&] {
    // Reports may go to a file, where nobody would know that this one is wanted.
    __sanitizer_set_report_path("stderr");
    parse_safetensors_header({exact.get(), header.size() + 1}, 4, "file");
  };
  EXPECT_DEATH(read_behind(), "heap-buffer-overflow");
}

class ReaderTest : public ::testing::TestWithParam<std::string> {
 protected:
  static std::vector<std::string> kept_inputs() {
    const std::filesystem::path corpus(TINY_LLAMA_SOURCE_DIR "/tests/fuzzing/corpus");
    std::vector<std::string> inputs;
    for (const auto& entry : std::filesystem::directory_iterator(corpus / GetParam()))
      inputs.push_back(testing::read_bytes(entry.path()));
    std::ranges::sort(inputs);
    return inputs;
  }
};

TEST_P(ReaderTest, RefusesKeptInputsByNameOrReadsThem) {
  std::vector<std::string> inputs = kept_inputs();
  EXPECT_FALSE(inputs.empty());
  inputs.insert(inputs.end(), {"", std::string(100'000, '[')});
  for (const std::string& input : inputs)
    EXPECT_EQ(read_with(GetParam(), input).fault, "") << input;
}

// One to four of: a bit flipped, a digit counted on, which damages least, a range removed, doubled,
// or copied over another one, a token inserted, the end cut off.
std::string damaged(std::string text, std::mt19937_64& random) {
  constexpr std::string_view kTokens[] = {
      "{", "}", "[",  "]",    ",",       ":",    "\"",
      "-", ".", "e9", "null", "\\ud800", "\xff", "9223372036854775808",
      "=", "\n"};
  const auto below = [&](size_t end) { return end == 0 ? 0 : random() % end; };
  for (size_t times = 1 + below(4); times > 0; --times) {
    const size_t at = below(text.size());
    const size_t length = below(below(4) == 0 ? text.size() : 9);
    const auto digit = std::find_if(text.begin() + static_cast<std::ptrdiff_t>(at), text.end(),
                                    [](char c) { return c >= '0' && c <= '9'; });
    switch (below(8)) {
      case 0:
        if (!text.empty()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(at, length));
        break;
      case 3:
        text.replace(at, length, text.substr(below(text.size()), length));
        break;
      case 4:
        text.insert(at, kTokens[below(std::size(kTokens))]);
        break;
      case 5:
        if (below(4) == 0) text.resize(at);
        break;
      default:
        if (digit != text.end()) *digit = *digit == '9' ? '8' : static_cast<char>(*digit + 1);
    }
  }
  return text;
}

TEST_P(ReaderTest, RefusesDamagedInputsByNameOrReadsWhatKeepsTheRules) {
  constexpr int64_t kInputs = 3'000;
  std::mt19937_64 random(20261121);
  const std::vector<std::string> inputs = kept_inputs();
  int64_t refused = 0;
  int64_t faults = 0;
  for (int64_t i = 0; i < kInputs; ++i) {
    const std::string input = damaged(inputs[static_cast<size_t>(i) % inputs.size()], random);
    const Reading reading = read_with(GetParam(), input);
    EXPECT_EQ(reading.fault, "") << input;
    refused += reading.is_refused;
    faults += !reading.fault.empty();
  }
  // Neither branch is idle.
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, kInputs);
  testing::ProofRecord proof(
      {"Weights in and out",
       fmt::format("damaged inputs of {} neither refused by name nor keeping every rule",
                   GetParam()),
       __asan_init != nullptr ? "the rules, under address and undefined-behaviour sanitizers"
                              : "the rules, checked anew",
       0});
  proof.expect_none_wrong(kInputs, faults, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Readers, ReaderTest, ::testing::ValuesIn(reader_names()),
                         [](const auto& reader) { return reader.param; });

}  // namespace
}  // namespace tinyllama::fuzzing
