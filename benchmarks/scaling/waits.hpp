// What a rank waits for in a collective: the slowest rank to begin it, or the transfer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/distributed/process_group.hpp"

namespace tinyllama::scaling {

/// The collectives of a round. Of each, the time that a rank spends waiting is cut at the moment at
/// which the last rank began it, by rank 0's clock: before it the rank waited for others, after it
/// for the transfer. What runs while the rank computes is in neither.
struct CollectiveWaits {
  std::vector<double> wait_seconds;      ///< by rank: of an iteration, the median over them
  std::vector<double> transfer_seconds;  ///< likewise
  std::vector<int64_t> times_last;       ///< by rank: collectives that it began last
  /// Of each collective: how much later the last rank began it than the one before it.
  std::vector<double> late_seconds;
  double clock_uncertainty_seconds = 0;  ///< the largest of a rank's
};

/// `of_ranks`: [rank][operation], by rank 0's clock; of `iterations` with as many operations each.
/// Throws std::logic_error where ranks have other numbers of them. Nothing where there is none.
CollectiveWaits split_waits(const std::vector<std::vector<distributed::OperationTimes>>& of_ranks,
                            int64_t iterations);

/// The same of every rank's operations, of which this rank has recorded `mine`. All ranks have to
/// call it, and get the same. Aligns their clocks. Throws RankLostError.
CollectiveWaits gather_waits(distributed::ProcessGroup& group,
                             const std::vector<distributed::OperationTimes>& mine,
                             int64_t iterations);

/// "rank 1 arrives last in 47 of 48 collectives: 3.1 ms after the others", where one rank does so
/// in kOftenLast of them or more, by a median that no clock's uncertainty explains; else empty.
/// `rounds`: of one way of running a step.
std::string last_rank_words(const std::vector<CollectiveWaits>& rounds);
inline constexpr double kOftenLast = 0.8;

}  // namespace tinyllama::scaling
