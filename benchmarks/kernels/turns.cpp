#include "benchmarks/kernels/turns.hpp"

#include <algorithm>
#include <numeric>
#include <random>

#include "benchmarks/instruments/timer.hpp"

namespace tinyllama::kernel_benchmark {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

double turn(const instruments::Device& device, const Contender& contender, int64_t iterations) {
  return median(instruments::time_iterations(device, iterations, contender.prepare, contender.run));
}

}  // namespace

std::vector<Timing> take_turns(const instruments::Device& device, const KernelCase& one,
                               int64_t rounds) {
  const size_t count = one.contenders.size();
  // The first iterations fill the allocator's cache and wake the threads.
  for (const Contender& contender : one.contenders) turn(device, contender, 3);
  constexpr int64_t iterations = 5;
  std::vector<std::vector<double>> seconds(count), ratios(count);
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937 random(1);
  for (int64_t round = 0; round < rounds; ++round) {
    std::ranges::shuffle(order, random);
    for (const size_t i : order) seconds[i].push_back(turn(device, one.contenders[i], iterations));
    for (size_t i = 0; i < count; ++i) ratios[i].push_back(seconds[i].back() / seconds[0].back());
  }
  std::vector<Timing> timings(count);
  for (size_t i = 0; i < count; ++i) timings[i] = {median(seconds[i]), median(ratios[i])};
  return timings;
}

}  // namespace tinyllama::kernel_benchmark
