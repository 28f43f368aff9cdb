#include "benchmarks/harness/measure.hpp"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <iterator>
#include <new>
#include <numeric>
#include <stdexcept>

#include "benchmarks/instruments/host_allocator.hpp"
#include "benchmarks/instruments/operator_profile.hpp"

namespace tinyllama::harness {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

// How many iterations to start at once. A GPU is waited for after each batch, and waiting after
// each iteration would leave it idle in between; on a CPU a batch only spares the looking at
// clocks.
constexpr double kMostEvents = 10'000;  // each iteration of a GPU has its pair
double largest_batch(const instruments::Device& device, double iteration_seconds) {
  constexpr double seconds_of_a_cpu_batch = 1e-3;
  if (device.is_gpu()) return kMostEvents;
  return std::max(1.0, seconds_of_a_cpu_batch / iteration_seconds);
}

// The next batch after these samples; 0 where the goal is reached.
int64_t next_batch(const instruments::Device& device, const TimingGoal& goal,
                   const std::vector<double>& samples, double total, Clock::time_point start) {
  if (samples.empty()) return 1;
  const auto taken = static_cast<int64_t>(samples.size());
  const auto now = Clock::now();
  if (taken >= goal.most_iterations || now >= goal.deadline) return 0;
  const double count = static_cast<double>(taken);
  const double seconds = std::max(total / count, 1e-9);
  double wanted = std::min((goal.min_seconds - total) / seconds, largest_batch(device, seconds));
  auto deadline = goal.deadline;
  if (total >= goal.min_seconds) {
    if (goal.precision <= 0 || now >= goal.precision_deadline) return 0;
    const auto reached = steadiness(samples);
    if (reached && *reached <= goal.precision) return 0;
    // Looking sorts all of them: a larger batch each time keeps that short beside the timing.
    wanted = device.is_gpu() ? std::min(count / 5, kMostEvents) : count / 5;
    deadline = std::min(deadline, goal.precision_deadline);
  }
  const double elapsed = seconds_between(start, now);
  const double left = seconds_between(now, deadline) / std::max(elapsed / count, 1e-9);
  return std::clamp(static_cast<int64_t>(std::min(wanted, left)), int64_t{1},
                    goal.most_iterations - taken);
}

// Iterations after which memory that has not settled will not.
constexpr int kMostUnsettled = 10;

// Whether `math` is the only backend allowed: --sdpa-backend math.
bool is_attention_by_math_wanted() {
  const auto& context = at::globalContext();
  return context.userEnabledMathSDP() && !context.userEnabledFlashSDP();
}

double median_of_sorted(const std::vector<double>& values) {
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// Medians of batches of consecutive values, all of about the same size.
std::vector<double> batch_medians(const std::vector<double>& values, size_t batches) {
  std::vector<double> medians;
  for (size_t i = 0; i < batches; ++i) {
    const auto begin = values.begin() + static_cast<int64_t>(i * values.size() / batches);
    const auto end = values.begin() + static_cast<int64_t>((i + 1) * values.size() / batches);
    medians.push_back(median({begin, end}));
  }
  return medians;
}

// Lag-1 autocorrelation, corrected for the bias of -1/n that estimates from n values have.
double autocorrelation(const std::vector<double>& values) {
  const double middle = mean(values);
  double squares = 0;
  double products = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    squares += (values[i] - middle) * (values[i] - middle);
    if (i > 0) products += (values[i] - middle) * (values[i - 1] - middle);
  }
  return squares > 0 ? products / squares + 1 / static_cast<double>(values.size()) : 0;
}

// The 97.5 % point of Student's t; for 5 and more degrees within 0.2 %, by the expansion about the
// normal distribution's (Abramowitz and Stegun, 26.7.5).
double student_t(size_t degrees) {
  constexpr double exact[] = {12.706, 4.303, 3.182, 2.776};
  if (degrees <= std::size(exact)) return exact[degrees - 1];
  constexpr double z = 1.959964;
  constexpr double z3 = z * z * z;
  constexpr double z5 = z3 * z * z;
  constexpr double z7 = z5 * z * z;
  const auto n = static_cast<double>(degrees);
  return z + (z3 + z) / (4 * n) + (5 * z5 + 16 * z3 + 3 * z) / (96 * n * n) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * n * n * n);
}

// Half the width of the 95 % interval of a mean.
double half_interval(const std::vector<double>& values) {
  return student_t(values.size() - 1) * standard_deviation(values) /
         std::sqrt(static_cast<double>(values.size()));
}

}  // namespace

double thread_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

AllocationLimit::AllocationLimit(int64_t bytes)
    : before_(instruments::host_allocator::set_limit(bytes)) {}

AllocationLimit::~AllocationLimit() {
  instruments::host_allocator::set_limit(before_);
}

namespace {

// A backward that throws leaves its tasks, which hold tensors, in this thread's queue until the
// next backward.
void drop_tasks_of_failed_backward() {
  try {
    const at::AutoGradMode records(true);
    const at::Tensor one = at::ones({}).set_requires_grad(true);
    (one * one).backward();
  } catch (const std::exception&) {
    // no memory even for this: the failure that led here is reported
  }
}

std::string thrown_by(const instruments::Device& device, int64_t memory_limit_bytes,
                      const std::function<void()>& step) {
  try {
    const AllocationLimit limit(device.is_gpu() ? 0 : memory_limit_bytes);
    step();
    return {};
  } catch (const c10::OutOfMemoryError& error) {
    return fmt::format("out of memory: {}", error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return "out of memory: the system refused an allocation";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

std::string failure_of(const instruments::Device& device, int64_t memory_limit_bytes,
                       const std::function<void()>& step) {
  std::string failure = thrown_by(device, memory_limit_bytes, step);
  if (!failure.empty()) drop_tasks_of_failed_backward();
  return failure;
}

CaseWork build_work(const instruments::Device& device, const Case& test_case, uint64_t seed,
                    const Weights* weights) {
  CaseWork work;
  work.other_bytes = instruments::MemoryMeter(device).read().live_bytes;
  instruments::MemoryMeter memory(device);
  memory.start();
  work.item = test_case.component->build(
      {test_case.workload, test_case.pass, seed, device.torch(), weights, std::nullopt});
  work.build_peak_bytes = memory.read().peak_bytes - work.other_bytes;
  return work;
}

CacheFlusher::CacheFlusher(const instruments::Device& device) : device_(device) {
  constexpr int64_t unknown_cache_bytes = int64_t{64} << 20;
  const int64_t cache = device.description().last_level_cache_bytes;
  const int64_t bytes = 2 * (cache > 0 ? cache : unknown_cache_bytes);
  const auto options = at::TensorOptions().dtype(c10::ScalarType::Byte).device(device.torch());
  if (device.is_gpu()) {
    buffer_ = at::empty({bytes}, options);
  } else {
    // not by the allocator of tensors, whose limit is for the cases alone
    host_ = std::make_unique<uint8_t[]>(static_cast<size_t>(bytes));
    buffer_ = at::from_blob(host_.get(), {bytes}, options);
  }
}

void CacheFlusher::flush() {
  buffer_.add_(1);
}

Timing time_until(const instruments::Device& device, WorkItem& item, CacheFlusher* flusher,
                  const TimingGoal& goal) {
  Timing timing;
  double preparing_cpu = 0;
  const auto prepare = [&] {
    const double begin = thread_cpu_seconds();
    item.prepare();
    if (flusher) flusher->flush();
    preparing_cpu += thread_cpu_seconds() - begin;
  };
  const auto run = [&] { item.run(); };
  // With cold caches only the first of several iterations in a sample would find them cold; and
  // where the user says how many iterations there are, each is a sample.
  if (device.is_gpu() && !flusher && item.runs_in_a_row() &&
      goal.most_iterations == TimingGoal().most_iterations) {
    const double once =
        instruments::time_iterations(device, 1, prepare, run, goal.deadline).front();
    timing.runs = runs_of_a_gpu_sample(once);
  }
  preparing_cpu = 0;
  double total = 0;
  const auto start = Clock::now();
  const double cpu_start = thread_cpu_seconds();
  while (const int64_t count = next_batch(device, goal, timing.seconds, total, start)) {
    const auto batch =
        instruments::time_iterations(device, count, prepare, run, goal.deadline, timing.runs);
    timing.seconds.insert(timing.seconds.end(), batch.begin(), batch.end());
    total += std::accumulate(batch.begin(), batch.end(), 0.0) * static_cast<double>(timing.runs);
  }
  const double iterations =
      static_cast<double>(timing.runs) * static_cast<double>(timing.seconds.size());
  timing.cpu_seconds = (thread_cpu_seconds() - cpu_start - preparing_cpu) / iterations;
  return timing;
}

int64_t runs_of_a_gpu_sample(double seconds) {
  constexpr double shortest_sample = 50e-6;
  constexpr double most_runs = 100;
  return static_cast<int64_t>(
      std::clamp(std::ceil(shortest_sample / std::max(seconds, 1e-9)), 1.0, most_runs));
}

bool waits_for_host(double seconds, double device_seconds) {
  return device_seconds < 0.9 * seconds;
}

double warm_up(const instruments::Device& device, WorkItem& item, double min_seconds,
               double max_seconds) {
  const auto start = Clock::now();
  instruments::MemoryMeter memory(device);
  instruments::MemoryReading previous;
  double last = 0;
  for (int i = 0;; ++i) {
    memory.start();
    last = time_until(device, item, nullptr, {.most_iterations = 1}).seconds.front();
    const auto reading = memory.read();
    const bool settled =
        i + 1 >= kMostUnsettled || (i > 0 && reading.allocations == previous.allocations &&
                                    reading.reserved_bytes == previous.reserved_bytes);
    previous = reading;
    const double elapsed = seconds_between(start, Clock::now());
    if ((settled && elapsed >= min_seconds) || elapsed + last > max_seconds) break;
  }
  return last;
}

Metering meter(const instruments::Device& device, WorkItem& item, int64_t other_bytes) {
  Metering metering;
  instruments::MemoryMeter memory(device);
  memory.start();
  item.prepare();
  const int64_t prepared_allocations = memory.read().allocations;
  metering.operators = instruments::count_operators(
      [&] { metering.profile = instruments::profile_operators(device, [&] { item.run(); }); });
  const auto reading = memory.read();
  metering.peak_bytes = reading.peak_bytes - other_bytes;
  metering.allocations = reading.allocations - prepared_allocations;
  metering.library_scratch_bytes = reading.scratch_peak_bytes;
  return metering;
}

Metering meter_work(const instruments::Device& device, const Case& test_case,
                    const CaseWork& work) {
  Metering metering = meter(device, *work.item, work.other_bytes);
  // What a replayed step computes with lies in the pool of its graph, which the allocator counts as
  // free. The steps before the capture needed as much.
  if (test_case.pass == Pass::train && test_case.workload.variant.has(Switch::graph))
    metering.peak_bytes = std::max(metering.peak_bytes, work.build_peak_bytes);
  return metering;
}

std::string wrong_flops(const Case& test_case, const Metering& metering) {
  const Cost cost = test_case.cost();
  const auto& profile = metering.profile;
  for (const std::string& name : profile.unknown_operators) {
    if (instruments::is_gemm_like(name))
      return fmt::format("wrong FLOPs: {} may multiply matrices, and nobody counts its FLOPs",
                         name);
  }
  if (profile.attention_backend.starts_with("math")) {
    if (is_attention_by_math_wanted()) return {};
    return "sdpa was computed as a score matrix (libtorch's math backend), because no other "
           "backend takes this case; --sdpa-backend math asks for that";
  }
  const bool known = profile.unknown_operators.empty();
  if (!known || profile.gemm_flops == cost.hardware_flops - cost.opaque_flops) return {};
  return fmt::format("wrong FLOPs: hardware_flops by formula {}, counted by the profiler {}",
                     cost.hardware_flops, profile.gemm_flops + cost.opaque_flops);
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double median(std::vector<double> values) {
  if (values.empty()) throw std::invalid_argument("median of no values");
  std::sort(values.begin(), values.end());
  return median_of_sorted(values);
}

double standard_deviation(const std::vector<double>& values) {
  const double middle = mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - middle) * (value - middle);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

std::optional<Interval> repetitions_interval(const std::vector<double>& seconds) {
  if (seconds.size() < 2) return std::nullopt;
  // Times are positive and differ by factors.
  std::vector<double> logarithms;
  for (const double value : seconds) logarithms.push_back(std::log(value));
  const double middle = mean(logarithms);
  const double half = half_interval(logarithms);
  const double time = median(seconds);
  return Interval{std::min(time, std::exp(middle - half)), std::max(time, std::exp(middle + half))};
}

std::optional<double> steadiness(const std::vector<double>& in_order) {
  constexpr size_t fewest = 6;
  constexpr size_t most_batches = 10;
  if (in_order.size() < fewest) return std::nullopt;
  const auto medians = batch_medians(in_order, std::min(in_order.size(), most_batches));
  constexpr double most = 0.9;  // so few batches show no more than that
  const double left = std::clamp(autocorrelation(medians), 0.0, most);
  const double inflation = std::sqrt((1 + left) / (1 - left));
  return half_interval(medians) * inflation / median(in_order);
}

std::vector<double> thinned(const std::vector<double>& values, size_t most) {
  if (values.size() <= most) return values;
  std::vector<double> kept;
  kept.reserve(most);
  for (size_t i = 0; i < most; ++i) kept.push_back(values[i * values.size() / most]);
  return kept;
}

}  // namespace tinyllama::harness
