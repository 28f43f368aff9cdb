#include "tests/fuzzing/fuzzing.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace tinyllama::testing {
namespace {

constexpr std::string_view kTokens[] = {"{",
                                        "}",
                                        "[",
                                        "]",
                                        ",",
                                        ":",
                                        "\"",
                                        "\\",
                                        "\\u0000",
                                        "\\ud800",
                                        " ",
                                        "null",
                                        "true",
                                        "-",
                                        ".",
                                        "e9",
                                        "F32",
                                        "F16",
                                        "BF16",
                                        "I64",
                                        "U8",
                                        "dtype",
                                        "0",
                                        "shape",
                                        "1e999",
                                        "\"x\":",
                                        "{\"a\":",
                                        "[[[[[[",
                                        "\xff",
                                        "\xc3\xa9",
                                        ",\"shape\":[2]",
                                        "__metadata__",
                                        {"\0}", 2},
                                        "data_offsets"};
constexpr std::string_view kNumbers[] = {"0",
                                         "1",
                                         "-1",
                                         "2",
                                         "64",
                                         "2147483647",
                                         "2147483648",
                                         "4294967295",
                                         "4294967296",
                                         "-0",
                                         "1.0",
                                         "1e3",
                                         "1e99",
                                         "4611686018427387904",
                                         "9223372036854775807",
                                         "9223372036854775808",
                                         "18446744073709551615",
                                         "18446744073709551616",
                                         "-9223372036854775808"};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

int64_t fuzz_count(int64_t short_count, int64_t long_count) {
  const char* wanted = std::getenv("TINY_LLAMA_LONG_TESTS");
  return wanted != nullptr && std::string_view(wanted) == "1" ? long_count : short_count;
}

std::string Mutator::mutate(std::string text, const std::string& other) {
  for (size_t times = 1 + below(4); times > 0; --times) mutate_once(text, other);
  return text;
}

void Mutator::mutate_once(std::string& text, const std::string& other) {
  const size_t at = below(text.size());
  const size_t length = below(one_in(4) ? text.size() : 9);
  switch (below(10)) {
    case 0:
      if (!text.empty()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
      break;
    case 1:
      if (!text.empty()) text[at] = static_cast<char>(below(256));
      break;
    case 2:
      text.erase(at, length);
      break;
    case 3:
      text.insert(at, text.substr(at, length));
      break;
    case 4:
      text.replace(at, length, other.substr(below(other.size()), length));
      break;
    case 5:
      if (one_in(4)) text.resize(at);
      break;
    case 6:
      insert_token(text);
      break;
    case 7:
      remove_member(text);
      break;
    default:
      replace_number(text);
  }
}

void Mutator::insert_token(std::string& text) {
  const size_t at = one_in(4) ? text.size() : below(text.size());
  text.insert(at, kTokens[below(std::size(kTokens))]);
}

// What stands between two commas or opening braces, with the second.
void Mutator::remove_member(std::string& text) {
  const size_t before = text.find_first_of("{,", below(text.size()));
  if (before == std::string::npos) return;
  const size_t after = text.find(',', before + 1);
  if (after != std::string::npos) text.erase(before + 1, after - before);
}

// The first number behind a random place: some other, or its neighbour, which damages least.
void Mutator::replace_number(std::string& text) {
  const auto begin = std::find_if(text.begin() + static_cast<std::ptrdiff_t>(below(text.size())),
                                  text.end(), is_digit);
  const auto end = std::find_if_not(begin, text.end(), is_digit);
  if (begin == end) return;
  std::string digits(begin, end);
  switch (below(3)) {
    case 0:
      digits = kNumbers[below(std::size(kNumbers))];
      break;
    case 1:
      digits = std::to_string(number());
      break;
    default:
      digits.back() = digits.back() == '9' ? '8' : static_cast<char>(digits.back() + 1);
  }
  text.replace(begin, end, digits);
}

}  // namespace tinyllama::testing
