#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/instruments/peaks.hpp"
#include "benchmarks/instruments/timer.hpp"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace tinyllama::instruments {
namespace {

constexpr int64_t kibibyte = int64_t{1} << 10;
constexpr int64_t mebibyte = int64_t{1} << 20;
constexpr int64_t array_count = 3;
constexpr float factor = 0.5F;
// Array lengths are multiples of this: of every vector and cache line, and of a GPU's widest
// access.
constexpr int64_t length_unit = 64;

using Input = std::span<const float>;

/// A loop behind the bandwidth of a CPU, over one thread's part of the arrays. All spans are of one
/// length, a multiple of 16, do not overlap, and start at a multiple of 64 bytes.
struct Kernel {
  std::string_view name;
  bool in_place;  ///< a = s a + 1, where b and c are empty; otherwise a = b + s c
  void (*loop)(std::span<float> a, Input b, Input c, float s);

  /// How often a pass transfers an element of `a`'s length.
  int64_t transfers() const { return in_place ? 2 : array_count; }
};

// Inlined into functions for several instruction sets, so that each gets its own vectorised copy.
[[gnu::always_inline]] inline void triad_body(std::span<float> a, Input b, Input c, float s) {
  float* __restrict to = a.data();
  const float* __restrict from_b = b.data();
  const float* __restrict from_c = c.data();
  for (size_t i = 0; i < a.size(); ++i) to[i] = from_b[i] + s * from_c[i];
}

// Tends to 1 / (1 - s): no denormal numbers, however often it runs.
[[gnu::always_inline]] inline void update_body(std::span<float> a, float s) {
  for (float& value : a) value = s * value + 1.0F;
}

[[gnu::noinline]] void triad_baseline(std::span<float> a, Input b, Input c, float s) {
  triad_body(a, b, c, s);
}

[[gnu::noinline]] void update_baseline(std::span<float> a, Input, Input, float s) {
  update_body(a, s);
}

#ifdef __x86_64__
[[gnu::noinline, gnu::target("avx2,fma")]] void triad_avx2(std::span<float> a, Input b, Input c,
                                                           float s) {
  triad_body(a, b, c, s);
}

[[gnu::noinline, gnu::target("avx2,fma")]] void update_avx2(std::span<float> a, Input, Input,
                                                            float s) {
  update_body(a, s);
}

#ifdef __clang__
#define TINY_LLAMA_AVX512 gnu::target("avx512f"), clang::min_vector_width(512)
#else
#define TINY_LLAMA_AVX512 gnu::target("avx512f,prefer-vector-width=512")
#endif
[[gnu::noinline, TINY_LLAMA_AVX512]] void triad_avx512(std::span<float> a, Input b, Input c,
                                                       float s) {
  triad_body(a, b, c, s);
}

[[gnu::noinline, TINY_LLAMA_AVX512]] void update_avx512(std::span<float> a, Input, Input, float s) {
  update_body(a, s);
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

/// Those that compete at every size, with the widest vectors that this processor has.
std::vector<Kernel> kernels() {
#ifdef __x86_64__
  const Kernel streaming{"triad, streaming stores", false, &triad_streaming};
  if (__builtin_cpu_supports("avx512f"))
    return {{"triad, AVX-512", false, &triad_avx512},
            {"update in place, AVX-512", true, &update_avx512},
            streaming};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return {{"triad, AVX2", false, &triad_avx2},
            {"update in place, AVX2", true, &update_avx2},
            streaming};
  return {
      {"triad", false, &triad_baseline}, {"update in place", true, &update_baseline}, streaming};
#else
  return {{"triad", false, &triad_baseline}, {"update in place", true, &update_baseline}};
#endif
}

struct Arrays {
  at::Tensor a, b, c;

  /// For a kernel whose pass transfers `bytes` in all, rounded down.
  Arrays(const Device& device, int64_t bytes, const Kernel& kernel) {
    const int64_t length = std::max<int64_t>(
        bytes / kernel.transfers() / int64_t{sizeof(float)} / length_unit * length_unit,
        length_unit);
    const auto options = at::TensorOptions().dtype(at::kFloat).device(device.torch());
    a = at::full({length}, 0.0F, options);
    b = at::full({kernel.in_place ? 0 : length}, 1.0F, options);
    c = at::full({kernel.in_place ? 0 : length}, 2.0F, options);
  }
};

std::span<float> part(const at::Tensor& array, int64_t index, int64_t parts) {
  const int64_t units = array.numel() / length_unit;
  const int64_t begin = units * index / parts * length_unit;
  const int64_t end = units * (index + 1) / parts * length_unit;
  return {array.data_ptr<float>() + begin, static_cast<size_t>(end - begin)};
}

/// `passes` over the arrays, each thread over a part of its own; the threads meet only at the end.
void run_on_cpu(const Kernel& kernel, const Arrays& arrays, int64_t passes) {
  const int64_t parts = at::get_num_threads();
  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) {
      for (int64_t pass = 0; pass < passes; ++pass) {
        kernel.loop(part(arrays.a, index, parts), part(arrays.b, index, parts),
                    part(arrays.c, index, parts), factor);
      }
    }
  });
}

void run_on_gpu(const Kernel& kernel, Arrays& arrays, int64_t passes) {
  for (int64_t pass = 0; pass < passes; ++pass) {
    if (kernel.in_place) {
      arrays.a.neg_();
    } else {
      at::add_out(arrays.a, arrays.b, arrays.c, factor);
    }
  }
}

/// The best of some repetitions of many passes each, so that neither the clock nor the start of
/// threads and kernels shows; the first repetition warms up.
MeasuredPeak measure_kernel(const Device& device, const Kernel& kernel, int64_t bytes) {
  constexpr int64_t fewest_repetitions = 3;
  constexpr int64_t most_repetitions = 10;
  constexpr double seconds_budget = 0.1;
  Arrays arrays(device, bytes, kernel);
  const int64_t moved = kernel.transfers() * arrays.a.numel() * int64_t{sizeof(float)};
  const int64_t passes = device.is_gpu() ? std::clamp<int64_t>(4096 * mebibyte / moved, 2, 200)
                                         : std::max<int64_t>(1, 64 * mebibyte / moved);
  const auto run = [&] {
    if (device.is_gpu()) return run_on_gpu(kernel, arrays, passes);
    run_on_cpu(kernel, arrays, passes);
  };
  const auto seconds_of = [&](int64_t repetitions) {
    const std::vector<double> seconds = time_iterations(
        device, repetitions, [] {}, run);
    return *std::ranges::min_element(seconds);
  };
  const double first = seconds_of(1);
  const auto affordable = static_cast<int64_t>(seconds_budget / std::max(first, 1e-9));
  const double best = seconds_of(std::clamp(affordable, fewest_repetitions, most_repetitions));
  const std::string threads =
      device.is_gpu() ? "" : fmt::format(", {} threads", at::get_num_threads());
  return {static_cast<double>(moved * passes) / best,
          fmt::format("{}, {:.3g} MiB a pass{}", kernel.name,
                      static_cast<double>(moved) / static_cast<double>(mebibyte), threads)};
}

MeasuredPeak measure_size(const Device& device, int64_t bytes, bool is_of_memory) {
  std::vector<Kernel> every = kernels();
  if (device.is_gpu())
    every = {{"triad, at::add_out", false, nullptr}, {"update in place, at::neg_", true, nullptr}};
  MeasuredPeak best;
  for (const Kernel& kernel : every) {
    // whose one array is half as large: part of it would stay in a cache
    if (is_of_memory && kernel.in_place) continue;
    MeasuredPeak found = measure_kernel(device, kernel, bytes);
    if (found.per_second > best.per_second) best = std::move(found);
  }
  return best;
}

int64_t next_power_of_two(int64_t value) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(value)));
}

/// The curve's size that is memory's: of arrays at least four times as large as the last-level
/// cache.
int64_t size_of_memory(const CurveRange& range) {
  constexpr int64_t where_unknown = 64 * mebibyte;
  const int64_t cache = range.last_level_cache_bytes;
  // Behind the last-level cache that a GPU reports there can be a larger one of the memory (256 MiB
  // on an MI300X).
  const int64_t at_least = range.is_gpu ? 1536 * mebibyte : 64 * mebibyte;
  return next_power_of_two(std::max(4 * (cache > 0 ? cache : where_unknown), at_least));
}

}  // namespace

std::vector<int64_t> curve_sizes(const CurveRange& range, int64_t traffic) {
  const int64_t smallest =
      range.is_gpu ? 2 * mebibyte : next_power_of_two(range.threads * 64 * kibibyte);
  const int64_t memory = size_of_memory(range);
  const int64_t wanted = traffic >= memory ? memory : next_power_of_two(traffic);
  std::vector<int64_t> sizes{smallest};
  while (sizes.back() < wanted && 2 * sizes.back() <= range.free_bytes / 4)
    sizes.push_back(2 * sizes.back());
  return sizes;
}

Bandwidth measure_bandwidth(const Device& device, int64_t traffic) {
  const CurveRange range{device.is_gpu(), at::get_num_threads(),
                         device.description().last_level_cache_bytes, device.free_memory_bytes()};
  Bandwidth found;
  const std::vector<int64_t> sizes = curve_sizes(range, traffic);
  // Where memory is too short for memory's own size, the largest that there is room for stands in.
  const bool reaches_memory = traffic >= size_of_memory(range);
  for (const int64_t bytes : sizes)
    found.curve[bytes] = measure_size(device, bytes, reaches_memory && bytes == sizes.back());
  if (reaches_memory) found.memory = found.curve[sizes.back()];
  return found;
}

double attainable_bandwidth(const Bandwidth& bandwidth, int64_t bytes) {
  const auto& curve = bandwidth.curve;
  const auto best_from = [&](auto size) {
    double best = 0;
    for (; size != curve.end(); ++size) best = std::max(best, size->second.per_second);
    return best;
  };
  const auto above = curve.lower_bound(bytes);
  if (above == curve.end()) {
    if (bandwidth.memory.per_second > 0 || curve.empty()) return bandwidth.memory.per_second;
    return curve.rbegin()->second.per_second;
  }
  const double of_above = best_from(above);
  if (above->first == bytes || above == curve.begin()) return of_above;
  const auto below = std::prev(above);
  const double share =
      std::log2(static_cast<double>(bytes) / static_cast<double>(below->first)) /
      std::log2(static_cast<double>(above->first) / static_cast<double>(below->first));
  return best_from(below) * std::pow(of_above / best_from(below), share);
}

}  // namespace tinyllama::instruments
