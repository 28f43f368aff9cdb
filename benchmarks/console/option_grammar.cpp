#include "benchmarks/console/option_grammar.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <regex>
#include <stdexcept>
#include <utility>

#include "core/strict_json.hpp"

namespace tinyllama::console {
namespace {

constexpr size_t kLongestList = 1000;
constexpr std::string_view kNumbersRule =
    "write numbers as 8 or 4,8,16 or 64:512:*2 (first:last:factor) or 128:1024:+128 "
    "(first:last:increment)";

[[noreturn]] void fail(std::string_view option, std::string_view text, std::string_view rule) {
  throw std::invalid_argument(fmt::format("{} '{}': {}", option, printable(text), rule));
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

int64_t parse_number(std::string_view option, std::string_view text, std::string_view whole) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) fail(option, whole, kNumbersRule);
  if (value < 1) fail(option, whole, fmt::format("{} is not at least 1", value));
  return value;
}

void append_range(std::string_view option, std::string_view text, std::vector<int64_t>& numbers) {
  const auto parts = split(text, ':');
  if (parts.size() != 3 || parts[2].size() < 2) fail(option, text, kNumbersRule);
  const int64_t first = parse_number(option, parts[0], text);
  const int64_t last = parse_number(option, parts[1], text);
  const int64_t step = parse_number(option, parts[2].substr(1), text);
  const char kind = parts[2].front();
  if (kind != '*' && kind != '+') fail(option, text, kNumbersRule);
  if (last < first) fail(option, text, "the last value is below the first");
  if (kind == '*' && step < 2) fail(option, text, "a factor must be at least 2");
  for (int64_t value = first; value <= last;) {
    numbers.push_back(value);
    if (numbers.size() > kLongestList) {
      fail(option, text, fmt::format("more than {} values", kLongestList));
    }
    if (kind == '*' ? value > last / step : value > last - step) break;
    value = kind == '*' ? value * step : value + step;
  }
}

// The standard library reads and compiles an expression by functions that call themselves, for each
// parenthesis and for each character that is not behind an alternative's '|'.
constexpr int kDeepestParentheses = 100;
constexpr size_t kLongestAlternative = 2000;
// And it computes the numbers of a{1,20} in a type that more digits do not fit into.
constexpr size_t kLongestRepeat = 4;

void check_pattern_size(std::string_view option, std::string_view text) {
  int depth = 0;
  size_t length = 0, digits = 0;
  bool is_in_braces = false;
  for (const char c : text) {
    if (c == '(') ++depth;
    if (c == ')') --depth;
    if (c == '{' || c == '}') is_in_braces = c == '{';
    digits = is_in_braces && c >= '0' && c <= '9' ? digits + 1 : 0;
    length = c == '|' ? 0 : length + 1;
    if (depth > kDeepestParentheses)
      fail(option, text,
           fmt::format("more than {} parentheses within each other", kDeepestParentheses));
    if (length > kLongestAlternative)
      fail(option, text, fmt::format("more than {} characters without '|'", kLongestAlternative));
    if (digits > kLongestRepeat)
      fail(option, text, fmt::format("a repeat of more than {} digits", kLongestRepeat));
  }
}

}  // namespace

std::vector<int64_t> parse_numbers(std::string_view option, std::string_view text) {
  std::vector<int64_t> numbers;
  for (const auto part : split(text, ',')) {
    if (part.find(':') != std::string_view::npos) {
      append_range(option, part, numbers);
    } else {
      numbers.push_back(parse_number(option, part, text));
    }
  }
  std::vector<int64_t> unique;
  for (const int64_t number : numbers) {
    if (std::find(unique.begin(), unique.end(), number) == unique.end()) unique.push_back(number);
  }
  return unique;
}

std::vector<std::string> parse_names(std::string_view option, std::string_view text) {
  std::vector<std::string> names;
  for (const auto part : split(text, ',')) {
    if (part.empty()) fail(option, text, "an empty name; write names as a or a,b,c");
    if (std::find(names.begin(), names.end(), part) == names.end()) names.emplace_back(part);
  }
  return names;
}

std::vector<std::string> parse_names(std::string_view option, std::string_view text,
                                     const std::vector<std::string>& allowed) {
  std::vector<std::string> names = parse_names(option, text);
  for (const std::string& name : names) {
    if (std::ranges::count(allowed, name) == 0)
      fail(option, name, fmt::format("must be one of {}", fmt::join(allowed, ", ")));
  }
  return names;
}

int64_t parse_memory_size(std::string_view option, std::string_view text) {
  constexpr std::array<std::pair<std::string_view, double>, 11> units = {{{"", 1},
                                                                          {"B", 1},
                                                                          {"KiB", 1024.0},
                                                                          {"MiB", 1048576.0},
                                                                          {"GiB", 1073741824.0},
                                                                          {"TiB", 1099511627776.0},
                                                                          {"kB", 1e3},
                                                                          {"KB", 1e3},
                                                                          {"MB", 1e6},
                                                                          {"GB", 1e9},
                                                                          {"TB", 1e12}}};
  constexpr std::string_view rule = "write an amount as 8GiB, 512MiB, 1.5GB or 1048576 (bytes)";
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) fail(option, text, rule);
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const auto& [name, factor] : units) {
    if (unit != name) continue;
    const double bytes = value * factor;
    if (!(bytes >= 1) || bytes > 9e18)
      fail(option, text, "must be at least 1 byte and below 8 EiB");
    return static_cast<int64_t>(bytes);
  }
  fail(option, text, rule);
}

std::function<bool(const std::string&)> parse_pattern(std::string_view option,
                                                      const std::string& text) {
  check_pattern_size(option, text);
  auto kind = std::regex::extended | std::regex::nosubs;
#ifdef __GLIBCXX__
  // Otherwise that library tries one way after the other, which takes for ever with (.*.*)*x.
  kind |= std::regex_constants::__polynomial;
#endif
  try {
    return [pattern = std::regex(text, kind)](const std::string& name) {
      return std::regex_search(name, pattern);
    };
  } catch (const std::regex_error& error) {
    fail(option, text, fmt::format("is not a regular expression: {}", error.what()));
  }
}

}  // namespace tinyllama::console
