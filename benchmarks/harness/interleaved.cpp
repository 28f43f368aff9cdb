#include "benchmarks/harness/interleaved.hpp"

#include <algorithm>
#include <numeric>

#include "benchmarks/harness/admission.hpp"
#include "benchmarks/harness/measure.hpp"
#include "benchmarks/harness/samples.hpp"

namespace tinyllama::harness {
namespace {

constexpr double kSliceSeconds = 0.02;
constexpr int64_t kMostRounds = 5;

}  // namespace

std::vector<double> time_cases_interleaved(const instruments::Device& device,
                                           const std::vector<const Case*>& cases,
                                           const RunSettings& settings) {
  const auto budget = memory_budget(device, settings.memory_limit_bytes, 0);
  const int64_t bytes = std::accumulate(
      cases.begin(), cases.end(), int64_t{0},
      [](int64_t sum, const Case* planned) { return sum + planned->memory().peak(); });
  if (bytes > budget.bytes) return {};
  std::vector<double> medians;
  const std::string failure = failure_of(device, settings.memory_limit_bytes, [&] {
    const auto flusher = settings.cold_cache ? std::make_unique<CacheFlusher>(device) : nullptr;
    std::vector<CaseWork> kept;
    std::vector<TimedWork> works;
    double round_seconds = 0;
    for (const Case* planned : cases) {
      kept.push_back(build_work(device, *planned, settings.seed, settings.weights));
      WorkItem& item = *kept.back().item;
      round_seconds += std::max(
          kSliceSeconds, warm_up(device, item, kWarmUpSeconds, settings.max_seconds_per_case / 10));
      works.push_back({[&item, cold = flusher.get()] {
                         item.prepare();
                         if (cold) cold->flush();
                       },
                       [&item] { item.run(); }});
    }
    const auto rounds =
        std::min(kMostRounds, static_cast<int64_t>(settings.max_seconds_per_case / round_seconds));
    if (rounds < 1) return;
    const std::vector<TimingGoal> slices(cases.size(), {.min_seconds = kSliceSeconds});
    for (const auto& of_rounds : time_interleaved(device, works, slices, rounds))
      medians.push_back(median(of_rounds));
  });
  return failure.empty() ? medians : std::vector<double>();
}

}  // namespace tinyllama::harness
