// The peaks, measured and of the datasheet, that the percentages of a run are of.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/plan.hpp"
#include "benchmarks/instruments/peaks.hpp"

namespace tinyllama::harness {

struct Outcome;

class MeasuredPeaks {
 public:
  /// `has_cold_caches`: cases start with cold caches (--cold-cache), so that memory's bandwidth
  /// counts for all of them.
  explicit MeasuredPeaks(const instruments::Device& device, bool has_cold_caches = false);

  /// Measures the peaks that the plan's rows need and that restore() has not brought: GEMMs of each
  /// of its types, also in the matrix shapes of its cases; bandwidth up to the largest traffic of a
  /// case, or up to memory's where peak/bandwidth is a row or caches are cold.
  void measure(const Plan& plan);
  /// Measures GEMMs of one type again, or bandwidth, keeps the better figure, and returns what
  /// was measured now.
  instruments::MeasuredPeak measure_flops_again(const std::string& type);
  instruments::MeasuredPeak measure_bandwidth_again();
  /// The highest rate of one shape of GEMMs, which becomes the peak of its type where it is higher.
  /// Throws std::runtime_error where it is above the datasheet's figure: then the time is wrong.
  instruments::MeasuredPeak measure_gemm(const std::string& type,
                                         const instruments::GemmShape& shape);
  /// A case reached this rate of FLOPs: the peak is at least that high.
  void raise(const std::string& type, double flops_per_second, const std::string& source);
  void set_datasheet(std::optional<instruments::DatasheetPeaks> datasheet);

  /// FLOP/s of GEMMs in `type`; throws std::out_of_range for a type that was not measured.
  double measured_flops(const std::string& type) const { return flops_.at(type).per_second; }
  const instruments::MeasuredPeak& measured(const std::string& type) const {
    return flops_.at(type);
  }
  /// The datasheet's figure where one is known, else the measured one: what MFU is against.
  double mfu_flops(const std::string& type) const;
  /// Bytes per second that `bytes` of traffic can reach: instruments::attainable_bandwidth, or
  /// memory's with cold caches.
  double bandwidth(int64_t bytes) const;

  /// For the context of a result, and back from a journal. restore() throws std::invalid_argument
  /// that names the key and the rule for what to_json() does not write.
  nlohmann::ordered_json to_json() const;
  void restore(const nlohmann::ordered_json& json, const std::vector<Case>& cases = {});
  /// Whether measure() has nothing left to do.
  bool has(const Plan& plan) const;

 private:
  int64_t largest_traffic(const Plan& plan) const;
  bool has_bandwidth_of(int64_t traffic) const;
  void keep_better(const instruments::Bandwidth& found);

  instruments::Device device_;
  bool has_cold_caches_;
  std::vector<instruments::GemmShape> shapes_;
  std::map<std::string, instruments::MeasuredPeak> flops_;
  instruments::Bandwidth bandwidth_;
  std::optional<instruments::DatasheetPeaks> datasheet_;
};

/// Shapes of the matrix multiplications that the cases run, without repetitions.
std::vector<instruments::GemmShape> gemm_shapes(const std::vector<Case>& cases);

/// Measures a row of Plan::peak_cases once and adds it as a repetition. Its time is that of one
/// GEMM of the row's shape, or without a shape that of 10^9 FLOPs or 10^9 bytes at the measured
/// rate. A higher rate than before becomes the peak.
void measure_peak_case(const PeakCase& peak, MeasuredPeaks& peaks,
                       const instruments::Device& device, Outcome& outcome);

}  // namespace tinyllama::harness
