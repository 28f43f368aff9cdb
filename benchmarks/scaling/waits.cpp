#include "benchmarks/scaling/waits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "benchmarks/scaling/rows.hpp"
#include "core/statistics.hpp"

namespace tinyllama::scaling {

using distributed::OperationTimes;

CollectiveWaits split_waits(const std::vector<std::vector<OperationTimes>>& of_ranks,
                            int64_t iterations) {
  CollectiveWaits found;
  const size_t ranks = of_ranks.size();
  const size_t operations = of_ranks.front().size();
  for (const auto& own : of_ranks) {
    if (own.size() != operations)
      throw std::logic_error("ranks with other numbers of collectives cannot be compared");
  }
  if (operations == 0) return found;
  found.times_last.assign(ranks, 0);
  const size_t in_an_iteration = operations / static_cast<size_t>(iterations);
  std::vector<std::vector<double>> waits(ranks), transfers(ranks);  // by iteration
  for (size_t operation = 0; operation < operations; ++operation) {
    std::vector<std::pair<double, size_t>> arrivals;
    for (size_t rank = 0; rank < ranks; ++rank)
      arrivals.emplace_back(of_ranks[rank][operation].started, rank);
    std::ranges::sort(arrivals);
    const auto [last, last_rank] = arrivals.back();
    ++found.times_last[last_rank];
    found.late_seconds.push_back(ranks > 1 ? last - arrivals[ranks - 2].first : 0);
    for (size_t rank = 0; rank < ranks; ++rank) {
      const OperationTimes& own = of_ranks[rank][operation];
      const double cut = std::clamp(last, own.waited, own.ended);
      if (operation % in_an_iteration == 0) {
        waits[rank].push_back(0);
        transfers[rank].push_back(0);
      }
      waits[rank].back() += cut - own.waited;
      transfers[rank].back() += own.ended - cut;
    }
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    found.wait_seconds.push_back(median(waits[rank]));
    found.transfer_seconds.push_back(median(transfers[rank]));
  }
  return found;
}

CollectiveWaits gather_waits(distributed::ProcessGroup& group,
                             const std::vector<OperationTimes>& mine, int64_t iterations) {
  const distributed::ClockOffset offset = group.align_clock();
  std::vector<double> numbers;
  for (const OperationTimes& one : mine) {
    for (const double time : {one.started, one.waited, one.ended})
      numbers.push_back(time + offset.seconds);
  }
  std::vector<std::vector<OperationTimes>> of_ranks;
  for (const auto& theirs : gather_samples(group, numbers)) {
    of_ranks.emplace_back();
    for (size_t i = 0; i + 2 < theirs.size(); i += 3)
      of_ranks.back().push_back({theirs[i], theirs[i + 1], theirs[i + 2]});
  }
  CollectiveWaits found = split_waits(of_ranks, iterations);
  found.clock_uncertainty_seconds = group.largest_number(offset.uncertainty_seconds);
  return found;
}

std::string last_rank_words(const std::vector<CollectiveWaits>& rounds) {
  std::vector<int64_t> times_last;
  std::vector<double> late;
  double uncertainty = 0;
  for (const CollectiveWaits& round : rounds) {
    times_last.resize(round.times_last.size());
    for (size_t rank = 0; rank < round.times_last.size(); ++rank)
      times_last[rank] += round.times_last[rank];
    late.insert(late.end(), round.late_seconds.begin(), round.late_seconds.end());
    uncertainty = std::max(uncertainty, round.clock_uncertainty_seconds);
  }
  if (late.empty()) return {};
  const auto often = std::ranges::max_element(times_last);
  const double usual = median(late);
  // Of two clocks, each may be off.
  if (static_cast<double>(*often) < kOftenLast * static_cast<double>(late.size()) ||
      usual <= 2 * uncertainty)
    return {};
  return fmt::format("rank {} arrives last in {} of {} collectives: {:.2g} ms after the others",
                     often - times_last.begin(), *often, late.size(), usual * 1e3);
}

}  // namespace tinyllama::scaling
