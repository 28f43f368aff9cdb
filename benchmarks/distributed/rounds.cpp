#include "benchmarks/distributed/rounds.hpp"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <utility>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/instruments/timer.hpp"

namespace tinyllama::distributed {
namespace {

using Values = std::vector<double>;

double mean_of(const Values& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The mean over the iterations of what `combine` makes of the ranks that took part.
template <typename Combine>
double mean_over_iterations(const RoundSamples& round, Combine combine) {
  Values combined;
  for (size_t iteration = 0;; ++iteration) {
    Values times;
    for (const Values& rank : round) {
      if (iteration < rank.size()) times.push_back(rank[iteration]);
    }
    if (times.empty()) break;
    combined.push_back(combine(times));
  }
  if (combined.empty()) throw std::invalid_argument("a round without a sample");
  return mean_of(combined);
}

}  // namespace

RankTimes time_together(ProcessGroup& group, const RankWork& work, int64_t iterations) {
  RankTimes times;
  if (!group.is_first() && work.first_rank_only) {
    for (int64_t iteration = 0; iteration <= iterations; ++iteration) group.barrier();
    return times;
  }
  std::clock_t ticks = 0;
  std::optional<std::clock_t> first_tick;
  const auto count_ticks = [&] {
    if (first_tick) ticks += std::clock() - *first_tick;
  };
  const auto prepare = [&] {
    count_ticks();
    work.prepare();
    group.device().synchronize();
    // All start together, so that an iteration's time is that of its slowest rank; and no rank
    // waits for more than an iteration of another.
    group.barrier();
    first_tick = std::clock();
  };
  const auto run = [&] {
    for (int64_t call = 0; call < work.calls; ++call) work.run();
  };
  times.seconds = instruments::time_iterations(group.device(), iterations, prepare, run);
  count_ticks();
  group.barrier();
  const auto calls = static_cast<double>(work.calls);
  for (double& seconds : times.seconds) seconds /= calls;
  if (!times.seconds.empty()) {
    times.cpu_seconds = static_cast<double>(ticks) / CLOCKS_PER_SEC / calls /
                        static_cast<double>(times.seconds.size());
  }
  return times;
}

int64_t agreed_iterations(ProcessGroup& group, double wanted_seconds, double seconds) {
  const double mine = std::ceil(wanted_seconds / std::max(seconds, 1e-7));
  return static_cast<int64_t>(group.number_of_first(std::clamp(mine, 1.0, 1e6)));
}

RoundSamples gather_samples(ProcessGroup& group, const Values& mine) {
  const auto count = static_cast<int64_t>(mine.size());
  const Values counts = group.gather_numbers(static_cast<double>(count));
  const auto most = static_cast<int64_t>(*std::max_element(counts.begin(), counts.end()));
  const auto kind = at::TensorOptions(c10::ScalarType::Double);
  const at::Tensor share = at::full({std::max<int64_t>(most, 1)}, 0.0, kind);
  if (count > 0) share.narrow(0, 0, count).copy_(at::tensor(mine, kind));
  const at::Tensor sent = share.to(group.device().torch());
  const at::Tensor whole = at::full({sent.numel() * group.size()}, 0.0, sent.options());
  group.all_gather(whole, sent).wait();
  const at::Tensor here = whole.cpu();
  RoundSamples round;
  for (int rank = 0; rank < group.size(); ++rank) {
    const double* const begin = here.const_data_ptr<double>() + rank * sent.numel();
    round.emplace_back(begin, begin + static_cast<int64_t>(counts[static_cast<size_t>(rank)]));
  }
  return round;
}

double slowest_seconds(const RoundSamples& round) {
  return mean_over_iterations(
      round, [](const Values& times) { return *std::max_element(times.begin(), times.end()); });
}

double mean_seconds(const RoundSamples& round) {
  return mean_over_iterations(round, mean_of);
}

std::vector<size_t> random_order(size_t count, uint64_t seed, uint64_t round) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937_64 draw(seed + 0x9e3779b97f4a7c15ULL * (round + 1));
  // std::shuffle may differ between libraries; a remainder's bias does not matter for so few.
  for (size_t left = count; left > 1; --left) std::swap(order[left - 1], order[draw() % left]);
  return order;
}

bool any_rank_interrupted(ProcessGroup& group) {
  return group.largest_number(console::interrupted() ? 1 : 0) > 0;
}

void say(const ProcessGroup& group, const std::string& text) {
  if (group.is_first()) fmt::print(stderr, "{}\n", text);
}

}  // namespace tinyllama::distributed
