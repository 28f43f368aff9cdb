// What this device can do at best: measured here and, where known, what its datasheet says. The
// denominators of every row.
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
/// The best that this shape alone reaches, by any path and layout of the operands; so many in a row
/// are timed that starting them does not count. Takes about `seconds_budget`, and never less than
/// two multiplications by each path and layout, and three samples of those that are not hopeless.
/// Throws as measure_gemm_peak does.
MeasuredPeak measure_gemm(const Device& device, c10::ScalarType type, const GemmPaths& paths,
                          const GemmShape& shape, double seconds_budget);

/// Bandwidth as a function of the traffic of a pass, warm, over and over. So much traffic is that
/// of a working set as large, where everything is read or written once (triad a = b + s c), or of
/// one half as large, where everything is read and written (a = s a + 1): at each size the better
/// one.
struct Bandwidth {
  std::map<int64_t, MeasuredPeak> curve;  ///< by bytes of traffic: powers of two
  MeasuredPeak memory;                    ///< of the curve's largest size, where that is memory's
};
/// Traffic beyond every cache.
inline constexpr int64_t kTrafficOfMemory = std::numeric_limits<int64_t>::max();
struct CurveRange {
  bool is_gpu = false;
  int64_t threads = 1;
  int64_t last_level_cache_bytes = 0;  ///< 0: unknown
  int64_t free_bytes = 0;
};
/// The sizes of a curve that reaches `traffic`: from about what the threads' first-level caches
/// hold to the first power of two that is as large, and at most to triads over arrays of four times
/// the last-level cache, which are memory's. The same sizes whatever the traffic, so that rows of
/// two plans are held against the same points. None but the first is over a quarter of what is
/// free.
std::vector<int64_t> curve_sizes(const CurveRange& range, int64_t traffic);
/// Of these sizes; `memory` is 0 where the traffic does not reach it, which saves most of the time.
Bandwidth measure_bandwidth(const Device& device, int64_t traffic = kTrafficOfMemory);
/// Bytes per second that `bytes` of traffic can see at best, over and over: the curve at that size,
/// between two sizes a straight line in the logarithms, beyond the largest memory's. Less traffic
/// is never slower at best than more, so a size counts as the best of itself and all larger ones:
/// what is slower there was disturbed, or waited for the start of a GPU's kernels. `bytes` > 0.
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
