// How fast a device multiplies matrices: the fastest of all shapes and layouts, or of one shape.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <limits>
#include <set>
#include <stdexcept>

#include "benchmarks/instruments/peaks.hpp"
#include "benchmarks/instruments/timer.hpp"
#include "core/text.hpp"

namespace tinyllama::instruments {
namespace {

int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// How the operands of out[m, n] = a[m, k] x b[k, n] lie in memory. Each is what one GEMM of a
/// linear layer finds: the forward pass multiplies with a transposed weight [n, k], the input's
/// gradient with the weight as it is, the weight's gradient with a transposed a.
enum class Layout { a_b, a_bt, at_b };
constexpr Layout kLayouts[] = {Layout::a_b, Layout::a_bt, Layout::at_b};

const char* to_string(Layout layout) {
  if (layout == Layout::a_b) return "A x B";
  return layout == Layout::a_bt ? "A x B^T" : "A^T x B";
}

struct Operands {
  at::Tensor a, b, out;
};

/// Why a path may not serve as the peak of this type, empty where it may. `operands`: small ones to
/// try it on.
std::string objection(const GemmFunction& multiply, Operands operands, c10::ScalarType type) {
  at::Tensor result;
  try {
    result = multiply(operands.a, operands.b, operands.out).to(at::kDouble);
  } catch (const std::exception& error) {
    // oneDNN's own errors pass through libtorch as they are.
    return message_of(error);
  }
  if (type != at::kFloat) return {};
  const at::Tensor exact = operands.a.to(at::kDouble).matmul(operands.b.to(at::kDouble));
  const double error = result.sub(exact).norm().item().toDouble() / exact.norm().item().toDouble();
  // float32 gives about 1e-7 here, TF32 3e-4, bfloat16 2e-3.
  constexpr double tolerance = 1e-5;
  if (error <= tolerance) return {};
  return fmt::format(
      "relative error {:.1e}: not true float32; float32 matmul precision must be \"highest\"",
      error);
}

struct Candidate {
  const GemmPaths::value_type* path;
  Layout layout;
  GemmShape shape;
  /// Of one multiplication, the fastest so far.
  double seconds = std::numeric_limits<double>::infinity();

  double rate() const { return static_cast<double>(shape.flops()) / seconds; }
  MeasuredPeak peak() const {
    return {rate(), fmt::format("{}, {}, {}", path->first, to_string(shape), to_string(layout))};
  }
};

/// Multiplies by the paths that may serve for a type on a device, and takes the time. Operands of
/// any shape come out of one buffer of random numbers: filling matrices would take longer than
/// multiplying them, and on a GPU zeros would multiply faster than a model's numbers do.
class GemmTimer {
 public:
  GemmTimer(const Device& device, c10::ScalarType type, GemmPaths paths, int64_t batch)
      : device_(device), paths_(std::move(paths)) {
    // A generator of our own leaves the sequence of the global one, and with it the model's
    // weights, alone.
    constexpr uint64_t seed = 20240229;
    numbers_ = at::empty({period}, at::kFloat);
    numbers_.normal_(0.0, 1.0, at::detail::createCPUGenerator(seed));
    numbers_ = inputs_ = numbers_.to(device.torch(), type);
    output_ = at::empty({0}, numbers_.options());
    std::string reasons;
    std::erase_if(paths_, [&](const auto& path) {
      const Operands trial = operands({std::min<int64_t>(batch, 4), 64, 64, 256}, Layout::a_bt);
      const std::string reason = objection(path.second, trial, type);
      if (!reason.empty()) reasons += fmt::format("\n  {}: {}", path.first, reason);
      return !reason.empty();
    });
    if (paths_.empty()) {
      throw std::runtime_error(fmt::format("no library multiplies {} matrices on {}:{}",
                                           c10::toString(type), device.description().name,
                                           reasons));
    }
  }

  const Device& device() const { return device_; }
  const GemmPaths& paths() const { return paths_; }
  /// Every path with every layout.
  std::vector<Candidate> candidates(const GemmShape& shape) const {
    std::vector<Candidate> all;
    for (const auto& path : paths_) {
      for (const Layout layout : kLayouts) all.push_back({&path, layout, shape});
    }
    return all;
  }

  /// Seconds of one multiplication: of the fastest of `samples`, each of `count` in a row.
  double time(const Candidate& candidate, int64_t samples, int64_t count = 1) {
    Operands of_shape = operands(candidate.shape, candidate.layout);
    const std::vector<double> seconds = time_iterations(
        device_, samples, [] {},
        [&] {
          for (int64_t i = 0; i < count; ++i)
            candidate.path->second(of_shape.a, of_shape.b, of_shape.out);
        });
    return *std::ranges::min_element(seconds) / static_cast<double>(count);
  }

 private:
  /// Views with the strides of the layout, of three dimensions where the batch is of several. Valid
  /// until the next call.
  Operands operands(const GemmShape& shape, Layout layout) {
    const auto& [batch, m, n, k] = shape;
    // b starts where any library finds it aligned.
    const int64_t b_start = round_up(batch * m * k, 256);
    const int64_t needed = b_start + batch * k * n;
    if (inputs_.numel() < needed) {
      inputs_ = at::empty({round_up(needed, period)}, numbers_.options());
      inputs_.view({-1, period}).copy_(numbers_);
    }
    if (output_.numel() < batch * m * n) {
      output_ = at::empty({batch * m * n}, numbers_.options());
    }
    const at::Tensor a = inputs_.narrow(0, 0, batch * m * k);
    const at::Tensor b = inputs_.narrow(0, b_start, batch * k * n);
    Operands views{layout == Layout::at_b ? a.view({batch, k, m}).mT() : a.view({batch, m, k}),
                   layout == Layout::a_bt ? b.view({batch, n, k}).mT() : b.view({batch, k, n}),
                   output_.narrow(0, 0, batch * m * n).view({batch, m, n})};
    if (batch == 1) views = {views.a[0], views.b[0], views.out[0]};
    return views;
  }

  // Enough numbers that no cache or predictor learns them.
  static constexpr int64_t period = int64_t{1} << 20;

  const Device& device_;
  GemmPaths paths_;
  at::Tensor numbers_;  ///< one period of random numbers
  at::Tensor inputs_;   ///< that period, repeated
  at::Tensor output_;
};

/// A first sample of every path, layout and shape, then repetitions of the best few.
class PeakSearch {
 public:
  PeakSearch(const Device& device, c10::ScalarType type, const GemmPaths& paths,
             double seconds_budget)
      : timer_(device, type, paths, 1),
        element_bytes_(static_cast<int64_t>(c10::elementSize(type))),
        memory_bytes_(device.free_memory_bytes() / 4),
        budget_(seconds_budget) {}

  /// Every path once at a small size, whatever the budget: the least that a peak can rest on.
  void probe() {
    constexpr int64_t size = 256;
    for (const Candidate& candidate : timer_.candidates({1, size, size, size})) sample(candidate);
  }

  void sample_squares() {
    const int64_t largest = timer_.device().is_gpu() ? 16384 : 4096;
    constexpr double long_seconds = 0.05;
    for (int64_t size = 512; size <= largest; size *= 2) {
      double fastest = std::numeric_limits<double>::infinity();
      set_bar();
      for (const Candidate& candidate : timer_.candidates({1, size, size, size}))
        fastest = std::min(fastest, sample_if_worthwhile(candidate, 0.45));
      if (fastest > long_seconds) return;
    }
  }

  /// The three GEMMs of a linear layer out[m, n] = a[m, k] x w[n, k]^T: forward, gradient of a,
  /// gradient of w.
  void sample_linear_layers(const std::vector<GemmShape>& shapes) {
    set_bar();
    for (const auto& [batch, m, n, k] : std::set<GemmShape>(shapes.begin(), shapes.end())) {
      for (const auto& path : timer_.paths()) {
        sample_if_worthwhile({&path, Layout::a_bt, {1, m, n, k}}, 0.75);
        sample_if_worthwhile({&path, Layout::a_b, {1, m, k, n}}, 0.75);
        sample_if_worthwhile({&path, Layout::at_b, {1, n, k, m}}, 0.75);
      }
    }
  }

  /// Repeats the fastest few in rounds, so that a slow moment hits all of them, until the budget is
  /// used up.
  MeasuredPeak refine() {
    std::ranges::sort(candidates_, std::greater{}, &Candidate::rate);
    candidates_.resize(std::min<size_t>(candidates_.size(), 4), candidates_.front());
    constexpr int most_rounds = 100;
    for (int round = 0; round < most_rounds; ++round) {
      for (Candidate& candidate : candidates_) {
        if (seconds_since(begin_) + candidate.seconds > budget_) return best();
        candidate.seconds = std::min(candidate.seconds, timer_.time(candidate, 1));
      }
    }
    return best();
  }

 private:
  double sample(Candidate candidate) {
    // The first call also pays for the library's set-up; what is short is repeated at once.
    candidate.seconds = timer_.time(candidate, 1);
    constexpr double sample_seconds = 0.01;
    const double repetitions = std::clamp(sample_seconds / candidate.seconds, 1.0, 10.0);
    candidate.seconds =
        std::min(candidate.seconds, timer_.time(candidate, static_cast<int64_t>(repetitions)));
    candidates_.push_back(candidate);
    double& rate = best_rates_[{candidate.path, candidate.layout}];
    rate = std::max(rate, candidate.rate());
    best_rate_ = std::max(best_rate_, candidate.rate());
    return candidate.seconds;
  }

  /// Paths and layouts that were far slower than the best so far are hopeless from here on. Not
  /// from each sample on: the first of a larger size would rule out all that only have smaller
  /// ones.
  void set_bar() {
    constexpr double hopeless = 0.25;
    bar_ = hopeless * best_rate_;
  }

  /// Samples unless it would not fit into this fraction of the budget or into memory, or this path
  /// and layout are hopeless. Returns the seconds of one
  /// multiplication, infinity where it was left out.
  double sample_if_worthwhile(const Candidate& candidate, double budget_fraction) {
    const auto& [batch, m, n, k] = candidate.shape;
    const double rate = best_rates_[{candidate.path, candidate.layout}];
    const double expected = 2 * static_cast<double>(candidate.shape.flops()) / rate;
    const bool in_time = seconds_since(begin_) + expected <= budget_ * budget_fraction;
    const bool in_memory = (m * k + k * n + m * n) * element_bytes_ <= memory_bytes_;
    if (!in_time || !in_memory || rate < bar_) return std::numeric_limits<double>::infinity();
    return sample(candidate);
  }

  MeasuredPeak best() const {
    return std::ranges::max_element(candidates_, {}, &Candidate::rate)->peak();
  }

  GemmTimer timer_;
  int64_t element_bytes_;
  int64_t memory_bytes_;
  Clock::time_point begin_ = Clock::now();
  double budget_;
  std::vector<Candidate> candidates_;
  std::map<std::pair<const GemmPaths::value_type*, Layout>, double> best_rates_;
  double best_rate_ = 0;
  double bar_ = 0;
};

}  // namespace

MeasuredPeak measure_gemm_peak(const Device& device, c10::ScalarType type, const GemmPaths& paths,
                               const std::vector<GemmShape>& linear_layers, double seconds_budget) {
  PeakSearch search(device, type, paths, seconds_budget);
  search.probe();
  search.sample_squares();
  search.sample_linear_layers(linear_layers);
  return search.refine();
}

std::string refuse_gemm(const Device& device, c10::ScalarType type, const GemmShape& shape) {
  const auto& [batch, m, n, k] = shape;
  const auto element = static_cast<int64_t>(c10::elementSize(type));
  const int64_t bytes = batch * (m * k + k * n + m * n) * element;
  const int64_t free = device.free_memory_bytes();
  if (bytes <= free / 2) return {};
  return fmt::format("a multiplication {} needs {} bytes, more than half of the {} that are free",
                     to_string(shape), bytes, free);
}

MeasuredPeak measure_gemm(const Device& device, c10::ScalarType type, const GemmPaths& paths,
                          const GemmShape& shape, double seconds_budget) {
  GemmTimer timer(device, type, paths, shape.batch);
  std::vector<Candidate> candidates = timer.candidates(shape);
  // The first multiplication pays for the library's set-up; the second tells whether there is hope.
  for (Candidate& candidate : candidates) {
    timer.time(candidate, 1);
    candidate.seconds = timer.time(candidate, 1);
  }
  const auto best = [&] { return *std::ranges::min_element(candidates, {}, &Candidate::seconds); };
  // What the baseline multiplies by is known even where it is hopeless as a peak.
  constexpr double hopeless = 4.0;
  const auto is_left_out = [limit = hopeless * best().seconds](const Candidate& candidate) {
    return candidate.seconds > limit;
  };
  std::vector<bool> left_out;
  for (const Candidate& candidate : candidates) left_out.push_back(is_left_out(candidate));
  // Of a sample, at least: on a GPU events around a single short GEMM time its launch.
  constexpr double sample_seconds = 1e-3;
  constexpr double most_in_a_row = 1000;
  constexpr int fewest_samples = 3;
  constexpr int most_samples = 200;
  const auto begin = Clock::now();
  // In rounds over all candidates, so that a slow moment hits all of them.
  for (int sample = 0; sample < most_samples; ++sample) {
    if (sample >= fewest_samples && seconds_since(begin) > seconds_budget) break;
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (left_out[i]) continue;
      Candidate& candidate = candidates[i];
      const double count = std::clamp(sample_seconds / candidate.seconds, 1.0, most_in_a_row);
      const double seconds = timer.time(candidate, 1, static_cast<int64_t>(count));
      candidate.seconds = std::min(candidate.seconds, seconds);
    }
  }
  MeasuredPeak peak = best().peak();
  double default_seconds = 0;
  for (const Candidate& candidate : candidates)
    if (candidate.path->first == kDefaultPath) default_seconds += candidate.seconds;
  if (default_seconds > 0)
    peak.default_per_second = static_cast<double>(std::size(kLayouts)) *
                              static_cast<double>(shape.flops()) / default_seconds;
  return peak;
}

}  // namespace tinyllama::instruments
