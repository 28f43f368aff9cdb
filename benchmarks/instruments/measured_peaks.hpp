// The measured and the datasheet's peaks of a run: the denominators, kept in one place.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/instruments/peaks.hpp"

namespace tinyllama::instruments {

/// Above this share of a peak the time, the count or the peak is wrong; up to it, the peak was
/// measured a little too low.
inline constexpr double kLargestShare = 1.05;

/// What a run is held against.
struct PeaksNeeded {
  std::vector<std::string> types;      ///< of GEMMs: "f32", "bf16", ...
  std::vector<GemmShape> shapes;       ///< of the run's own GEMMs
  int64_t traffic = kTrafficOfMemory;  ///< the largest of a pass
};

class MeasuredPeaks {
 public:
  /// `has_cold_caches`: cases start with cold caches (--cold-cache), so that memory's bandwidth
  /// counts for all of them.
  explicit MeasuredPeaks(const Device& device, bool has_cold_caches = false);

  /// Measures what is needed and not yet there (from a journal): seconds for each type of GEMMs,
  /// with the shapes given; bandwidth up to the traffic, and to memory's where caches are cold.
  void measure(const PeaksNeeded& needed);
  /// Whether measure() has nothing left to do.
  bool has(const PeaksNeeded& needed) const;
  /// Measures GEMMs of one type again, or bandwidth, keeps the better figure, and returns what
  /// was measured now.
  MeasuredPeak measure_flops_again(const std::string& type);
  MeasuredPeak measure_bandwidth_again();
  /// A peak below what was reached was measured while the machine was busy, and is measured again,
  /// at most twice.
  void measure_flops_below(const std::string& type, double reached);
  /// The highest rate of one shape of GEMMs, which becomes the peak of its type where it is higher.
  /// Throws std::runtime_error where it is above the datasheet's figure: then the time is wrong.
  MeasuredPeak measure_gemm(const std::string& type, const GemmShape& shape);
  /// A case reached this rate of FLOPs: the peak is at least that high.
  void raise(const std::string& type, double flops_per_second, const std::string& source);
  void set_datasheet(std::optional<DatasheetPeaks> datasheet);

  /// FLOP/s of GEMMs in `type`; throws std::out_of_range for a type that was not measured.
  double measured_flops(const std::string& type) const { return flops_.at(type).per_second; }
  const MeasuredPeak& measured(const std::string& type) const { return flops_.at(type); }
  /// The datasheet's figure where one is known, else the measured one: what MFU is against.
  double mfu_flops(const std::string& type) const { return mfu_peak(type).per_second; }
  MeasuredPeak mfu_peak(const std::string& type) const;
  /// The same of memory's bandwidth.
  MeasuredPeak memory_peak() const;
  /// What `bytes` of traffic can see: attainable_bandwidth(); memory's with cold caches.
  double bandwidth(int64_t bytes) const;
  const Bandwidth& measured_bandwidth() const { return bandwidth_; }

  /// For the context of a result, and back from a journal. restore() throws std::invalid_argument
  /// that names the key and the rule for what to_json() does not write. `shapes`: as measure()'s,
  /// for what is measured again.
  nlohmann::ordered_json to_json() const;
  void restore(const nlohmann::ordered_json& json, std::vector<GemmShape> shapes = {});

 private:
  /// As far as a curve has to reach.
  int64_t reach(const PeaksNeeded& needed) const;
  bool has_bandwidth_of(int64_t traffic) const;
  void keep_better(const Bandwidth& found);
  MeasuredPeak measure_type(const std::string& type) const;

  Device device_;
  bool has_cold_caches_;
  std::vector<GemmShape> shapes_;
  std::map<std::string, MeasuredPeak> flops_;
  Bandwidth bandwidth_;
  std::optional<DatasheetPeaks> datasheet_;
};

}  // namespace tinyllama::instruments
