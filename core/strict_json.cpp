#include "core/strict_json.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <vector>

namespace tinyllama {
namespace {

constexpr size_t kLongestValue = 80;

// The objects and arrays that the parser is in.
struct Open {
  bool is_array;
  std::set<std::string> keys;
  std::string key;  // the last one
  size_t values = 0;
};

// Text that begins with the byte order mark of UTF-16, as some editors on Windows save it; nothing
// of other text (that of UTF-8 the parser skips itself).
std::optional<std::u16string> utf_16(std::string_view text) {
  const bool is_little = text.starts_with("\xff\xfe");
  if (text.size() % 2 != 0 || !(is_little || text.starts_with("\xfe\xff"))) return std::nullopt;
  std::u16string wide;
  for (size_t i = 2; i < text.size(); i += 2) {
    const auto low = static_cast<unsigned char>(text[is_little ? i : i + 1]);
    const auto high = static_cast<unsigned char>(text[is_little ? i + 1 : i]);
    wide += static_cast<char16_t>(high << 8 | low);
  }
  return wide;
}

}  // namespace

std::string printable(std::string_view text, size_t longest) {
  std::string shown;
  for (const char c : text.substr(0, longest)) {
    const auto byte = static_cast<unsigned char>(c);
    shown += byte >= 0x20 && byte < 0x7f ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
  }
  return text.size() > longest ? shown + "..." : shown;
}

template <typename Json>
std::string printable_json(const Json& value) {
  return printable(value.dump(), kLongestValue);
}

template <typename Json>
Json parse_strict_json(std::string_view text, const std::string& where, const JsonLimits& limits) {
  std::vector<Open> open;
  const auto refuse = [&](const std::string& what) {
    std::string place;
    for (const Open& outer : open) {
      if (!outer.key.empty() && &outer != &open.back()) place += printable(outer.key) + ": ";
    }
    throw std::invalid_argument(fmt::format("{} {}{}", where, place, what));
  };
  const auto watch = [&](int depth, typename Json::parse_event_t event, const Json& parsed) {
    using Event = typename Json::parse_event_t;
    if (depth > limits.depth) refuse(fmt::format("nests deeper than {} levels", limits.depth));
    if (event == Event::object_start || event == Event::array_start)
      open.push_back({.is_array = event == Event::array_start, .keys = {}, .key = {}});
    if (event == Event::object_end || event == Event::array_end) open.pop_back();
    if (event == Event::key) {
      open.back().key = parsed.template get<std::string>();
      if (!open.back().keys.insert(open.back().key).second)
        refuse(fmt::format("key '{}' occurs twice", printable(open.back().key)));
    }
    if (event == Event::value && !open.empty() && open.back().is_array &&
        ++open.back().values > limits.array) {
      refuse(fmt::format("holds more than {} values", limits.array));
    }
    return true;
  };
  const std::optional<std::u16string> wide = utf_16(text);
  // The parser would take a zero byte for the end of its input.
  if (const size_t zero = text.find('\0'); !wide && zero != std::string_view::npos)
    refuse(fmt::format("is not valid JSON: zero byte at {}", zero));
  try {
    Json json = wide ? Json::parse(*wide, watch) : Json::parse(text, watch);
    if (!json.is_object()) refuse("must hold a JSON object");
    return json;
  } catch (const typename Json::exception& error) {
    open.clear();
    refuse(fmt::format("is not valid JSON: {}", printable(error.what())));
    throw;
  }
}

template std::string printable_json(const nlohmann::json&);
template std::string printable_json(const nlohmann::ordered_json&);
template nlohmann::json parse_strict_json(std::string_view, const std::string&, const JsonLimits&);
template nlohmann::ordered_json parse_strict_json(std::string_view, const std::string&,
                                                  const JsonLimits&);

}  // namespace tinyllama
