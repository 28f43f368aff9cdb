// The peaks of this device: measured here and, where known, those of its datasheet. Percentages are
// of these.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/instruments/device.hpp"
#include "model/step_gemms.hpp"

namespace tinyllama::instruments {

struct MeasuredPeak {
  double per_second = 0;  ///< FLOP/s or bytes/s
  std::string source;     ///< how it was reached, e.g. "default BLAS, 1024x1024x1024, A x B^T"
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
  double memory_bandwidth = 0;          ///< bytes/s
  int64_t memory_bytes = 0;
  std::string source;
};

/// The row that matches the device's name and number of compute units, or nothing: an unknown
/// device has no datasheet peak. Throws std::invalid_argument naming the file, and the row, when
/// it is missing or malformed.
std::optional<DatasheetPeaks> find_datasheet_peaks(const std::filesystem::path& file,
                                                   const DeviceDescription& device);

}  // namespace tinyllama::instruments
