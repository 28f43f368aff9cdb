// What this device can do at best: measured here and, where known, what its datasheet says. The
// denominators of every row.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "benchmarks/instruments/device.hpp"
#include "model/cost.hpp"

namespace tinyllama::instruments {

/// out[m, n] = a[m, k] x b[k, n]: 2 m n k FLOPs.
struct GemmShape {
  int64_t m, n, k;
  int64_t flops() const { return 2 * m * n * k; }
  auto operator<=>(const GemmShape&) const = default;
};

/// Shapes of the matrix products that a training step of this workload runs.
std::set<GemmShape> product_shapes(const Workload& workload);

/// `count` products of one shape at once: 2 count m n k FLOPs.
struct BatchedGemmShape {
  int64_t count = 1;
  GemmShape product{};
  int64_t flops() const { return count * product.flops(); }
  auto operator<=>(const BatchedGemmShape&) const = default;
};
/// "1024x256x512" is m x n x k; "32x256x128x64" is 32 of 256x128x64 at once.
std::string to_string(const BatchedGemmShape& shape);

/// Every product of a training step: those of linear layers forward, for the input's gradient and
/// for the weight's, also with Q, K and V or gate and up in one, and the LM head's by chunks; and
/// attention's, of B x KV heads at once, the queries of a group stacked.
std::set<BatchedGemmShape> step_products(const Workload& workload);

struct MeasuredPeak {
  double per_second = 0;  ///< FLOP/s or bytes/s
  std::string source;     ///< how it was reached, e.g. "default BLAS, 1024x1024x1024"
};

/// Which products measure_gemm_peak may use to find the peak. `type` is the type products run in:
/// "f64", "f32", "bf16", "f16". Best of the libraries' paths that the device offers, over large
/// square products and `model_shapes` (so that no product of the model can beat it). Takes about
/// `seconds_budget`; never less than one product a path.
MeasuredPeak measure_gemm_peak(const Device& device, const std::string& type,
                               const std::vector<GemmShape>& model_shapes, double seconds_budget);

/// Why products of this shape are not to be tried: their operands need more than half of the free
/// memory. Empty where they are.
std::string refuse_product(const Device& device, const std::string& type,
                           const BatchedGemmShape& shape);
/// The best that products of just this shape reach, by any path and layout of the operands; so many
/// in a row are timed that starting them does not count. Takes about `seconds_budget`, and never
/// less than two products a way and three samples of those that are not hopeless. Throws as
/// measure_gemm_peak does.
MeasuredPeak measure_product(const Device& device, const std::string& type,
                             const BatchedGemmShape& shape, double seconds_budget);

/// Triad a = b + s c, 3 arrays, counted as 2 reads and 1 write. `memory`: working set well beyond
/// the last-level cache; `cache`: the best over working sets that fit into it.
struct Bandwidth {
  MeasuredPeak memory;
  MeasuredPeak cache;
};
/// `with_memory`: whether memory's is wanted, which takes most of the time; it is 0 otherwise.
Bandwidth measure_bandwidth(const Device& device, bool with_memory = true);
/// Whether so many bytes of traffic, read and written, are all the last-level cache's.
bool fits_into_cache(const DeviceDescription& device, int64_t bytes);
/// Bytes per second that `bytes` of traffic can see at best, over and over: the last-level cache's
/// bandwidth for as much as fits into it, read and written, memory's for the rest. `bytes` > 0.
double attainable_bandwidth(const Bandwidth& bandwidth, const DeviceDescription& device,
                            int64_t bytes);
/// Bytes per second of that triad on a CPU with ordinary stores, over arrays of `bytes` together
/// that the pass before left where they are: what a kernel with this working set can hope for.
/// Median of `repetitions`.
double median_triad_rate(const Device& cpu, int64_t bytes, int64_t repetitions);

/// One row of fixtures/device_peaks.json: dense figures of one logical device.
struct DatasheetPeaks {
  std::string device;                   ///< "AMD Instinct MI250X (one GCD)"
  std::map<std::string, double> flops;  ///< by type: "f64", "f32", "bf16", "f16"; FLOP/s, dense
  double memory_bandwidth = 0;          ///< bytes/s
  int64_t memory_bytes = 0;
  std::string source;
};

/// The row that matches the device's name and number of compute units, or nothing: an unknown
/// device has no datasheet peak. Throws std::invalid_argument naming file, key, value and rule when
/// the file is missing or malformed.
std::optional<DatasheetPeaks> find_datasheet_peaks(const std::filesystem::path& file,
                                                   const DeviceDescription& device);

}  // namespace tinyllama::instruments
