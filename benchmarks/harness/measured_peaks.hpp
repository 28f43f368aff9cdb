// The measured and the datasheet's peaks of this run: the denominators, kept in one place.
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
  /// `has_cold_caches`: what is held against the peaks finds nothing in a cache (--cold-cache).
  explicit MeasuredPeaks(const instruments::Device& device, bool has_cold_caches = false);

  /// Measures what the plan's rows are held against, what a journal brought along excepted: each of
  /// its types of GEMMs, with the matrix shapes of its cases; bandwidth up to the largest traffic
  /// of a case, and to memory's where a row is of it or caches are cold.
  void measure(const Plan& plan);
  /// Measures GEMMs of one type again, or bandwidth, keeps the better figure, and returns what
  /// was measured now.
  instruments::MeasuredPeak measure_flops_again(const std::string& type);
  instruments::MeasuredPeak measure_bandwidth_again();
  /// The best of GEMMs of one shape. One that beats the peak of its type becomes it; throws
  /// std::runtime_error for one that beats the datasheet's figure, which no right time can.
  instruments::MeasuredPeak measure_gemm(const std::string& type,
                                         const instruments::GemmShape& shape);
  /// A case reached this rate, which no GEMM could beat, so it is the peak.
  void raise(const std::string& type, double flops_per_second, const std::string& source);
  void set_datasheet(std::optional<instruments::DatasheetPeaks> datasheet);

  /// FLOP/s of GEMMs in `type`; throws std::out_of_range for a type that was not measured.
  double measured_flops(const std::string& type) const { return flops_.at(type).per_second; }
  const instruments::MeasuredPeak& measured(const std::string& type) const {
    return flops_.at(type);
  }
  /// The datasheet's figure where one is known, else the measured one: what MFU is against.
  double mfu_flops(const std::string& type) const;
  /// What `bytes` of traffic can see: instruments::attainable_bandwidth; memory's with cold caches.
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

/// One repetition of a row of Plan::peak_cases. Its time is that of 10^9 FLOPs, or of 10^9 bytes,
/// at the rate measured now, and with a shape of one such matrix multiplication; a better rate than
/// before becomes the peak.
void measure_peak_case(const PeakCase& peak, MeasuredPeaks& peaks,
                       const instruments::Device& device, Outcome& outcome);

}  // namespace tinyllama::harness
