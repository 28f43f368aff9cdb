// harness_overhead: what the harness adds to the call that it times. Each pair of lines times the
// same call in a bare loop, one clock reading before and one after all of its iterations, and as a
// case is timed; the two take turns, and medians are compared.
#include <ATen/ops/add.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "benchmarks/harness/measure.hpp"
#include "benchmarks/instruments/host_allocator.hpp"

namespace tinyllama::harness {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 41;

// out = x + x over `elements` floats, with no allocation; nothing at all for 0 elements.
class AddWork final : public WorkItem {
 public:
  explicit AddWork(int64_t elements) : x_(at::randn({elements})), out_(at::randn({elements})) {}
  void prepare() override {}
  void run() override {
    if (x_.numel() > 0) at::add_out(out_, x_, x_);
  }
  NamedTensors results() const override { return {{"out", out_}}; }

 private:
  at::Tensor x_;
  at::Tensor out_;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

double bare_loop(WorkItem& item, int64_t iterations) {
  const auto start = Clock::now();
  for (int64_t i = 0; i < iterations; ++i) {
    item.prepare();
    item.run();
  }
  return std::chrono::duration<double>(Clock::now() - start).count() /
         static_cast<double>(iterations);
}

double as_a_case(const instruments::Device& device, WorkItem& item, int64_t iterations) {
  const auto samples = time_work(device, item, iterations, nullptr);
  return std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(iterations);
}

void compare(const instruments::Device& device, int64_t elements) {
  AddWork item(elements);
  const double once = bare_loop(item, 10);
  const auto iterations = std::clamp<int64_t>(static_cast<int64_t>(0.01 / once), 5, 100'000);
  std::vector<double> bare;
  std::vector<double> timed;
  for (int round = 0; round < kRounds; ++round) {
    bare.push_back(bare_loop(item, iterations));
    timed.push_back(as_a_case(device, item, iterations));
  }
  const double difference = median(timed) - median(bare);
  const bool held = std::abs(difference) <= std::max(0.01 * median(bare), 200e-9);
  fmt::print("{:>10} {:>14.1f} {:>14.1f} {:>12.1f} {:>9.2f}  {}\n", elements, median(bare) * 1e9,
             median(timed) * 1e9, difference * 1e9, 100 * difference / median(bare),
             held ? "held" : "MISSED");
}

}  // namespace
}  // namespace tinyllama::harness

int main() {
  tinyllama::instruments::host_allocator::install();
  const auto device = tinyllama::instruments::Device::select("cpu");
  fmt::print("Limit: 1 % of the bare loop, or 200 ns where that is more; medians of {} turns.\n",
             tinyllama::harness::kRounds);
  fmt::print("{:>10} {:>14} {:>14} {:>12} {:>9}\n", "elements", "bare loop ns", "as a case ns",
             "overhead ns", "percent");
  for (const int64_t elements : {0, 64, 16'384, 262'144, 4'194'304})
    tinyllama::harness::compare(device, elements);
}
