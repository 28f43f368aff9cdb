#include "benchmarks/harness/interleaved.hpp"

#include <algorithm>
#include <numeric>

#include "benchmarks/harness/admission.hpp"
#include "benchmarks/harness/case_work.hpp"

namespace tinyllama::harness {
namespace {

constexpr double kSliceSeconds = 0.02;
constexpr int64_t kMostRounds = 5;

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::vector<double> time_interleaved(const instruments::Device& device,
                                     const std::vector<const Case*>& cases,
                                     const RunSettings& settings) {
  const auto budget = memory_budget(device, settings.memory_limit_bytes, 0);
  const int64_t bytes = std::accumulate(
      cases.begin(), cases.end(), int64_t{0},
      [](int64_t sum, const Case* planned) { return sum + planned->memory().peak(); });
  if (bytes > budget.bytes) return {};
  std::vector<double> medians;
  const std::string failure = failure_of(device, settings.memory_limit_bytes, [&] {
    std::vector<CaseWork> works;
    std::vector<int64_t> iterations;
    double round_seconds = 0;
    for (const Case* planned : cases) {
      works.push_back(build_work(device, *planned, settings.seed, settings.weights));
      const double seconds =
          warm_up(device, *works.back().item, kWarmUpSeconds, settings.max_seconds_per_case / 10);
      iterations.push_back(std::max<int64_t>(1, static_cast<int64_t>(kSliceSeconds / seconds)));
      round_seconds += seconds * static_cast<double>(iterations.back());
    }
    const auto rounds =
        std::min(kMostRounds, static_cast<int64_t>(settings.max_seconds_per_case / round_seconds));
    if (rounds < 1) return;
    const auto flusher = settings.cold_cache ? std::make_unique<CacheFlusher>(device) : nullptr;
    std::vector<std::vector<double>> slices(cases.size());
    for (int64_t round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < cases.size(); ++i)
        slices[i].push_back(mean(time_work(device, *works[i].item, iterations[i], flusher.get())));
    }
    for (const auto& slice : slices) medians.push_back(median(slice));
  });
  return failure.empty() ? medians : std::vector<double>();
}

}  // namespace tinyllama::harness
