#include "benchmarks/harness/measured_peaks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/harness/measure.hpp"
#include "benchmarks/harness/rows.hpp"
#include "core/strict_json.hpp"
#include "model/step_gemms.hpp"

namespace tinyllama::harness {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kSecondsPerType = 3.0;
constexpr double kSecondsPerGemm = 0.05;
constexpr const char* kCurve = "bandwidth_curve";

Json to_json(const instruments::MeasuredPeak& peak, const char* unit) {
  return {{unit, peak.per_second}, {"source", peak.source}};
}

instruments::MeasuredPeak from_json(const Json& json, const char* unit) {
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

std::map<int64_t, instruments::MeasuredPeak> curve_from_json(const Json& json) {
  if (!json.is_array() || json.empty())
    throw std::invalid_argument(
        fmt::format("{} = {}: must be a list of sizes", kCurve, printable_json(json)));
  std::map<int64_t, instruments::MeasuredPeak> curve;
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

instruments::MeasuredPeak measure_type(const instruments::Device& device, const std::string& name,
                                       const std::vector<instruments::GemmShape>& shapes) {
  const c10::ScalarType type = compute_type(parse_dtype(name));
  const auto paths = gemm_paths(type, device.torch().type());
  return instruments::measure_gemm_peak(device, type, paths, shapes, kSecondsPerType);
}

constexpr double kGiga = 1e9;

instruments::MeasuredPeak measure_again(const PeakCase& peak, MeasuredPeaks& peaks) {
  if (peak.type.empty()) return peaks.measure_bandwidth_again();
  return peak.shape ? peaks.measure_gemm(peak.type, *peak.shape)
                    : peaks.measure_flops_again(peak.type);
}

}  // namespace

MeasuredPeaks::MeasuredPeaks(const instruments::Device& device, bool has_cold_caches)
    : device_(device), has_cold_caches_(has_cold_caches) {}

void MeasuredPeaks::measure(const Plan& plan) {
  shapes_ = gemm_shapes(plan.cases);
  const int64_t traffic = largest_traffic(plan);
  if (!has_bandwidth_of(traffic)) keep_better(instruments::measure_bandwidth(device_, traffic));
  for (const auto& type : plan.gemm_types) {
    if (flops_.contains(type)) continue;
    flops_[type] = measure_type(device_, type, shapes_);
  }
}

instruments::MeasuredPeak MeasuredPeaks::measure_flops_again(const std::string& type) {
  const auto again = measure_type(device_, type, shapes_);
  if (again.per_second > measured_flops(type)) flops_[type] = again;
  return again;
}

instruments::MeasuredPeak MeasuredPeaks::measure_bandwidth_again() {
  const bool reaches_memory = bandwidth_.memory.per_second > 0 || bandwidth_.curve.empty();
  const auto again = instruments::measure_bandwidth(
      device_, reaches_memory ? instruments::kTrafficOfMemory : bandwidth_.curve.rbegin()->first);
  keep_better(again);
  return again.memory;
}

void MeasuredPeaks::keep_better(const instruments::Bandwidth& found) {
  if (found.memory.per_second > bandwidth_.memory.per_second) bandwidth_.memory = found.memory;
  for (const auto& [bytes, peak] : found.curve) {
    instruments::MeasuredPeak& known = bandwidth_.curve[bytes];
    if (peak.per_second > known.per_second) known = peak;
  }
}

instruments::MeasuredPeak MeasuredPeaks::measure_gemm(const std::string& type,
                                                      const instruments::GemmShape& shape) {
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

void MeasuredPeaks::set_datasheet(std::optional<instruments::DatasheetPeaks> datasheet) {
  datasheet_ = std::move(datasheet);
}

double MeasuredPeaks::mfu_flops(const std::string& type) const {
  if (datasheet_ && datasheet_->flops.contains(type)) return datasheet_->flops.at(type);
  return measured_flops(type);
}

double MeasuredPeaks::bandwidth(int64_t bytes) const {
  if (has_cold_caches_) return bandwidth_.memory.per_second;
  return instruments::attainable_bandwidth(bandwidth_, bytes);
}

Json MeasuredPeaks::to_json() const {
  Json measured = Json::object();
  for (const auto& [type, peak] : flops_)
    measured[type] = harness::to_json(peak, "flops_per_second");
  if (bandwidth_.memory.per_second > 0)
    measured["memory_bandwidth"] = harness::to_json(bandwidth_.memory, "bytes_per_second");
  Json& curve = measured[kCurve] = Json::array();
  for (const auto& [bytes, peak] : bandwidth_.curve) {
    curve.push_back({{"bytes", bytes}});
    curve.back().update(harness::to_json(peak, "bytes_per_second"));
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

void MeasuredPeaks::restore(const Json& json, const std::vector<Case>& cases) {
  shapes_ = gemm_shapes(cases);
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

bool MeasuredPeaks::has(const Plan& plan) const {
  return has_bandwidth_of(largest_traffic(plan)) &&
         std::ranges::all_of(plan.gemm_types,
                             [&](const auto& type) { return flops_.contains(type); });
}

bool MeasuredPeaks::has_bandwidth_of(int64_t traffic) const {
  return !bandwidth_.curve.empty() &&
         (bandwidth_.memory.per_second > 0 || bandwidth_.curve.rbegin()->first >= traffic);
}

int64_t MeasuredPeaks::largest_traffic(const Plan& plan) const {
  const bool has_row =
      std::ranges::any_of(plan.peak_cases, [](const PeakCase& peak) { return peak.type.empty(); });
  if (has_row || has_cold_caches_) return instruments::kTrafficOfMemory;
  int64_t largest = 1;
  for (const Case& test_case : plan.cases) largest = std::max(largest, test_case.cost().bytes);
  return largest;
}

std::vector<instruments::GemmShape> gemm_shapes(const std::vector<Case>& cases) {
  std::set<instruments::GemmShape> shapes;
  for (const Case& test_case : cases) {
    if (test_case.cost().model_flops == 0) continue;
    for (const auto& [batch, m, n, k] : linear_gemms(test_case.workload))
      shapes.insert({batch, m, n, k});
  }
  return {shapes.begin(), shapes.end()};
}

void measure_peak_case(const PeakCase& peak, MeasuredPeaks& peaks,
                       const instruments::Device& device, Outcome& outcome) {
  if (console::interrupted()) {
    outcome.interrupted = true;
    return;
  }
  instruments::MeasuredPeak measured;
  outcome.failure = failure_of(device, 0, [&] {
    if (peak.shape)
      outcome.skip =
          instruments::refuse_gemm(device, compute_type(parse_dtype(peak.type)), *peak.shape);
    if (outcome.skip.empty()) measured = measure_again(peak, peaks);
  });
  if (!outcome.skip.empty() || !outcome.failure.empty()) return;
  const double work = peak.shape ? static_cast<double>(peak.shape->flops()) : kGiga;
  Repetition repetition{.seconds = work / measured.per_second};
  if (peak.type.empty()) {
    repetition.counters["GB_per_second"] = measured.per_second / kGiga;
  } else {
    repetition.counters["TFLOPS"] = measured.per_second * 1e-12;
  }
  outcome.repetitions.push_back(std::move(repetition));
  outcome.label = measured.source;
}

}  // namespace tinyllama::harness
