// Reads fixtures/device_peaks.json.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>

#include "benchmarks/instruments/peaks.hpp"
#include "core/file_io.hpp"
#include "core/strict_json.hpp"

namespace tinyllama::instruments {
namespace {

using nlohmann::json;

constexpr int kDeepestNesting = 8;
constexpr int64_t kMostBytes = 1 << 20;

template <typename Number>
Number positive(const json& of, const std::string& key) {
  const json& value = of.at(key);
  const bool is_right_kind =
      std::is_integral_v<Number> ? value.is_number_integer() : value.is_number();
  if (is_right_kind && value.get<Number>() > 0) return value.get<Number>();
  throw std::invalid_argument(fmt::format("{} = {}: must be a positive {}", key,
                                          printable_json(value),
                                          std::is_integral_v<Number> ? "integer" : "number"));
}

/// The letters and digits of a device's name, in lower case, word by word: "AMD Instinct
/// MI250X/MI250" has the word mi250x, and "NVIDIA GH200 480GB" has no word h200.
std::set<std::string> words_of(std::string_view name) {
  std::string text(name);
  for (char& letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    letter = std::isalnum(code) != 0 ? static_cast<char>(std::tolower(code)) : ' ';
  }
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

/// Whether a row is about this device. A partition of a GPU carries the whole GPU's name but not
/// its peaks: the number of compute units tells them apart, where the runtime gives one.
bool matches(const json& match, const DeviceDescription& device) {
  const auto words = words_of(device.name);
  const auto present = [&](const json& word) { return words.contains(word.get<std::string>()); };
  const auto multiprocessors = positive<int64_t>(match, "multiprocessors");
  if (match.at("words").empty()) throw std::invalid_argument("words must not be empty");
  return std::ranges::all_of(match.at("words"), present) &&
         std::ranges::none_of(match.value("without", json::array()), present) &&
         (device.multiprocessors == 0 || device.multiprocessors == multiprocessors);
}

DatasheetPeaks parse_row(const json& row) {
  DatasheetPeaks peaks;
  peaks.device = row.at("device").get<std::string>();
  // "types" points from "f32" to one of the modes in "flops".
  for (const auto& [type, mode] : row.at("types").items())
    peaks.flops[type] = positive<double>(row.at("flops"), mode.get<std::string>());
  peaks.memory_bandwidth = positive<double>(row, "memory_bandwidth");
  peaks.memory_bytes = positive<int64_t>(row, "memory_bytes");
  const json& source = row.at("source");
  peaks.source = fmt::format("{}, {}", source.at("title").get<std::string>(),
                             source.at("address").get<std::string>());
  return peaks;
}

}  // namespace

std::optional<DatasheetPeaks> find_datasheet_peaks(const std::filesystem::path& file,
                                                   const DeviceDescription& device) {
  const json document = parse_strict_json(read_text(file, kMostBytes), file.string() + ":",
                                          {.depth = kDeepestNesting});
  std::optional<DatasheetPeaks> found;
  std::string place = "devices";
  try {
    // Every row is read, so that a mistake shows on every machine and not only on the one it is
    // about.
    for (const auto& [index, row] : document.at("devices").items()) {
      place = fmt::format("devices[{}]", index);
      DatasheetPeaks peaks = parse_row(row);
      if (matches(row.at("match"), device) && !found) found = std::move(peaks);
    }
  } catch (const std::exception& error) {
    throw std::invalid_argument(
        fmt::format("{}: {}: {}", file.string(), printable(place), printable(error.what())));
  }
  return found;
}

}  // namespace tinyllama::instruments
