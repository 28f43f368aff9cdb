#include "benchmarks/harness/interleaved.hpp"

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "benchmarks/harness/measure.hpp"
#include "benchmarks/harness/memory_check.hpp"

namespace tinyllama::harness {
namespace {

constexpr double kSliceSeconds = 0.02;
constexpr int64_t kMostRounds = 9;

}  // namespace

SecondsOfRounds time_cases_interleaved(const instruments::Device& device,
                                       const std::vector<const Case*>& cases,
                                       const RunSettings& settings) {
  SecondsOfRounds all;
  const std::string failure = failure_of(device, settings.memory_limit_bytes, [&] {
    const auto budget = memory_budget(device, settings.memory_limit_bytes, 0);
    const int64_t bytes = std::accumulate(
        cases.begin(), cases.end(), int64_t{0},
        [](int64_t sum, const Case* test_case) { return sum + test_case->memory().peak(); });
    if (bytes > budget.bytes) return;
    const auto flusher = settings.cold_cache ? std::make_unique<CacheFlusher>(device) : nullptr;
    std::vector<CaseWork> works;
    double round_seconds = 0;
    for (const Case* test_case : cases) {
      works.push_back(build_work(device, *test_case, settings.seed, settings.weights));
      const double seconds =
          warm_up(device, *works.back().item, kWarmUpSeconds, settings.max_seconds_per_case / 10);
      round_seconds += std::max(kSliceSeconds, seconds);
    }
    const auto rounds =
        std::min(kMostRounds, static_cast<int64_t>(settings.max_seconds_per_case / round_seconds));
    if (rounds < 1) return;
    SecondsOfRounds of_rounds(cases.size());
    std::vector<size_t> order(cases.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::mt19937 random(1);
    for (int64_t round = 0; round < rounds; ++round) {
      std::ranges::shuffle(order, random);
      for (const size_t i : order) {
        const TimingGoal slice{.min_seconds = kSliceSeconds};
        const Timing timing = time_until(device, *works[i].item, flusher.get(), slice);
        of_rounds[i].push_back(median(timing.seconds));
      }
    }
    all = std::move(of_rounds);
  });
  return failure.empty() ? all : SecondsOfRounds();
}

}  // namespace tinyllama::harness
