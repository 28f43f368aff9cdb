// Reads fixtures/device_peaks.json, strictly: a figure that is silently wrong or missing would
// falsify every percentage of it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "benchmarks/instruments/peaks.hpp"

namespace tinyllama::instruments {
namespace {

using nlohmann::json;

/// A value together with the way to it, so that an error can name file, key, value and rule.
class Entry {
 public:
  Entry(const json& value, std::string file, std::string key)
      : value_(value), file_(std::move(file)), key_(std::move(key)) {}

  [[noreturn]] void reject(std::string_view rule) const {
    constexpr size_t longest = 80;
    std::string text = value_.dump();
    if (text.size() > longest) text = text.substr(0, longest) + "...";
    throw std::invalid_argument(
        fmt::format("{}: {} = {}: {}", file_, key_.empty() ? "(whole file)" : key_, text, rule));
  }

  Entry at(const std::string& name) const {
    require_object();
    const std::string key = key_.empty() ? name : key_ + "." + name;
    if (!value_.contains(name)) {
      throw std::invalid_argument(fmt::format("{}: {}: the key is missing", file_, key));
    }
    return {value_.at(name), file_, key};
  }
  bool has(const std::string& name) const { return value_.contains(name); }

  void allow_keys(std::initializer_list<std::string_view> allowed) const {
    require_object();
    for (const auto& [name, value] : value_.items()) {
      if (std::ranges::find(allowed, name) != allowed.end()) continue;
      Entry(value, file_, key_.empty() ? name : key_ + "." + name)
          .reject(fmt::format("unknown key (allowed: {})",
                              fmt::join(allowed.begin(), allowed.end(), ", ")));
    }
  }

  std::vector<std::pair<std::string, Entry>> members() const {
    require_object();
    std::vector<std::pair<std::string, Entry>> result;
    for (const auto& [name, value] : value_.items()) {
      result.emplace_back(name, Entry(value, file_, key_ + "." + name));
    }
    return result;
  }

  std::vector<Entry> elements() const {
    if (!value_.is_array() || value_.empty()) reject("must be a list with at least one element");
    std::vector<Entry> result;
    for (size_t index = 0; index < value_.size(); ++index) {
      result.emplace_back(value_[index], file_, fmt::format("{}[{}]", key_, index));
    }
    return result;
  }

  std::string text() const {
    if (!value_.is_string() || value_.get_ref<const std::string&>().empty()) {
      reject("must be a text that is not empty");
    }
    return value_.get<std::string>();
  }

  double positive_number() const {
    if (!value_.is_number() || !(value_.get<double>() > 0)) reject("must be a positive number");
    return value_.get<double>();
  }

  int64_t positive_integer() const {
    if (!value_.is_number_integer() || value_.get<int64_t>() <= 0) {
      reject("must be a positive integer");
    }
    return value_.get<int64_t>();
  }

 private:
  void require_object() const {
    if (!value_.is_object()) reject("must be an object");
  }

  const json& value_;
  std::string file_;
  std::string key_;
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

/// Which devices a row is about. A partition of a GPU carries the whole GPU's name but not its
/// peaks: the number of compute units tells them apart, where the runtime gives one.
struct Match {
  Words required;
  Words excluded;
  int64_t multiprocessors = 0;

  bool accepts(const DeviceDescription& device) const {
    const Words words = words_of(device.name);
    const auto present = [&](const std::string& word) { return words.contains(word); };
    return std::ranges::all_of(required, present) && std::ranges::none_of(excluded, present) &&
           (device.multiprocessors == 0 || device.multiprocessors == multiprocessors);
  }
};

Match parse_match(const Entry& match) {
  match.allow_keys({"words", "without", "multiprocessors"});
  return {word_list(match.at("words")),
          match.has("without") ? word_list(match.at("without")) : Words{},
          match.at("multiprocessors").positive_integer()};
}

/// The figure of the mode that serves each type: "types" points from "f32" to one of the modes in
/// "flops".
std::map<std::string, double> flops_by_type(const Entry& row) {
  const Entry flops = row.at("flops");
  flops.allow_keys({"f64_vector", "f64_matrix", "f32_vector", "f32_matrix", "tf32_matrix",
                    "bf16_matrix", "f16_matrix", "fp8_matrix"});
  std::map<std::string, double> modes;
  for (const auto& [mode, figure] : flops.members()) modes[mode] = figure.positive_number();
  const Entry types = row.at("types");
  types.allow_keys({"f64", "f32", "bf16", "f16"});
  std::map<std::string, double> result;
  for (const auto& [type, mode] : types.members()) {
    const auto found = modes.find(mode.text());
    if (found == modes.end()) mode.reject("must be one of the keys of this device's \"flops\"");
    result[type] = found->second;
  }
  return result;
}

DatasheetPeaks parse_row(const Entry& row) {
  row.allow_keys(
      {"device", "match", "flops", "types", "memory_bytes", "memory_bandwidth", "source", "note"});
  const Entry source = row.at("source");
  source.allow_keys({"title", "address"});
  if (row.has("note")) row.at("note").text();
  DatasheetPeaks peaks;
  peaks.device = row.at("device").text();
  peaks.flops = flops_by_type(row);
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
  try {
    return json::parse(stream);
  } catch (const json::parse_error& error) {
    throw std::invalid_argument(fmt::format("{}: not JSON: {}", file.string(), error.what()));
  }
}

}  // namespace

std::optional<DatasheetPeaks> find_datasheet_peaks(const std::filesystem::path& file,
                                                   const DeviceDescription& device) {
  const json document = parse_file(file);
  const Entry root(document, file.string(), "");
  root.allow_keys({"description", "devices"});
  std::optional<DatasheetPeaks> found;
  // Every row is read, so that a mistake shows on every machine and not only on the one it is
  // about.
  for (const Entry& row : root.at("devices").elements()) {
    DatasheetPeaks peaks = parse_row(row);
    if (parse_match(row.at("match")).accepts(device) && !found) found = std::move(peaks);
  }
  return found;
}

}  // namespace tinyllama::instruments
