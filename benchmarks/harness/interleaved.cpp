#include "benchmarks/harness/interleaved.hpp"

#include <algorithm>
#include <deque>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "benchmarks/harness/failure.hpp"
#include "benchmarks/harness/prepared_case.hpp"
#include "core/statistics.hpp"

namespace tinyllama::harness {
namespace {

constexpr double kSliceSeconds = 0.02;
constexpr int64_t kMostRounds = 9;

// Each is checked beside those before it, but also has to be timed beside those after it.
bool fit_together(const instruments::Device& device, const std::vector<const Case*>& cases,
                  const Options& options) {
  const int64_t bytes = std::accumulate(
      cases.begin(), cases.end(), int64_t{0},
      [](int64_t sum, const Case* test_case) { return sum + test_case->memory().peak(); });
  return bytes <= memory_budget(device, options.memory_limit_bytes, 0).bytes;
}

SecondsOfRounds time_rounds(Preparation& preparation, const std::vector<const Case*>& cases) {
  std::deque<PreparedCase> prepared;
  double round_seconds = 0;
  for (const Case* test_case : cases) {
    const PreparedCase& added = prepared.emplace_back(
        preparation, *test_case, Steps{.proof = Steps::Proof::none, .meters = false});
    if (added.is_over()) return {};
    round_seconds += std::max(kSliceSeconds, added.warm_seconds());
  }
  const auto rounds = std::min(
      kMostRounds, static_cast<int64_t>(preparation.options.max_seconds_per_case / round_seconds));
  SecondsOfRounds of_rounds(rounds < 1 ? 0 : cases.size());
  std::vector<size_t> order(cases.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937 random(1);
  for (int64_t round = 0; round < rounds; ++round) {
    std::ranges::shuffle(order, random);
    for (const size_t i : order)
      of_rounds[i].push_back(median(prepared[i].time({.min_seconds = kSliceSeconds}).seconds));
  }
  return of_rounds;
}

}  // namespace

SecondsOfRounds time_cases_interleaved(const instruments::Device& device,
                                       const std::vector<const Case*>& cases,
                                       const Options& options, const Weights* weights) {
  SecondsOfRounds of_rounds;
  failure_of(device, options.memory_limit_bytes, [&] {
    if (!fit_together(device, cases, options)) return;
    Preparation preparation(device, options, weights);
    of_rounds = time_rounds(preparation, cases);
  });
  return of_rounds;
}

}  // namespace tinyllama::harness
