// JSON that others wrote, and how messages quote it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace tinyllama {

/// For messages: printable ASCII of a text from a file, other bytes as \xNN, cut where it is long.
std::string printable(std::string_view text, size_t longest = 200);
/// The same of a value as JSON, cut at 80 bytes.
template <typename Json>
std::string printable_json(const Json& value);

struct JsonLimits {
  int depth;                ///< objects and arrays within each other
  size_t array = SIZE_MAX;  ///< values of an array
};
/// The object in a text that others wrote, in UTF-8, or in UTF-16 with a byte order mark. What
/// breaks the limits is refused while it is read, before anything is nested too deep for recursive
/// functions (copying and printing are); so is a key given twice, of which a parsed object would
/// keep the last. Throws std::invalid_argument that begins with `where`. Json: nlohmann::json, or
/// nlohmann::ordered_json, which keeps the order of the keys.
template <typename Json = nlohmann::json>
Json parse_strict_json(std::string_view text, const std::string& where, const JsonLimits& limits);

}  // namespace tinyllama
