#include "benchmarks/kernels/turns.hpp"

#include <ATen/Config.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "benchmarks/instruments/timer.hpp"
#include "benchmarks/instruments/triad.hpp"

// at::parallel_for is a template of libtorch's headers and would silently run on one thread.
#if AT_PARALLEL_OPENMP && !defined(_OPENMP)
#error "compile with OpenMP: see CMakeLists.txt"
#endif

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

double triad_rate(const instruments::Device& device, int64_t bytes, int64_t rounds) {
  constexpr int64_t length_unit = 64;
  const int64_t parts = at::get_num_threads();
  const int64_t per_array = bytes / 3 / int64_t{sizeof(float)};
  const int64_t part = std::max<int64_t>(1, per_array / parts / length_unit) * length_unit;
  const at::Tensor a = at::ones({parts * part}), b = at::ones_like(a), c = at::ones_like(a);
  const auto triad = instruments::triad_with_ordinary_stores();
  const auto span = [&](const at::Tensor& array, int64_t index) {
    return std::span<float>(array.data_ptr<float>() + index * part, static_cast<size_t>(part));
  };
  const Contender pass{"triad", [] {},
                       [&] {
                         at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
                           for (int64_t i = begin; i < end; ++i)
                             triad.loop(span(a, i), span(b, i), span(c, i), 0.5F);
                         });
                       }};
  const double seconds = turn(device, pass, 5 * rounds);
  return static_cast<double>(3 * parts * part) * sizeof(float) / seconds;
}

}  // namespace tinyllama::kernel_benchmark
