// What a set of values says: mean, median, how far they scatter, intervals.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace tinyllama {

double mean(const std::vector<double>& values);
/// Mean of the two middle values where their number is even. Throws std::invalid_argument for no
/// values.
double median(std::vector<double> values);
/// Of a sample: over n - 1; 0 of a single value.
double standard_deviation(const std::vector<double>& values);

struct Interval {
  double low = 0;
  double high = 0;
};

/// The 95 % interval of a case's time: Student's t over the logarithms of its repetitions' medians,
/// which are the unit because samples of one repetition resemble each other more than those of the
/// next. Nothing for a single one. `tinyllama_tools.calibrate.coverage` measures how often it
/// covers.
std::optional<Interval> repetitions_interval(const std::vector<double>& seconds);

/// An interval that holds the median of what the values are drawn from with 95 % or more, whatever
/// its distribution: from the k-th smallest to the k-th largest, with the largest such k (sign
/// test). Of nine it leaves out one at each end, so that one disturbed round does not matter.
/// Nothing of fewer than six, which cannot tell.
std::optional<Interval> median_interval(std::vector<double> values);

/// How well samples of one stretch of time, in their order, tell its median: half the 95 % interval
/// of the medians of ten batches (or of fewer samples, at least 6; else nothing) over the median,
/// widened by the autocorrelation that is left between batches (batch means: Schruben 1983). It
/// says nothing of how far a later stretch may be from this one.
std::optional<double> steadiness(const std::vector<double>& in_order);

/// At most `most` of the values, evenly spaced, in their order.
std::vector<double> thinned(const std::vector<double>& values, size_t most);

}  // namespace tinyllama
