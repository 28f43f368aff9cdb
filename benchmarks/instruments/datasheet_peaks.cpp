// Reads fixtures/device_peaks.json.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
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

bool is_of_architecture(const json& match, const DeviceDescription& device) {
  return !device.architecture.empty() && match.value("architecture", "") == device.architecture &&
         match.at("multiprocessors") == device.multiprocessors;
}

/// What all of the rows have in common: where it says nothing, the device is one of them, and which
/// is unknown.
DatasheetPeaks shared_by(const std::vector<DatasheetPeaks>& rows, const DeviceDescription& device) {
  DatasheetPeaks shared = rows.front();
  for (const DatasheetPeaks& other : std::span(rows).subspan(1)) {
    shared.device += " or " + other.device;
    shared.source += "; " + other.source;
    std::erase_if(shared.flops, [&](const auto& known) {
      const auto found = other.flops.find(known.first);
      return found == other.flops.end() || found->second != known.second;
    });
    if (other.memory_bandwidth != shared.memory_bandwidth) shared.memory_bandwidth = 0;
  }
  shared.source += fmt::format("; told by {} and {} compute units, because the name \"{}\" is none",
                               device.architecture, device.multiprocessors, device.name);
  return shared;
}

/// The devices of an architecture with as many compute units; those whose memory is the device's,
/// where that tells them apart (MI300X and MI325X).
std::optional<DatasheetPeaks> of_architecture(std::vector<DatasheetPeaks> rows,
                                              const DeviceDescription& device) {
  if (rows.empty()) return {};
  const auto has_its_memory = [&](const DatasheetPeaks& row) {
    // The runtime reports a little less than there is.
    constexpr double reserved = 0.1;
    const auto all = static_cast<double>(row.memory_bytes);
    return std::abs(static_cast<double>(device.memory_bytes) - all) < reserved * all;
  };
  if (rows.size() > 1 && std::ranges::any_of(rows, has_its_memory))
    std::erase_if(rows, std::not_fn(has_its_memory));
  return shared_by(rows, device);
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

bool has_product_name(const DeviceDescription& device) {
  constexpr std::array<std::string_view, 5> of_no_product = {"amd", "radeon", "graphics", "unnamed",
                                                             "gpu"};
  return !std::ranges::all_of(words_of(device.name), [&](const std::string& word) {
    return std::ranges::count(of_no_product, word) > 0;
  });
}

std::optional<DatasheetPeaks> find_datasheet_peaks(const std::filesystem::path& file,
                                                   const DeviceDescription& device) {
  const json document = parse_strict_json(read_text(file, kMostBytes), file.string() + ":",
                                          {.depth = kDeepestNesting});
  std::optional<DatasheetPeaks> found;
  std::vector<DatasheetPeaks> of_its_architecture;
  std::string place = "devices";
  try {
    // Every row is read, so that a mistake shows on every machine and not only on the one it is
    // about.
    for (const auto& [index, row] : document.at("devices").items()) {
      place = fmt::format("devices[{}]", index);
      DatasheetPeaks peaks = parse_row(row);
      const json& match = row.at("match");
      if (is_of_architecture(match, device)) of_its_architecture.push_back(peaks);
      if (matches(match, device) && !found) found = std::move(peaks);
    }
  } catch (const std::exception& error) {
    throw std::invalid_argument(
        fmt::format("{}: {}: {}", file.string(), printable(place), printable(error.what())));
  }
  return has_product_name(device) ? found : of_architecture(std::move(of_its_architecture), device);
}

}  // namespace tinyllama::instruments
