#include "benchmarks/instruments/peaks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "core/strict_json.hpp"
#include "model/dtype.hpp"

namespace tinyllama::instruments {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kSecondsPerType = 3.0;
constexpr double kSecondsPerGemm = 0.05;
constexpr int kTimesAgain = 2;
constexpr const char* kCurve = "bandwidth_curve";

Json peak_json(const MeasuredPeak& peak, const char* unit) {
  return {{unit, peak.per_second}, {"source", peak.source}};
}

MeasuredPeak from_json(const Json& json, const char* unit) {
  if (!json.is_object() || !json.contains(unit) || !json.contains("source"))
    throw std::invalid_argument(
        fmt::format("{}: must have {} and source", printable_json(json), unit));
  const Json& per_second = json.at(unit);
  const Json& source = json.at("source");
  if (!per_second.is_number() || !(per_second.get<double>() > 0))
    throw std::invalid_argument(
        fmt::format("{} = {}: must be a positive number", unit, printable_json(per_second)));
  if (!source.is_string())
    throw std::invalid_argument(fmt::format("source = {}: must be a text", printable_json(source)));
  return {per_second.get<double>(), source.get<std::string>()};
}

std::map<int64_t, MeasuredPeak> curve_from_json(const Json& json) {
  if (!json.is_array() || json.empty())
    throw std::invalid_argument(
        fmt::format("{} = {}: must be a list of sizes", kCurve, printable_json(json)));
  std::map<int64_t, MeasuredPeak> curve;
  for (const Json& point : json) {
    const auto peak = from_json(point, "bytes_per_second");
    const Json bytes = point.value("bytes", Json());
    if (!bytes.is_number_integer() || !(bytes.get<int64_t>() > 0))
      throw std::invalid_argument(
          fmt::format("bytes = {}: must be a positive integer", printable_json(bytes)));
    curve[bytes.get<int64_t>()] = peak;
  }
  return curve;
}

}  // namespace

MeasuredPeaks::MeasuredPeaks(const Device& device, bool has_cold_caches)
    : device_(device), has_cold_caches_(has_cold_caches) {}

void MeasuredPeaks::measure(const PeaksNeeded& needed) {
  shapes_ = needed.shapes;
  const int64_t traffic = reach(needed);
  if (!has_bandwidth_of(traffic)) keep_better(measure_bandwidth(device_, traffic));
  for (const auto& type : needed.types) {
    if (!flops_.contains(type)) flops_[type] = measure_type(type);
  }
}

bool MeasuredPeaks::has(const PeaksNeeded& needed) const {
  return has_bandwidth_of(reach(needed)) &&
         std::ranges::all_of(needed.types, [&](const auto& type) { return flops_.contains(type); });
}

int64_t MeasuredPeaks::reach(const PeaksNeeded& needed) const {
  return has_cold_caches_ ? kTrafficOfMemory : needed.traffic;
}

MeasuredPeak MeasuredPeaks::measure_type(const std::string& type) const {
  const c10::ScalarType scalar = compute_type(parse_dtype(type));
  return measure_gemm_peak(device_, scalar, gemm_paths(scalar, device_.torch().type()), shapes_,
                           kSecondsPerType);
}

MeasuredPeak MeasuredPeaks::measure_flops_again(const std::string& type) {
  const auto again = measure_type(type);
  if (again.per_second > measured_flops(type)) flops_[type] = again;
  return again;
}

void MeasuredPeaks::measure_flops_below(const std::string& type, double reached) {
  for (int i = 0; i < kTimesAgain && measured_flops(type) <= reached; ++i)
    measure_flops_again(type);
}

MeasuredPeak MeasuredPeaks::measure_bandwidth_again() {
  const bool reaches_memory = bandwidth_.memory.per_second > 0 || bandwidth_.curve.empty();
  const auto again = measure_bandwidth(
      device_, reaches_memory ? kTrafficOfMemory : bandwidth_.curve.rbegin()->first);
  keep_better(again);
  return again.memory;
}

void MeasuredPeaks::keep_better(const Bandwidth& found) {
  if (found.memory.per_second > bandwidth_.memory.per_second) bandwidth_.memory = found.memory;
  for (const auto& [bytes, peak] : found.curve) {
    MeasuredPeak& known = bandwidth_.curve[bytes];
    if (peak.per_second > known.per_second) known = peak;
  }
}

MeasuredPeak MeasuredPeaks::measure_gemm(const std::string& type, const GemmShape& shape) {
  const c10::ScalarType scalar = compute_type(parse_dtype(type));
  const auto paths = gemm_paths(scalar, device_.torch().type(), shape.batch > 1);
  const auto found = instruments::measure_gemm(device_, scalar, paths, shape, kSecondsPerGemm);
  if (datasheet_ && datasheet_->flops.contains(type) &&
      found.per_second > datasheet_->flops.at(type)) {
    throw std::runtime_error(fmt::format(
        "{:.4g} FLOP/s by {} are above the datasheet's {:.4g} of {}: a wrong time, or GEMMs in "
        "fewer bits",
        found.per_second, found.source, datasheet_->flops.at(type), type));
  }
  if (found.per_second > measured_flops(type)) flops_[type] = found;
  return found;
}

void MeasuredPeaks::raise(const std::string& type, double flops_per_second,
                          const std::string& source) {
  flops_[type] = {flops_per_second, source};
}

void MeasuredPeaks::set_datasheet(std::optional<DatasheetPeaks> datasheet) {
  datasheet_ = std::move(datasheet);
}

MeasuredPeak MeasuredPeaks::mfu_peak(const std::string& type) const {
  if (datasheet_ && datasheet_->flops.contains(type))
    return {datasheet_->flops.at(type), "datasheet: " + datasheet_->source};
  return {measured_flops(type), "measured: " + measured(type).source};
}

MeasuredPeak MeasuredPeaks::memory_peak() const {
  if (datasheet_ && datasheet_->memory_bandwidth > 0)
    return {datasheet_->memory_bandwidth, "datasheet: " + datasheet_->source};
  return {bandwidth_.memory.per_second, "measured: " + bandwidth_.memory.source};
}

double MeasuredPeaks::bandwidth(int64_t bytes) const {
  if (has_cold_caches_) return bandwidth_.memory.per_second;
  return attainable_bandwidth(bandwidth_, bytes);
}

Json MeasuredPeaks::to_json() const {
  Json measured = Json::object();
  for (const auto& [type, peak] : flops_) measured[type] = peak_json(peak, "flops_per_second");
  if (bandwidth_.memory.per_second > 0)
    measured["memory_bandwidth"] = peak_json(bandwidth_.memory, "bytes_per_second");
  Json& curve = measured[kCurve] = Json::array();
  for (const auto& [bytes, peak] : bandwidth_.curve) {
    curve.push_back({{"bytes", bytes}});
    curve.back().update(peak_json(peak, "bytes_per_second"));
  }
  Json datasheet = nullptr;
  if (datasheet_) {
    datasheet = {{"device", datasheet_->device},
                 {"flops_per_second", datasheet_->flops},
                 {"memory_bytes_per_second", datasheet_->memory_bandwidth},
                 {"memory_bytes", datasheet_->memory_bytes},
                 {"source", datasheet_->source}};
  }
  return {{"measured", measured},
          {"datasheet", datasheet},
          {"mfu_is_against",
           datasheet_ ? "the datasheet's dense figure; the measured peak for types it lacks"
                      : "the measured peak: no datasheet figure is known for this device"}};
}

void MeasuredPeaks::restore(const Json& json, std::vector<GemmShape> shapes) {
  shapes_ = std::move(shapes);
  if (!json.is_object() || !json.contains("measured") || !json.at("measured").is_object())
    throw std::invalid_argument(
        fmt::format("{}: must have an object of measured peaks", printable_json(json)));
  for (const auto& [key, value] : json.at("measured").items()) {
    if (key == "memory_bandwidth") {
      bandwidth_.memory = from_json(value, "bytes_per_second");
    } else if (key == kCurve) {
      bandwidth_.curve = curve_from_json(value);
    } else {
      flops_[key] = from_json(value, "flops_per_second");
    }
  }
}

bool MeasuredPeaks::has_bandwidth_of(int64_t traffic) const {
  return !bandwidth_.curve.empty() &&
         (bandwidth_.memory.per_second > 0 || bandwidth_.curve.rbegin()->first >= traffic);
}

}  // namespace tinyllama::instruments
