#include "benchmarks/harness/peak_book.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "model/step_gemms.hpp"

namespace tinyllama::harness {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kSecondsPerType = 3.0;
constexpr double kSecondsPerProduct = 0.05;

Json to_json(const instruments::MeasuredPeak& peak, const char* unit) {
  return {{unit, peak.per_second}, {"source", peak.source}};
}

instruments::MeasuredPeak from_json(const Json& json, const char* unit) {
  return {json.at(unit).get<double>(), json.at("source").get<std::string>()};
}

instruments::MeasuredPeak measure_type(const instruments::Device& device, const std::string& name,
                                       const std::vector<instruments::GemmShape>& shapes) {
  const c10::ScalarType type = compute_type(parse_dtype(name));
  const auto paths = gemm_paths(type, device.torch().type());
  return instruments::measure_gemm_peak(device, type, paths, shapes, kSecondsPerType);
}

}  // namespace

PeakBook::PeakBook(const instruments::Device& device) : device_(device) {}

void PeakBook::measure(const Plan& plan) {
  shapes_ = product_shapes(plan.cases);
  const bool wants_memory = needs_memory_bandwidth(plan) && bandwidth_.memory.per_second == 0;
  if (wants_memory || bandwidth_.cache.per_second == 0)
    bandwidth_ = instruments::measure_bandwidth(device_, wants_memory);
  for (const auto& type : plan.product_types) {
    if (flops_.contains(type)) continue;
    flops_[type] = measure_type(device_, type, shapes_);
  }
}

instruments::MeasuredPeak PeakBook::measure_flops_again(const std::string& type) {
  const auto again = measure_type(device_, type, shapes_);
  if (again.per_second > measured_flops(type)) flops_[type] = again;
  return again;
}

instruments::MeasuredPeak PeakBook::measure_bandwidth_again() {
  const bool with_memory = bandwidth_.memory.per_second > 0;
  const auto again = instruments::measure_bandwidth(device_, with_memory);
  if (again.memory.per_second > bandwidth_.memory.per_second) bandwidth_.memory = again.memory;
  if (again.cache.per_second > bandwidth_.cache.per_second) bandwidth_.cache = again.cache;
  return again.memory;
}

instruments::MeasuredPeak PeakBook::measure_product(const std::string& type,
                                                    const instruments::GemmShape& shape) {
  const c10::ScalarType scalar = compute_type(parse_dtype(type));
  const auto paths = gemm_paths(scalar, device_.torch().type(), shape.batch > 1);
  const auto found = instruments::measure_gemm(device_, scalar, paths, shape, kSecondsPerProduct);
  if (datasheet_ && datasheet_->flops.contains(type) &&
      found.per_second > datasheet_->flops.at(type)) {
    throw std::runtime_error(fmt::format(
        "{:.4g} FLOP/s by {} are above the datasheet's {:.4g} of {}: a wrong time, or products in "
        "fewer bits",
        found.per_second, found.source, datasheet_->flops.at(type), type));
  }
  if (found.per_second > measured_flops(type)) flops_[type] = found;
  return found;
}

void PeakBook::raise(const std::string& type, double flops_per_second, const std::string& source) {
  flops_[type] = {flops_per_second, source};
}

void PeakBook::set_datasheet(std::optional<instruments::DatasheetPeaks> datasheet) {
  datasheet_ = std::move(datasheet);
}

double PeakBook::mfu_flops(const std::string& type) const {
  if (datasheet_ && datasheet_->flops.contains(type)) return datasheet_->flops.at(type);
  return measured_flops(type);
}

double PeakBook::bandwidth(int64_t bytes) const {
  return instruments::attainable_bandwidth(bandwidth_, device_.description(), bytes);
}

Json PeakBook::to_json() const {
  Json measured = Json::object();
  for (const auto& [type, peak] : flops_)
    measured[type] = harness::to_json(peak, "flops_per_second");
  if (bandwidth_.memory.per_second > 0)
    measured["memory_bandwidth"] = harness::to_json(bandwidth_.memory, "bytes_per_second");
  measured["cache_bandwidth"] = harness::to_json(bandwidth_.cache, "bytes_per_second");
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

void PeakBook::restore(const Json& json, const std::vector<Case>& cases) {
  shapes_ = product_shapes(cases);
  for (const auto& [key, value] : json.at("measured").items()) {
    if (key == "memory_bandwidth") {
      bandwidth_.memory = from_json(value, "bytes_per_second");
    } else if (key == "cache_bandwidth") {
      bandwidth_.cache = from_json(value, "bytes_per_second");
    } else {
      flops_[key] = from_json(value, "flops_per_second");
    }
  }
}

bool PeakBook::has(const Plan& plan) const {
  return bandwidth_.cache.per_second > 0 &&
         (bandwidth_.memory.per_second > 0 || !needs_memory_bandwidth(plan)) &&
         std::ranges::all_of(plan.product_types,
                             [&](const auto& type) { return flops_.contains(type); });
}

bool PeakBook::needs_memory_bandwidth(const Plan& plan) const {
  return std::ranges::any_of(plan.peak_cases,
                             [](const PeakCase& peak) { return peak.type.empty(); }) ||
         std::ranges::any_of(plan.cases, [&](const Case& planned) {
           return !instruments::fits_into_cache(device_.description(), planned.cost().bytes);
         });
}

std::vector<instruments::GemmShape> product_shapes(const std::vector<Case>& cases) {
  std::set<instruments::GemmShape> shapes;
  for (const Case& planned : cases) {
    if (planned.cost().model_flops == 0) continue;
    for (const auto& [batch, m, n, k] : linear_gemms(planned.workload))
      shapes.insert({batch, m, n, k});
  }
  return {shapes.begin(), shapes.end()};
}

}  // namespace tinyllama::harness
