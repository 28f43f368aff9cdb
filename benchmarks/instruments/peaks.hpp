// The peaks of this device, measured here and, where known, of its datasheet; and those of a run,
// which its percentages are of.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/instruments/device.hpp"
#include "model/step_gemms.hpp"

namespace tinyllama::instruments {

struct MeasuredPeak {
  double per_second = 0;  ///< FLOP/s or bytes/s
  std::string source;     ///< how it was reached, e.g. "default BLAS, 1024x1024x1024, A x B^T"
  /// Of a GEMM at its own shape: by kDefaultPath, over the mean time of its layouts; 0 of others.
  double default_per_second = 0;
};

/// The best of `paths`, over large square matrices and the shapes of linear layers (a batch of 1
/// each), forward and for both gradients. `type`: of the operands. A path that refuses the type, or
/// computes float32 in fewer bits, is left out; throws std::runtime_error with each one's reason
/// when none is left. Takes about `seconds_budget`; never less than one multiplication a path.
MeasuredPeak measure_gemm_peak(const Device& device, c10::ScalarType type, const GemmPaths& paths,
                               const std::vector<GemmShape>& linear_layers, double seconds_budget);

/// Why this shape is not to be tried: its operands need more than half of the free memory. Empty
/// where they do not.
std::string refuse_gemm(const Device& device, c10::ScalarType type, const GemmShape& shape);
/// The highest rate of this shape, by any path and layout of the operands; enough multiplications
/// are timed in a row that launching them does not matter. Takes about `seconds_budget`, and never
/// less than two multiplications by each path and layout and three samples of those that come near
/// the fastest. Throws as measure_gemm_peak does.
MeasuredPeak measure_gemm(const Device& device, c10::ScalarType type, const GemmPaths& paths,
                          const GemmShape& shape, double seconds_budget);

/// Bandwidth as a function of the traffic of a pass, of which many run over the same arrays. Each
/// size of traffic is measured with two loops, of which the faster counts: the triad a = b + s c,
/// whose arrays together are as large as the traffic, and a = s a + 1, whose array is half as large
/// because each element is read and written.
struct Bandwidth {
  std::map<int64_t, MeasuredPeak> curve;  ///< by bytes of traffic: powers of two
  MeasuredPeak memory;  ///< at the curve's largest size, where that is beyond every cache
};
/// Traffic beyond every cache.
inline constexpr int64_t kTrafficOfMemory = std::numeric_limits<int64_t>::max();
struct CurveRange {
  bool is_gpu = false;
  int64_t threads = 1;
  int64_t last_level_cache_bytes = 0;  ///< 0: unknown
  int64_t free_bytes = 0;
};
/// The sizes of traffic that a curve has: powers of two, from about what the threads' first-level
/// caches hold to the first that is at least `traffic`, and at most to a triad over arrays of four
/// times the last-level cache, which is memory's. Whatever the traffic, they come from one series,
/// so that rows of different plans are compared with the same points. None but the first is over a
/// quarter of the free memory.
std::vector<int64_t> curve_sizes(const CurveRange& range, int64_t traffic);
/// Measures the curve up to `traffic`. Where that does not reach memory's size, `memory` stays 0,
/// which saves most of the time.
Bandwidth measure_bandwidth(const Device& device, int64_t traffic = kTrafficOfMemory);
/// The highest bandwidth, in bytes per second, that work of `bytes` of traffic (> 0) can reach when
/// it is repeated: the curve at that size, interpolated linearly in the logarithms, and memory's
/// beyond the largest size. At best, less traffic is never slower than more, so each size counts as
/// the best of itself and all larger ones: a lower figure was disturbed, or is that of launching a
/// GPU's kernels.
double attainable_bandwidth(const Bandwidth& bandwidth, int64_t bytes);

/// One row of fixtures/device_peaks.json: dense figures of one logical device.
struct DatasheetPeaks {
  std::string device;                   ///< "AMD Instinct MI250X (one GCD)"
  std::map<std::string, double> flops;  ///< by type: "f64", "f32", "bf16", "f16"; FLOP/s, dense
  double memory_bandwidth = 0;          ///< bytes/s; 0: unknown
  int64_t memory_bytes = 0;
  std::string source;
};

/// Whether its name is one of a product. Where amdgpu's list of names lacks the card, or is not
/// installed, HIP says "AMD Radeon Graphics" of any (ROCm/TheRock#4693), or nothing.
bool has_product_name(const DeviceDescription& device);

/// The row that matches the device's name and number of compute units, or nothing: an unknown
/// device has no datasheet peak, and a partition of a GPU has not its peaks. Without a product's
/// name, what the rows of its architecture, compute units and memory have in common. Throws
/// std::invalid_argument naming the file, and the row, when it is missing or malformed.
std::optional<DatasheetPeaks> find_datasheet_peaks(const std::filesystem::path& file,
                                                   const DeviceDescription& device);

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
