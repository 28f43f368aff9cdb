// Reads fixtures/device_peaks.json, strictly: a figure that is silently wrong or missing would
// falsify every percentage of it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "benchmarks/instruments/peaks.hpp"
#include "model/strict_json.hpp"

namespace tinyllama::instruments {
namespace {

using nlohmann::json;

constexpr int kDeepestNesting = 8;

using Keys = std::vector<std::string_view>;

/// A value together with the way to it, so that an error can name file, key, value and rule.
struct Entry {
  const json& value;
  std::string file;
  std::string key;  ///< empty: the whole file

  [[noreturn]] void reject(std::string_view rule) const {
    throw std::invalid_argument(
        fmt::format("{}: {} = {}: {}", file, printable(key), printable_json(value), rule));
  }
  std::string key_of(std::string_view name) const {
    if (value.is_array()) return fmt::format("{}[{}]", key, name);
    return key.empty() ? std::string(name) : fmt::format("{}.{}", key, name);
  }

  /// That this is an object with all of `required` and nothing else but `optional`.
  void check_keys(const Keys& required, const Keys& optional = {}) const {
    if (!value.is_object()) reject("must be an object");
    Keys allowed = required;
    allowed.insert(allowed.end(), optional.begin(), optional.end());
    for (const auto& [name, child] : value.items()) {
      if (std::ranges::find(allowed, name) != allowed.end()) continue;
      Entry{child, file, key_of(name)}.reject(
          fmt::format("unknown key (allowed: {})", fmt::join(allowed, ", ")));
    }
    for (const std::string_view name : required) {
      if (!value.contains(name))
        throw std::invalid_argument(fmt::format("{}: {}: the key is missing", file, key_of(name)));
    }
  }
  Entry at(const std::string& name) const { return {value.at(name), file, key_of(name)}; }

  std::vector<Entry> elements() const {
    if (!value.is_array() || value.empty()) reject("must be a list with at least one element");
    std::vector<Entry> result;
    for (const auto& [index, child] : value.items()) result.push_back({child, file, key_of(index)});
    return result;
  }
  std::string text() const {
    if (!value.is_string() || value.get_ref<const std::string&>().empty())
      reject("must be a text that is not empty");
    return value.get<std::string>();
  }
  double positive_number() const {
    if (!value.is_number() || !(value.get<double>() > 0)) reject("must be a positive number");
    return value.get<double>();
  }
  int64_t positive_integer() const {
    if (!value.is_number_integer() || value.get<int64_t>() <= 0)
      reject("must be a positive integer");
    return value.get<int64_t>();
  }
};

using Words = std::set<std::string>;

/// The letters and digits of a device's name, in lower case, word by word: "AMD Instinct
/// MI250X/MI250" has the word mi250x, and "NVIDIA GH200 480GB" has no word h200.
Words words_of(std::string_view name) {
  std::string text(name);
  for (char& letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    letter = std::isalnum(code) != 0 ? static_cast<char>(std::tolower(code)) : ' ';
  }
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

Words word_list(const Entry& list) {
  Words words;
  for (const Entry& entry : list.elements()) {
    const std::string word = entry.text();
    if (words_of(word) != Words{word})
      entry.reject("must be one word of lower-case letters and digits");
    words.insert(word);
  }
  return words;
}

/// Whether a row is about this device. A partition of a GPU carries the whole GPU's name but not
/// its peaks: the number of compute units tells them apart, where the runtime gives one.
bool matches(const Entry& match, const DeviceDescription& device) {
  match.check_keys({"words", "multiprocessors"}, {"without"});
  const Words required = word_list(match.at("words"));
  const Words excluded = match.value.contains("without") ? word_list(match.at("without")) : Words{};
  const int64_t multiprocessors = match.at("multiprocessors").positive_integer();
  const Words words = words_of(device.name);
  const auto present = [&](const std::string& word) { return words.contains(word); };
  return std::ranges::all_of(required, present) && std::ranges::none_of(excluded, present) &&
         (device.multiprocessors == 0 || device.multiprocessors == multiprocessors);
}

DatasheetPeaks parse_row(const Entry& row) {
  row.check_keys(
      {"device", "match", "flops", "types", "memory_bytes", "memory_bandwidth", "source"},
      {"note"});
  const Entry source = row.at("source");
  source.check_keys({"title", "address"});
  if (row.value.contains("note")) row.at("note").text();
  DatasheetPeaks peaks;
  peaks.device = row.at("device").text();
  const Entry flops = row.at("flops");
  flops.check_keys({}, {"f64_vector", "f64_matrix", "f32_vector", "f32_matrix", "tf32_matrix",
                        "bf16_matrix", "f16_matrix", "fp8_matrix"});
  for (const auto& [mode, figure] : flops.value.items()) flops.at(mode).positive_number();
  // "types" points from "f32" to one of the modes in "flops".
  const Entry types = row.at("types");
  types.check_keys({}, {"f64", "f32", "bf16", "f16"});
  for (const auto& [type, value] : types.value.items()) {
    const std::string mode = types.at(type).text();
    if (!flops.value.contains(mode))
      types.at(type).reject("must be one of the keys of this device's \"flops\"");
    peaks.flops[type] = flops.at(mode).positive_number();
  }
  peaks.memory_bandwidth = row.at("memory_bandwidth").positive_number();
  peaks.memory_bytes = row.at("memory_bytes").positive_integer();
  peaks.source = fmt::format("{}, {}", source.at("title").text(), source.at("address").text());
  return peaks;
}

json parse_file(const std::filesystem::path& file) {
  std::ifstream stream(file);
  if (!stream) {
    throw std::invalid_argument(
        fmt::format("{}: the file of datasheet peaks cannot be read", file.string()));
  }
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  return parse_strict_json<json>(text, file.string() + ":", {.depth = kDeepestNesting});
}

}  // namespace

std::optional<DatasheetPeaks> find_datasheet_peaks(const std::filesystem::path& file,
                                                   const DeviceDescription& device) {
  const json document = parse_file(file);
  const Entry root{document, file.string(), ""};
  root.check_keys({"devices"}, {"description"});
  std::optional<DatasheetPeaks> found;
  // Every row is read, so that a mistake shows on every machine and not only on the one it is
  // about.
  for (const Entry& row : root.at("devices").elements()) {
    DatasheetPeaks peaks = parse_row(row);
    if (matches(row.at("match"), device) && !found) found = std::move(peaks);
  }
  return found;
}

}  // namespace tinyllama::instruments
