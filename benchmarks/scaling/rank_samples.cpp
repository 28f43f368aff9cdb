#include "benchmarks/scaling/rank_samples.hpp"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace tinyllama::scaling {
namespace {

// Of the ranks that took part, step by step.
template <typename Combine>
double mean_over_steps(const RoundSamples& round, Combine combine) {
  size_t steps = std::numeric_limits<size_t>::max();
  for (const auto& rank : round) {
    if (!rank.empty()) steps = std::min(steps, rank.size());
  }
  if (steps == std::numeric_limits<size_t>::max())
    throw std::invalid_argument("a round without a sample");
  double sum = 0;
  for (size_t step = 0; step < steps; ++step) {
    std::vector<double> times;
    for (const auto& rank : round) {
      if (!rank.empty()) times.push_back(rank[step]);
    }
    sum += combine(times);
  }
  return sum / static_cast<double>(steps);
}

}  // namespace

RoundSamples gather_samples(distributed::ProcessGroup& group, const std::vector<double>& mine) {
  const auto count = static_cast<int64_t>(mine.size());
  const std::vector<double> counts = group.gather_numbers(static_cast<double>(count));
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
  return mean_over_steps(round, [](const std::vector<double>& times) {
    return *std::max_element(times.begin(), times.end());
  });
}

double mean_seconds(const RoundSamples& round) {
  return mean_over_steps(round, [](const std::vector<double>& times) {
    double sum = 0;
    for (const double time : times) sum += time;
    return sum / static_cast<double>(times.size());
  });
}

}  // namespace tinyllama::scaling
