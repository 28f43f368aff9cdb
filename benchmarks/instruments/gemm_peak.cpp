// Finds the fastest product: a first sample of every library's path, layout and shape, then
// repetitions of the best few.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>

#include "benchmarks/instruments/gemm_paths.hpp"
#include "benchmarks/instruments/gemm_type.hpp"
#include "benchmarks/instruments/peaks.hpp"
#include "benchmarks/instruments/timer.hpp"

namespace tinyllama::instruments {
namespace {

using Clock = std::chrono::steady_clock;

struct Candidate {
  size_t path = 0;
  GemmLayout layout = GemmLayout::a_b;
  GemmShape shape{};
  double seconds = 0;  ///< the fastest product so far
  double rate() const { return static_cast<double>(shape.flops()) / seconds; }
};

class PeakSearch {
 public:
  PeakSearch(const Device& device, c10::ScalarType type, double seconds_budget)
      : device_(device),
        paths_(usable_gemm_paths(device, type)),
        operands_(device.torch(), type),
        element_bytes_(static_cast<int64_t>(c10::elementSize(type))),
        memory_bytes_(device.free_memory_bytes() / 4),
        begin_(Clock::now()),
        budget_(seconds_budget) {}

  /// Every path once at a small size, whatever the budget: the least that a peak can rest on.
  void probe() {
    constexpr int64_t size = 256;
    for_each_path_and_layout([&](size_t path, GemmLayout layout) {
      sample({path, layout, {size, size, size}});
    });
  }

  void sample_squares() {
    const int64_t largest = device_.is_gpu() ? 16384 : 4096;
    constexpr double long_product_seconds = 0.05;
    for (int64_t size = 512; size <= largest; size *= 2) {
      double fastest = 0;
      for_each_path_and_layout([&](size_t path, GemmLayout layout) {
        const double seconds = sample_if_worthwhile({path, layout, {size, size, size}}, 0.45);
        if (seconds > 0 && (fastest == 0 || seconds < fastest)) fastest = seconds;
      });
      if (fastest == 0 || fastest > long_product_seconds) return;
    }
  }

  /// The three products of a linear layer out[m, n] = a[m, k] x w[n, k]^T: forward, gradient of a,
  /// gradient of w.
  void sample_linear_layers(const std::vector<GemmShape>& shapes) {
    const std::set<GemmShape> distinct(shapes.begin(), shapes.end());
    for (const auto& [m, n, k] : distinct) {
      for (size_t path = 0; path < paths_.size(); ++path) {
        sample_if_worthwhile({path, GemmLayout::a_bt, {m, n, k}}, 0.75);
        sample_if_worthwhile({path, GemmLayout::a_b, {m, k, n}}, 0.75);
        sample_if_worthwhile({path, GemmLayout::at_b, {n, k, m}}, 0.75);
      }
    }
  }

  /// Repeats the fastest few, in turn so that a slow moment hits all of them, until the budget is
  /// used up.
  MeasuredPeak refine() {
    std::ranges::sort(candidates_, std::greater{}, &Candidate::rate);
    candidates_.resize(std::min<size_t>(candidates_.size(), 4));
    constexpr int most_rounds = 100;
    for (int round = 0; round < most_rounds; ++round) {
      for (Candidate& candidate : candidates_) {
        if (elapsed() + candidate.seconds > budget_) return best();
        candidate.seconds = std::min(candidate.seconds, time(candidate, 1));
      }
    }
    return best();
  }

 private:
  template <typename Action>
  void for_each_path_and_layout(Action action) {
    for (size_t path = 0; path < paths_.size(); ++path) {
      for (const GemmLayout layout : kGemmLayouts) action(path, layout);
    }
  }

  double elapsed() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  double time(const Candidate& candidate, int64_t repetitions) {
    const GemmOperands operands = operands_.get(candidate.shape, candidate.layout);
    const auto& multiply = paths_[candidate.path].multiply;
    const std::vector<double> seconds = time_iterations(
        device_, repetitions, [] {}, [&] { multiply(operands); });
    return *std::ranges::min_element(seconds);
  }

  void sample(Candidate candidate) {
    // The first call also pays for the library's set-up; what is short is repeated at once.
    candidate.seconds = time(candidate, 1);
    constexpr double sample_seconds = 0.01;
    const double repetitions = std::clamp(sample_seconds / candidate.seconds, 1.0, 10.0);
    candidate.seconds =
        std::min(candidate.seconds, time(candidate, static_cast<int64_t>(repetitions)));
    candidates_.push_back(candidate);
    double& rate = best_rates_[{candidate.path, candidate.layout}];
    rate = std::max(rate, candidate.rate());
    best_rate_ = std::max(best_rate_, candidate.rate());
  }

  /// Samples unless it would not fit into this fraction of the budget or into memory, or this path
  /// and layout have been far slower than the best so far. Returns the seconds of one product, 0 if
  /// it was left out.
  double sample_if_worthwhile(const Candidate& candidate, double budget_fraction) {
    const auto& [m, n, k] = candidate.shape;
    constexpr double hopeless = 0.25;
    const double rate = best_rates_[{candidate.path, candidate.layout}];
    const double expected = 2 * static_cast<double>(candidate.shape.flops()) / rate;
    const bool in_time = elapsed() + expected <= budget_ * budget_fraction;
    const bool in_memory = (m * k + k * n + m * n) * element_bytes_ <= memory_bytes_;
    if (!in_time || !in_memory || rate < hopeless * best_rate_) return 0;
    sample(candidate);
    return candidates_.back().seconds;
  }

  MeasuredPeak best() const {
    const Candidate& fastest = *std::ranges::max_element(candidates_, {}, &Candidate::rate);
    const auto& [m, n, k] = fastest.shape;
    return {fastest.rate(), fmt::format("{}, {}x{}x{}, {}", paths_[fastest.path].name, m, n, k,
                                        to_string(fastest.layout))};
  }

  const Device& device_;
  std::vector<GemmPath> paths_;
  GemmOperandPool operands_;
  int64_t element_bytes_;
  int64_t memory_bytes_;
  Clock::time_point begin_;
  double budget_;
  std::vector<Candidate> candidates_;
  std::map<std::pair<size_t, GemmLayout>, double> best_rates_;
  double best_rate_ = 0;
};

}  // namespace

c10::ScalarType parse_gemm_type(const std::string& type) {
  static const std::map<std::string, c10::ScalarType> types = {
      {"f64", at::kDouble}, {"f32", at::kFloat}, {"bf16", at::kBFloat16}, {"f16", at::kHalf}};
  const auto found = types.find(type);
  if (found == types.end()) {
    throw std::invalid_argument(
        fmt::format("gemm peak: type \"{}\" is unknown (allowed: f64, f32, bf16, f16)", type));
  }
  return found->second;
}

MeasuredPeak measure_gemm_peak(const Device& device, const std::string& type,
                               const std::vector<GemmShape>& model_shapes, double seconds_budget) {
  PeakSearch search(device, parse_gemm_type(type), seconds_budget);
  search.probe();
  search.sample_squares();
  search.sample_linear_layers(model_shapes);
  return search.refine();
}

}  // namespace tinyllama::instruments
