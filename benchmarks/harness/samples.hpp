// What a set of samples says: its middle, how sure that is, and a few of them to keep.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace tinyllama::harness {

double mean(const std::vector<double>& values);
/// Mean of the two middle values where their number is even. Throws std::invalid_argument for no
/// values.
double median(std::vector<double> values);
/// Of a sample: over n - 1. At least two values.
double standard_deviation(const std::vector<double>& values);

struct Interval {
  double low = 0;
  double high = 0;
};

/// Distribution-free interval that holds the median of what the values are drawn from with at least
/// 95 % (independent draws): the order statistics whose ranks cut 2.5 % at most off either end of
/// the binomial distribution (n, 1/2). Nothing for fewer than 6 values, of which no two reach 95 %.
std::optional<Interval> median_interval(std::vector<double> values);

/// Half the interval over the median; nothing where there is no interval.
std::optional<double> median_precision(const std::vector<double>& values);

/// At most `most` of the values, evenly spaced, in their order.
std::vector<double> thinned(const std::vector<double>& values, size_t most);

}  // namespace tinyllama::harness
