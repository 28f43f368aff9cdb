#include "benchmarks/harness/peak_book.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <stdexcept>

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

}  // namespace

PeakBook::PeakBook(const instruments::Device& device) : device_(device) {}

void PeakBook::measure(const std::vector<std::string>& types, const std::vector<Case>& cases) {
  shapes_ = product_shapes(cases);
  if (bandwidth_.memory.per_second == 0) bandwidth_ = instruments::measure_bandwidth(device_);
  for (const auto& type : types) {
    if (flops_.contains(type)) continue;
    flops_[type] = instruments::measure_gemm_peak(device_, type, shapes_, kSecondsPerType);
  }
}

instruments::MeasuredPeak PeakBook::measure_flops_again(const std::string& type) {
  const auto again = instruments::measure_gemm_peak(device_, type, shapes_, kSecondsPerType);
  if (again.per_second > measured_flops(type)) replace_flops(type, again);
  return again;
}

instruments::MeasuredPeak PeakBook::measure_bandwidth_again() {
  const auto again = instruments::measure_bandwidth(device_);
  if (again.memory.per_second > bandwidth_.memory.per_second) bandwidth_.memory = again.memory;
  if (again.cache.per_second > bandwidth_.cache.per_second) bandwidth_.cache = again.cache;
  return again.memory;
}

instruments::MeasuredPeak PeakBook::measure_product(const std::string& type,
                                                    const instruments::BatchedGemmShape& shape) {
  const auto found = instruments::measure_product(device_, type, shape, kSecondsPerProduct);
  if (datasheet_ && datasheet_->flops.contains(type) &&
      found.per_second > datasheet_->flops.at(type)) {
    throw std::runtime_error(fmt::format(
        "{:.4g} FLOP/s by {} are above the datasheet's {:.4g} of {}: a wrong time, or products in "
        "fewer bits",
        found.per_second, found.source, datasheet_->flops.at(type), type));
  }
  if (found.per_second > measured_flops(type)) replace_flops(type, found);
  return found;
}

void PeakBook::raise(const std::string& type, double flops_per_second, const std::string& source) {
  replace_flops(type, {flops_per_second, source});
}

void PeakBook::replace_flops(const std::string& type, const instruments::MeasuredPeak& better) {
  Json old = harness::to_json(flops_.at(type), "flops_per_second");
  old["type"] = type;
  superseded_.push_back(old);
  flops_[type] = better;
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
          {"superseded", superseded_},
          {"datasheet", datasheet},
          {"mfu_is_against",
           datasheet_ ? "the datasheet's dense figure; the measured peak for types it lacks"
                      : "the measured peak: no datasheet figure is known for this device"}};
}

void PeakBook::restore(const Json& json, const std::vector<Case>& cases) {
  shapes_ = product_shapes(cases);
  superseded_ = json.value("superseded", Json::array());
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

bool PeakBook::has(const std::vector<std::string>& types) const {
  return bandwidth_.memory.per_second > 0 &&
         std::all_of(types.begin(), types.end(),
                     [&](const auto& type) { return flops_.contains(type); });
}

std::vector<instruments::GemmShape> product_shapes(const std::vector<Case>& cases) {
  std::set<instruments::GemmShape> shapes;
  for (const Case& planned : cases) {
    if (planned.cost().model_flops > 0) shapes.merge(instruments::product_shapes(planned.workload));
  }
  return {shapes.begin(), shapes.end()};
}

}  // namespace tinyllama::harness
