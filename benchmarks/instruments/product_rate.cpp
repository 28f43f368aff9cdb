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

// The first product of a path pays for the library's set-up.
constexpr int fewest_rounds = 2;
constexpr int most_rounds = 200;

struct Way {
  const GemmPath* path;
  GemmLayout layout;
  double seconds = std::numeric_limits<double>::infinity();  ///< the fastest so far
};

}  // namespace

MeasuredPeak measure_product(const Device& device, const std::string& type,
                             const BatchedGemmShape& shape, double seconds_budget) {
  const c10::ScalarType scalar_type = parse_gemm_type(type);
  const bool single = shape.count == 1;
  const std::vector<GemmPath> paths =
      single ? usable_gemm_paths(device, scalar_type) : std::vector<GemmPath>{batched_gemm_path()};
  GemmOperandPool operands(device.torch(), scalar_type);
  std::vector<Way> ways;
  for (const GemmPath& path : paths) {
    for (const GemmLayout layout : kGemmLayouts) ways.push_back({&path, layout});
  }
  const auto begin = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  // In rounds over all ways, so that a slow moment hits all of them.
  for (int round = 0; round < most_rounds; ++round) {
    if (round >= fewest_rounds && elapsed() > seconds_budget) break;
    for (Way& way : ways) {
      const auto views =
          single ? operands.get(shape.product, way.layout) : operands.get(shape, way.layout);
      const std::vector<double> seconds = time_iterations(
          device, 1, [] {}, [&] { way.path->multiply(views); });
      way.seconds = std::min(way.seconds, seconds.front());
    }
  }
  const Way& best = *std::ranges::min_element(ways, {}, &Way::seconds);
  return {static_cast<double>(shape.flops()) / best.seconds,
          fmt::format("{}, {}, {}", best.path->name, to_string(shape), to_string(best.layout))};
}

}  // namespace tinyllama::instruments
