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
/// next. Nothing for a single one. `tinyllama_tools.calibrate.coverage` measures its coverage.
std::optional<Interval> repetitions_interval(const std::vector<double>& seconds);

/// An interval of the median with at least 95 % confidence, whatever the distribution (sign test):
/// from the k-th smallest to the k-th largest value, with the largest such k. Of nine values k is
/// 2, so that one disturbed round does not matter. Nothing for fewer than six values, for which no
/// k reaches 95 %.
std::optional<Interval> median_interval(std::vector<double> values);

/// Relative precision of the median of samples that follow each other, by batch means (Schruben
/// 1983): half the 95 % interval of the mean of the medians of ten batches, over the median,
/// widened by the autocorrelation between batches. Fewer than ten samples are their own batches;
/// nothing for fewer than six. It does not say how far the median of a later run may be from this
/// one.
std::optional<double> steadiness(const std::vector<double>& in_order);

/// At most `most` of the values, evenly spaced, in their order.
std::vector<double> thinned(const std::vector<double>& values, size_t most);

}  // namespace tinyllama
