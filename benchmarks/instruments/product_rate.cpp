// How fast products of one shape are at best: every path and layout in turn, the fastest counts.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>

#include "benchmarks/instruments/gemm_paths.hpp"
#include "benchmarks/instruments/gemm_type.hpp"
#include "benchmarks/instruments/peaks.hpp"
#include "benchmarks/instruments/timer.hpp"

namespace tinyllama::instruments {
namespace {

using Clock = std::chrono::steady_clock;

// A way that takes so many times as long as the best is not tried again.
constexpr double hopeless = 4.0;
// Of a sample, at least: on a GPU events around a single short product time its launch.
constexpr double sample_seconds = 1e-3;
constexpr int64_t most_products = 1000;
constexpr int fewest_samples = 3;
constexpr int most_samples = 200;

struct Way {
  const GemmPath* path;
  GemmLayout layout;
  double seconds = std::numeric_limits<double>::infinity();  ///< of one product, the fastest so far
};

class ProductSearch {
 public:
  ProductSearch(const Device& device, c10::ScalarType type, const BatchedGemmShape& shape)
      : device_(device),
        shape_(shape),
        paths_(is_single() ? usable_gemm_paths(device, type)
                           : usable_batched_gemm_paths(device, type)),
        operands_(device.torch(), type) {
    for (const GemmPath& path : paths_) {
      for (const GemmLayout layout : kGemmLayouts) ways_.push_back({&path, layout});
    }
  }

  /// The first product of a way pays for the library's set-up; the second tells whether it has
  /// hope.
  void warm_up() {
    for (Way& way : ways_) {
      time(way, 1);
      way.seconds = time(way, 1);
    }
    const double limit = hopeless * best().seconds;
    std::erase_if(ways_, [&](const Way& way) { return way.seconds > limit; });
  }

  /// In rounds over all ways, so that a slow moment hits all of them.
  Way refine(double seconds_budget) {
    const auto begin = Clock::now();
    for (int sample = 0; sample < most_samples; ++sample) {
      const double elapsed = std::chrono::duration<double>(Clock::now() - begin).count();
      if (sample >= fewest_samples && elapsed > seconds_budget) break;
      for (Way& way : ways_) {
        const double wanted = sample_seconds / way.seconds;
        const auto products =
            static_cast<int64_t>(std::clamp(wanted, 1.0, static_cast<double>(most_products)));
        way.seconds = std::min(way.seconds, time(way, products));
      }
    }
    return best();
  }

 private:
  bool is_single() const { return shape_.count == 1; }
  Way best() const { return *std::ranges::min_element(ways_, {}, &Way::seconds); }

  double time(const Way& way, int64_t products) {
    const auto views =
        is_single() ? operands_.get(shape_.product, way.layout) : operands_.get(shape_, way.layout);
    const std::vector<double> seconds = time_iterations(
        device_, 1, [] {},
        [&] {
          for (int64_t i = 0; i < products; ++i) way.path->multiply(views);
        });
    return seconds.front() / static_cast<double>(products);
  }

  const Device& device_;
  BatchedGemmShape shape_;
  std::vector<GemmPath> paths_;
  GemmOperandPool operands_;
  std::vector<Way> ways_;
};

}  // namespace

std::string refuse_product(const Device& device, const std::string& type,
                           const BatchedGemmShape& shape) {
  const auto& [m, n, k] = shape.product;
  const auto element = static_cast<int64_t>(c10::elementSize(parse_gemm_type(type)));
  const int64_t bytes = shape.count * (m * k + k * n + m * n) * element;
  const int64_t free = device.free_memory_bytes();
  if (bytes <= free / 2) return {};
  return fmt::format("{} products {} need {} bytes, more than half of the {} that are free", type,
                     to_string(shape), bytes, free);
}

MeasuredPeak measure_product(const Device& device, const std::string& type,
                             const BatchedGemmShape& shape, double seconds_budget) {
  ProductSearch search(device, parse_gemm_type(type), shape);
  search.warm_up();
  const Way best = search.refine(seconds_budget);
  return {static_cast<double>(shape.flops()) / best.seconds,
          fmt::format("{}, {}, {}", best.path->name, to_string(shape), to_string(best.layout))};
}

}  // namespace tinyllama::instruments
