#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "benchmarks/instruments/peaks.hpp"
#include "benchmarks/instruments/timer.hpp"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace tinyllama::instruments {
namespace {

constexpr int64_t mebibyte = int64_t{1} << 20;
constexpr int64_t array_count = 3;
constexpr float factor = 0.5F;
// Array lengths are multiples of this: of every vector and cache line, and of a GPU's widest
// access.
constexpr int64_t length_unit = 64;

using Input = std::span<const float>;

/// The loop behind the bandwidth of a CPU: a = b + s c. All three spans are of one length, a
/// multiple of 16, do not overlap, and start at a multiple of 64 bytes.
struct Triad {
  std::string_view name;
  void (*loop)(std::span<float> a, Input b, Input c, float s);
};

// Inlined into functions for several instruction sets, so that each gets its own vectorised copy.
[[gnu::always_inline]] inline void triad_body(std::span<float> a, Input b, Input c, float s) {
  float* __restrict to = a.data();
  const float* __restrict from_b = b.data();
  const float* __restrict from_c = c.data();
  for (size_t i = 0; i < a.size(); ++i) to[i] = from_b[i] + s * from_c[i];
}

[[gnu::noinline]] void triad_baseline(std::span<float> a, Input b, Input c, float s) {
  triad_body(a, b, c, s);
}

#ifdef __x86_64__
[[gnu::noinline, gnu::target("avx2,fma")]] void triad_avx2(std::span<float> a, Input b, Input c,
                                                           float s) {
  triad_body(a, b, c, s);
}

[[gnu::noinline, gnu::target("avx512f,prefer-vector-width=512")]] void triad_avx512(
    std::span<float> a, Input b, Input c, float s) {
  triad_body(a, b, c, s);
}

/// Streaming stores leave the overwritten lines unread: three transfers where ordinary stores need
/// four.
[[gnu::noinline]] void triad_streaming(std::span<float> a, Input b, Input c, float s) {
  const __m128 scale = _mm_set1_ps(s);
  constexpr size_t lanes = 4;
  for (size_t i = 0; i < a.size(); i += lanes) {
    const __m128 scaled = _mm_mul_ps(scale, _mm_load_ps(&c[i]));
    _mm_stream_ps(&a[i], _mm_add_ps(_mm_load_ps(&b[i]), scaled));
  }
  _mm_sfence();
}
#endif

/// With the widest vectors that this processor has.
Triad triad_with_ordinary_stores() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) return {"AVX-512, ordinary stores", &triad_avx512};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return {"AVX2, ordinary stores", &triad_avx2};
  }
#endif
  return {"ordinary stores", &triad_baseline};
}

/// The loops that compete for the bandwidth of memory: ordinary stores and, where the processor has
/// them, stores that do not read the line they overwrite.
std::vector<Triad> triads_for_memory() {
  std::vector<Triad> triads{triad_with_ordinary_stores()};
#ifdef __x86_64__
  triads.push_back({"streaming stores", &triad_streaming});
#endif
  return triads;
}

int64_t cache_bytes(const Device& device) {
  constexpr int64_t where_unknown = 64 * mebibyte;
  const int64_t known = device.description().last_level_cache_bytes;
  return known > 0 ? known : where_unknown;
}

struct Arrays {
  at::Tensor a, b, c;

  /// `bytes`: of all three together, rounded down.
  Arrays(const Device& device, int64_t bytes) {
    const int64_t length = std::max<int64_t>(
        bytes / array_count / int64_t{sizeof(float)} / length_unit * length_unit, length_unit);
    const auto options = at::TensorOptions().dtype(at::kFloat).device(device.torch());
    a = at::full({length}, 0.0F, options);
    b = at::full({length}, 1.0F, options);
    c = at::full({length}, 2.0F, options);
  }
  int64_t bytes() const { return array_count * a.numel() * int64_t{sizeof(float)}; }
};

std::span<float> part(const at::Tensor& array, int64_t index, int64_t parts) {
  const int64_t units = array.numel() / length_unit;
  const int64_t begin = units * index / parts * length_unit;
  const int64_t end = units * (index + 1) / parts * length_unit;
  return {array.data_ptr<float>() + begin, static_cast<size_t>(end - begin)};
}

/// `passes` triads over the arrays, each thread over a part of its own; the threads meet only at
/// the end.
void run_on_cpu(const Triad& triad, const Arrays& arrays, int64_t passes) {
  const int64_t parts = at::get_num_threads();
  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) {
      for (int64_t pass = 0; pass < passes; ++pass) {
        triad.loop(part(arrays.a, index, parts), part(arrays.b, index, parts),
                   part(arrays.c, index, parts), factor);
      }
    }
  });
}

void run_on_gpu(Arrays& arrays, int64_t passes) {
  for (int64_t pass = 0; pass < passes; ++pass) {
    at::add_out(arrays.a, arrays.b, arrays.c, factor);
  }
}

/// Bytes per second of the fastest of several repetitions of `run`, which makes `passes` passes
/// over the arrays.
double best_rate(const Device& device, const Arrays& arrays, int64_t passes,
                 const std::function<void()>& run) {
  constexpr int64_t repetitions = 10;
  run();
  const std::vector<double> seconds = time_iterations(
      device, repetitions, [] {}, run);
  return static_cast<double>(arrays.bytes() * passes) / *std::ranges::min_element(seconds);
}

MeasuredPeak measure(const Device& device, Arrays& arrays, int64_t passes,
                     const std::vector<Triad>& triads) {
  const double size = static_cast<double>(arrays.bytes()) / static_cast<double>(mebibyte);
  if (device.is_gpu()) {
    return {best_rate(device, arrays, passes, [&] { run_on_gpu(arrays, passes); }),
            fmt::format("triad through at::add_out, {:.3g} MiB", size)};
  }
  MeasuredPeak best;
  for (const Triad& triad : triads) {
    const double rate =
        best_rate(device, arrays, passes, [&] { run_on_cpu(triad, arrays, passes); });
    if (rate <= best.per_second) continue;
    best = {rate, fmt::format("triad, {}, {:.3g} MiB, {} threads", triad.name, size,
                              at::get_num_threads())};
  }
  return best;
}

MeasuredPeak measure_memory(const Device& device) {
  // Behind the last-level cache that a GPU reports there can be a larger one of the memory (256 MiB
  // on an MI300X).
  const int64_t at_least = device.is_gpu() ? 1536 * mebibyte : 64 * mebibyte;
  const int64_t wanted = std::max(4 * cache_bytes(device), at_least);
  Arrays arrays(device, std::min(wanted, device.free_memory_bytes() / 4));
  return measure(device, arrays, 1, triads_for_memory());
}

/// Working sets of 3/4 of the last-level cache, half of that, ... down to about what a thread's
/// second-level cache holds. On CPUs sets of 1 to 2 MiB were the fastest so far, and large ones
/// take long to make.
MeasuredPeak measure_cache(const Device& device) {
  const int64_t smallest = device.is_gpu() ? 2 * mebibyte : mebibyte / 4 * at::get_num_threads();
  const int64_t largest = cache_bytes(device) / 4 * 3;
  MeasuredPeak best;
  int64_t bytes = device.is_gpu() ? largest : std::min(largest, 64 * mebibyte);
  do {
    Arrays arrays(device, bytes);
    // Many passes a measurement, so that neither the clock nor the threads' start shows.
    const int64_t fewest = device.is_gpu() ? 50 : 1;
    const int64_t passes = std::max(fewest, 64 * mebibyte / arrays.bytes());
    MeasuredPeak peak = measure(device, arrays, passes, {triad_with_ordinary_stores()});
    if (peak.per_second > best.per_second) best = std::move(peak);
    bytes /= 2;
  } while (bytes >= smallest);
  return best;
}

}  // namespace

Bandwidth measure_bandwidth(const Device& device, bool with_memory) {
  return {with_memory ? measure_memory(device) : MeasuredPeak(), measure_cache(device)};
}

bool fits_into_cache(const DeviceDescription& device, int64_t bytes) {
  return bytes <= 2 * device.last_level_cache_bytes;
}

double attainable_bandwidth(const Bandwidth& bandwidth, const DeviceDescription& device,
                            int64_t bytes) {
  // What stayed in the last-level cache since the last iteration saves a read and a write of it.
  const auto total = static_cast<double>(bytes);
  if (fits_into_cache(device, bytes)) return bandwidth.cache.per_second;
  const auto cached = static_cast<double>(2 * device.last_level_cache_bytes);
  return total /
         ((total - cached) / bandwidth.memory.per_second + cached / bandwidth.cache.per_second);
}

}  // namespace tinyllama::instruments
