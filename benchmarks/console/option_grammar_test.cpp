#include "benchmarks/console/option_grammar.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

#include "model/testing.hpp"

namespace tinyllama::console {
namespace {

using Numbers = std::vector<int64_t>;

Numbers numbers(std::string_view text) {
  return parse_numbers("--batch", text);
}

std::string numbers_error(std::string_view text) {
  return testing::error_of<std::invalid_argument>([&] { parse_numbers("--batch", text); });
}

std::string size_error(std::string_view text) {
  return testing::error_of<std::invalid_argument>(
      [&] { parse_memory_size("--memory-limit", text); });
}

TEST(ListGrammarTest, SingleNumbersAndLists) {
  EXPECT_EQ(numbers("8"), Numbers({8}));
  EXPECT_EQ(numbers("4,8,16"), Numbers({4, 8, 16}));
  EXPECT_EQ(numbers("9223372036854775807"), Numbers({INT64_MAX}));
}

TEST(ListGrammarTest, RangesByFactor) {
  EXPECT_EQ(numbers("64:512:*2"), Numbers({64, 128, 256, 512}));
  EXPECT_EQ(numbers("64:500:*2"), Numbers({64, 128, 256}));
  EXPECT_EQ(numbers("3:100:*10"), Numbers({3, 30}));
  EXPECT_EQ(numbers("5:5:*2"), Numbers({5}));
}

TEST(ListGrammarTest, RangesByIncrement) {
  EXPECT_EQ(numbers("128:512:+128"), Numbers({128, 256, 384, 512}));
  EXPECT_EQ(numbers("1:6:+2"), Numbers({1, 3, 5}));
  EXPECT_EQ(numbers("7:8:+100"), Numbers({7}));
}

TEST(ListGrammarTest, JoinsRangesKeepsOrderAndDropsRepetitions) {
  EXPECT_EQ(numbers("64:256:*2,100,1:3:+1"), Numbers({64, 128, 256, 100, 1, 2, 3}));
  EXPECT_EQ(numbers("16,4,16,4,8"), Numbers({16, 4, 8}));
  EXPECT_EQ(numbers("2:8:*2,4,2:8:+2"), Numbers({2, 4, 8, 6}));
}

TEST(ListGrammarTest, RangesEndBeforeTheyOverflow) {
  EXPECT_EQ(numbers("4611686018427387904:9223372036854775807:*2"), Numbers({int64_t{1} << 62}));
  EXPECT_EQ(numbers("9223372036854775806:9223372036854775807:+1"),
            Numbers({INT64_MAX - 1, INT64_MAX}));
  EXPECT_EQ(numbers("5:9223372036854775807:+9223372036854775807"), Numbers({5}));
  EXPECT_EQ(numbers("1:9223372036854775807:*2").size(), 63U);
  EXPECT_CONTAINS(numbers_error("9223372036854775808"), "write numbers as");
  EXPECT_CONTAINS(numbers_error("1:99999999999999999999:*2"), "write numbers as");
}

TEST(ListGrammarTest, ErrorsNameOptionTextAndRule) {
  EXPECT_EQ(numbers_error("0"), "--batch '0': 0 is not at least 1");
  EXPECT_EQ(numbers_error("4,-3"), "--batch '4,-3': -3 is not at least 1");
  EXPECT_EQ(numbers_error("8:4:*2"), "--batch '8:4:*2': the last value is below the first");
  EXPECT_EQ(numbers_error("1:8:*1"), "--batch '1:8:*1': a factor must be at least 2");
  EXPECT_CONTAINS(numbers_error("1:8:+0"), "0 is not at least 1");
  for (const char* junk :
       {"",       ",",        "8,",    ",8",    "8,,9",    " 8",  "8 ",    "+8",
        "eight",  "8x",       "0x8",   "1.5",   "1e3",     "1:2", "1:2:3", "1:2:*",
        "1:2:-3", "1:2:*3:4", ":2:*2", "1::*2", "1:2:*2x", "::",  "8;9"}) {
    const std::string error = numbers_error(junk);
    EXPECT_CONTAINS(error, "--batch '");
    EXPECT_CONTAINS(error, "write numbers as 8 or 4,8,16 or 64:512:*2") << junk;
  }
}

TEST(ListGrammarTest, HugeRangesAreErrorsAtOnce) {
  EXPECT_EQ(numbers("1:1000:+1").size(), 1000U);
  EXPECT_EQ(numbers_error("1:1001:+1"), "--batch '1:1001:+1': more than 1000 values");
  EXPECT_CONTAINS(numbers_error("1:9223372036854775807:+1"), "more than 1000 values");
}

TEST(ListGrammarTest, Names) {
  EXPECT_EQ(parse_names("--sizes", "tiny"), std::vector<std::string>({"tiny"}));
  EXPECT_EQ(parse_names("--sizes", "small,tiny,small"),
            std::vector<std::string>({"small", "tiny"}));
  for (const char* text : {"", ",", "a,", ",a", "a,,b"}) {
    const std::string error =
        testing::error_of<std::invalid_argument>([&] { parse_names("--sizes", text); });
    EXPECT_EQ(error,
              "--sizes '" + std::string(text) + "': an empty name; write names as a or a,b,c");
  }
}

TEST(ListGrammarTest, MemorySizes) {
  const auto size = [](std::string_view text) { return parse_memory_size("--memory-limit", text); };
  EXPECT_EQ(size("1"), 1);
  EXPECT_EQ(size("1048576"), 1048576);
  EXPECT_EQ(size("3B"), 3);
  EXPECT_EQ(size("2KiB"), 2048);
  EXPECT_EQ(size("512 MiB"), int64_t{512} << 20);
  EXPECT_EQ(size("8GiB"), int64_t{8} << 30);
  EXPECT_EQ(size("1TiB"), int64_t{1} << 40);
  EXPECT_EQ(size("2kB"), 2'000);
  EXPECT_EQ(size("2KB"), 2'000);
  EXPECT_EQ(size("5MB"), 5'000'000);
  EXPECT_EQ(size("1.5GB"), 1'500'000'000);
  EXPECT_EQ(size("2TB"), 2'000'000'000'000);
  EXPECT_EQ(size("0.5KiB"), 512);
}

TEST(ListGrammarTest, MemorySizesThatAreNone) {
  for (const char* text : {"0", "0GiB", "-1", "-8GiB", "0.5", "nan", "inf", "-inf", "nanGiB",
                           "infinity", "9e18GiB", "9000000TiB"}) {
    const std::string error = size_error(text);
    EXPECT_EQ(error, "--memory-limit '" + std::string(text) +
                         "': must be at least 1 byte and below 8 EiB");
  }
  for (const char* text : {"", "GiB", "8gib", "8G", "8 GiB free", "8GiB ", " 8GiB", "eight",
                           "1e999", "0x10", "8,5GB"}) {
    const std::string error = size_error(text);
    EXPECT_CONTAINS(error, "--memory-limit '" + std::string(text) + "'");
    EXPECT_CONTAINS(error, "write an amount as 8GiB");
  }
}

TEST(PatternTest, FindsAPartOfAName) {
  EXPECT_TRUE(parse_pattern("--filter", "ffn|loss")("loss/forward"));
  EXPECT_FALSE(parse_pattern("--filter", "^forward")("loss/forward"));
  EXPECT_TRUE(parse_pattern("--filter", "batch:[0-9]{1,2}/")("ffn/batch:16/seq:8"));
}

// The standard library takes for ever with the first, runs out of stack with parentheses and long
// texts, and computes a repeat without a look at its size.
TEST(PatternTest, NoPatternTakesForEverOrCrashes) {
  const std::string name = "ffn/forward_backward/fused/very_large/amp_bf16/batch:16/seq:1024";
  EXPECT_FALSE(parse_pattern("--filter", "(((.*)*)*)*#")(name));
  std::string names = name;
  for (int i = 0; i < 200; ++i) names += "|" + name;
  EXPECT_TRUE(parse_pattern("--filter", "^(" + names + ")$")(name));
  // GCC 12 takes "a" + std::string(...) for a write beyond the end
  std::string parentheses(100'000, '(');
  parentheses.append("a").append(100'000, ')');
  const std::pair<std::string, const char*> refused[] = {
      {"norm/(", "--filter 'norm/(': is not a regular expression"},
      {parentheses, "more than 100 parentheses within each other"},
      {"a{1,06666666666666666666}", "a repeat of more than 4 digits"},
      {std::string(100'000, 'a'), "more than 2000 characters without '|'"}};
  for (const auto& [text, rule] : refused) {
    const auto error =
        testing::error_of<std::invalid_argument>([&] { parse_pattern("--filter", text); });
    EXPECT_CONTAINS(error, rule);
    EXPECT_LT(error.size(), 400U);
  }
}

}  // namespace
}  // namespace tinyllama::console
