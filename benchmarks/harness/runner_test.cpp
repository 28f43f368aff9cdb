// The pipeline of one case.
#include "benchmarks/harness/runner.hpp"

#include <ATen/Context.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <new>
#include <thread>
#include <utility>

#include "benchmarks/harness/case_counters.hpp"
#include "benchmarks/harness/failure.hpp"
#include "benchmarks/harness/rows.hpp"
#include "benchmarks/harness/testing.hpp"
#include "benchmarks/instruments/library_choices.hpp"
#include "core/statistics.hpp"

namespace tinyllama::harness {
namespace {

class RunnerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    peaks.restore(testing::made_up_peaks());
    settings.timing.iterations = 3;
  }
  void TearDown() override { instruments::host_allocator::set_limit(0); }

  void run(const std::vector<Case>& cases, int64_t repetitions = 1) {
    settings.timing.repetitions = repetitions;
    Runner runner(cpu, peaks, settings, sensors);
    for (const Case& test_case : cases) {
      Outcome outcome;
      for (int64_t i = 0; i < repetitions; ++i) runner.repeat(test_case, outcome);
      results.push_back(to_rows({test_case.name(), 0, repetitions}, outcome));
    }
    runner.close();
  }
  const Json& entry(size_t index) const { return results.at(index).entries.at(0); }
  std::string failure(size_t index) const { return results.at(index).failure(); }
  std::string skip(size_t index) const { return results.at(index).skip(); }
  bool was_measured(size_t index) const { return entry(index).contains("tokens_per_second"); }

  instruments::Device cpu = instruments::Device::select("cpu");
  instruments::MeasuredPeaks peaks{cpu};
  Options settings;
  std::optional<instruments::SystemReader> sensors;
  std::vector<CaseResult> results;
  Component honest = testing::linear_component();

  // Without what a busy machine does to samples of microseconds.
  std::string label_of_case(size_t index) {
    const std::string label = entry(index).value("label", "");
    const size_t disturbed = label.find("disturbed: ");
    return label.substr(0, disturbed < 2 ? disturbed : disturbed - 2);
  }
};

TEST_F(RunnerTest, AnHonestCaseHasEveryCounter) {
  run({testing::small_case(honest, Pass::forward_backward)});
  ASSERT_EQ(results.size(), 1U);
  for (const char* counter :
       {"samples_per_second", "tokens_per_second", "TFLOPS", "GB_per_second", "flop_per_byte",
        "peak_memory_MiB", "allocations", "operators", "parameters", "model_flops",
        "hardware_flops", "elementwise_flops", "bytes", "max_rel_error"})
    EXPECT_TRUE(entry(0).contains(counter)) << counter;
  EXPECT_LE(entry(0).at("max_rel_error").get<double>(), 2e-5);
  EXPECT_EQ(label_of_case(0), "");
}

TEST_F(RunnerTest, RepetitionsShareOneBuildOneProofAndOneWarmUp) {
  auto builds = std::make_shared<int>(0);
  const Component counted = testing::component_with_build([builds] { ++*builds; });
  run({testing::small_case(counted, Pass::forward)}, 3);
  EXPECT_EQ(results.at(0).entries.size(), 3U + 4U);
  EXPECT_EQ(*builds, 3) << "one for the case, two for its references";
}

TEST_F(RunnerTest, AWrongCaseFailsAndIsNotTimed) {
  auto forwards = std::make_shared<int>(0);
  const Component wrong = testing::linear_component({.scale = 1.01}, forwards);
  run({testing::small_case(wrong, Pass::forward), testing::small_case(honest, Pass::backward)}, 2);
  ASSERT_EQ(results.size(), 2U);
  EXPECT_CONTAINS(failure(0), "wrong result: output[");
  EXPECT_CONTAINS(failure(0), "by rounding to f32, plus");
  EXPECT_FALSE(was_measured(0));
  EXPECT_EQ(*forwards, 1 + 2 + 6 + 18) << "the gate's, and those that show what rounding does";
  EXPECT_TRUE(was_measured(1));
}

TEST_F(RunnerTest, WithoutTheGateAWrongCaseIsTimedButCarriesNoProof) {
  settings.verify = Verify::off;
  const Component wrong = testing::linear_component({.scale = 1.01});
  run({testing::small_case(wrong, Pass::forward)});
  EXPECT_TRUE(was_measured(0));
  EXPECT_FALSE(entry(0).contains("max_rel_error"));
}

TEST_F(RunnerTest, WhatABuildThrowsIsItsCasesFailureAndTheRunGoesOn) {
  const std::vector<std::pair<std::function<void()>, std::string>> faults = {
      {[] { TORCH_CHECK_WITH(OutOfMemoryError, false, "70 TiB asked for"); },
       "out of memory: 70 TiB asked for"},
      {[] { throw std::bad_alloc(); }, "out of memory: the system refused an allocation"},
      {[] { TORCH_CHECK(false, "shapes differ"); }, "shapes differ"},
      {[] { throw std::runtime_error("something else"); }, "something else"}};
  for (const auto& [fault, message] : faults) {
    results.clear();
    const Component broken = testing::component_with_build(fault);
    run({testing::small_case(broken, Pass::forward), testing::small_case(honest, Pass::forward)});
    ASSERT_EQ(results.size(), 2U) << message;
    EXPECT_EQ(failure(0), message);
    EXPECT_TRUE(was_measured(1)) << message;
  }
}

TEST_F(RunnerTest, AnAllocationThatFailsHalfwayIsReportedAndItsMemoryReleased) {
  const int64_t before = instruments::host_allocator::read().live_bytes;
  settings.memory_limit_bytes = before + (int64_t{32} << 20);
  const Component hungry = testing::component_with_build([] {
    const at::Tensor fits = at::empty({int64_t{20} << 20}, at::kByte);
    const at::Tensor does_not = at::empty({int64_t{20} << 20}, at::kByte);
  });
  run({testing::small_case(hungry, Pass::forward), testing::small_case(honest, Pass::forward)});
  ASSERT_EQ(results.size(), 2U);
  EXPECT_CONTAINS(failure(0), "out of memory: ");
  EXPECT_TRUE(was_measured(1));
  EXPECT_EQ(instruments::host_allocator::read().live_bytes, before);
  EXPECT_EQ(instruments::host_allocator::read().cached_bytes, 0);
}

TEST_F(RunnerTest, ALimitWithinALimitGivesWayToTheOneBefore) {
  constexpr int64_t mebibyte = int64_t{1} << 20;
  const AllocationLimit outer(instruments::host_allocator::read().live_bytes + 2 * mebibyte);
  {
    const AllocationLimit none(0);
    EXPECT_NO_THROW(at::empty({4 * mebibyte}, at::kByte));
  }
  EXPECT_THROW(at::empty({4 * mebibyte}, at::kByte), c10::OutOfMemoryError);
}

TEST_F(RunnerTest, CasesAboveTheMemoryLimitAreSkippedWithBothNumbers) {
  Case large = testing::small_case(honest, Pass::forward);
  large.known_memory = PredictedMemory{.weights = int64_t{3} << 30};
  settings.memory_limit_bytes = int64_t{2} << 30;
  run({large, testing::small_case(honest, Pass::backward)});
  ASSERT_EQ(results.size(), 2U);
  EXPECT_CONTAINS(skip(0), "predicted peak memory 3.00 GiB exceeds ");
  if (cpu.free_memory_bytes() > settings.memory_limit_bytes) {
    EXPECT_CONTAINS(skip(0), " exceeds 2.00 GiB (--memory-limit)");
  }
  EXPECT_TRUE(was_measured(1));
}

TEST_F(RunnerTest, RefusedCasesAreSkippedUnbuilt) {
  auto builds = std::make_shared<int>(0);
  const Component counted = testing::component_with_build([builds] { ++*builds; });
  Case refused = testing::small_case(counted, Pass::forward);
  refused.skip_reason = "has no such switch";
  Case slow = testing::small_case(counted, Pass::backward);
  settings.max_seconds_per_case = 1e-12;
  run({refused, slow});
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(skip(0), "has no such switch");
  EXPECT_CONTAINS(skip(1),
                  "3 iterations need at least 0.0 s at 1.00 PFLOP/s (the measured f32 peak), ");
  EXPECT_CONTAINS(skip(1), "more than --max-seconds-per-case 1e-12");
  EXPECT_EQ(*builds, 0);
}

TEST_F(RunnerTest, SmallBatchesAreVerifiedAtTwoAndSaySo) {
  run({testing::small_case(honest, Pass::forward, Dtype::f32, 1)});
  EXPECT_EQ(label_of_case(0), "verified at batch:2");
  EXPECT_TRUE(was_measured(0));
}

TEST_F(RunnerTest, ACaseWhoseFirstIterationIsTooSlowIsNotMeteredEither) {
  auto forwards = std::make_shared<int>(0);
  Component slow = testing::linear_component({}, forwards);
  slow.cost = [](const Workload&, Pass) { return Cost{.bytes = 8}; };
  settings.max_seconds_per_case = 1e-9;
  run({testing::small_case(slow, Pass::forward)});
  EXPECT_CONTAINS(skip(0), "an iteration took ");
  EXPECT_EQ(*forwards, 2) << "the gate's, and once more without what only a first one does";
}

// The linear component with something untimed before each iteration, and something timed within.
class Disturbed final : public WorkItem {
 public:
  Disturbed(std::unique_ptr<WorkItem> work, std::function<void()> before,
            std::function<void()> within)
      : work_(std::move(work)), before_(std::move(before)), within_(std::move(within)) {}
  void prepare() override {
    before_();
    work_->prepare();
  }
  void run() override {
    within_();
    work_->run();
  }
  NamedTensors results() const override { return work_->results(); }
  void change_inputs(uint64_t seed, int64_t distinct) override {
    work_->change_inputs(seed, distinct);
  }

 private:
  std::unique_ptr<WorkItem> work_;
  std::function<void()> before_, within_;
};

Component disturbed(
    const std::function<void()>& before, const std::function<void()>& within = [] {}) {
  Component component = testing::linear_component();
  component.build = [=, build = component.build](const BuildRequest& request) {
    return std::make_unique<Disturbed>(build(request), before, within);
  };
  return component;
}

TEST_F(RunnerTest, PreparationCountsAgainstTheTimeOfACaseAndTheRowSaysWhatWasTimed) {
  int preparations = 0;
  const Component component = disturbed([&] {
    ++preparations;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  settings.max_seconds_per_case = 0.25;
  settings.verify = Verify::off;
  settings.timing.iterations.reset();
  settings.timing.min_seconds = 0.05;
  // Twenty thousand iterations of microseconds would be a twentieth of a second, and prepared for
  // in 100 s. A quarter of a second is 50 preparations; each call has one more at least.
  run({testing::small_case(component, Pass::forward)}, 3);
  EXPECT_LT(preparations, 2 * 50);
  ASSERT_TRUE(was_measured(0));
  const auto iterations = entry(0).at("iterations").get<int64_t>();
  EXPECT_GE(iterations, 1);
  EXPECT_LE(iterations, preparations);
  EXPECT_CONTAINS(entry(0).value("label", ""), "of 3 repetitions");
}

TEST_F(RunnerTest, APrecisionThatIsAskedForIsSoughtInAllTheTimeOfTheCase) {
  settings.verify = Verify::off;
  settings.timing.iterations.reset();
  settings.timing.min_seconds = 1e-6;
  settings.timing.precision = 1e-9;  // out of reach
  settings.max_seconds_per_case = 0.1;
  // Times that a clock cannot tell apart would be as precise as anything.
  int calls = 0;
  const Component uneven = disturbed([] {},
                                     [&calls] {
                                       const auto wait =
                                           std::chrono::microseconds(++calls % 2 == 0 ? 2 : 20);
                                       const auto end = std::chrono::steady_clock::now() + wait;
                                       while (std::chrono::steady_clock::now() < end) {
                                       }
                                     });
  const auto start = std::chrono::steady_clock::now();
  run({testing::small_case(uneven, Pass::forward)}, 2);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(90));
  ASSERT_EQ(results.at(0).entries.size(), 2U + 4U);
  // Each has its share of it.
  EXPECT_LT(entry(0).at("iterations").get<int64_t>(),
            10 * results[0].entries[1].at("iterations").get<int64_t>());
}

TEST_F(RunnerTest, AFirstIterationThatAlsoLoadsKernelsDecidesNothing) {
  Component slow_at_first = testing::linear_component();
  slow_at_first.build = [build = slow_at_first.build](const BuildRequest& request) {
    // Not where memory is predicted, nor of the float64 reference.
    const bool is_timed = !request.device.is_meta() && request.workload.dtype == Dtype::f32;
    auto is_first = std::make_shared<bool>(is_timed);
    return std::make_unique<Disturbed>(
        build(request), [] {},
        [is_first] {
          if (std::exchange(*is_first, false))
            std::this_thread::sleep_for(std::chrono::milliseconds(500));
        });
  };
  settings.max_seconds_per_case = 1;  // of which an iteration may take a third
  run({testing::small_case(slow_at_first, Pass::forward)});
  EXPECT_TRUE(was_measured(0)) << skip(0);
}

TEST_F(RunnerTest, SamplesOfAStoppedProcessLeaveTimeAndRatesAlone) {
  auto runs = std::make_shared<int>(0);
  Component stopped = testing::with_forward([runs](const at::Tensor& x) {
    if (++*runs % 8 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return x.neg();
  });
  stopped.cost = [](const Workload&, Pass) { return Cost{.elementwise_flops = 1, .bytes = 1}; };
  settings.timing.iterations = 16;
  settings.verify = Verify::off;
  run({testing::small_case(stopped, Pass::forward)});
  const Json& row = entry(0);
  const auto seconds = row.at("real_time").get<double>() * 1e-3;
  const auto samples = row.at("samples_ns").get<std::vector<double>>();
  EXPECT_NEAR(seconds, median(samples) * 1e-9, 1e-9);
  EXPECT_GT(row.at("mean_ns").get<double>() * 1e-9, 1.1 * seconds);
  EXPECT_DOUBLE_EQ(row.at("samples_per_second").get<double>(), 2 / seconds);
  EXPECT_CONTAINS(row.value("label", ""), "disturbed: mean ");
}

TEST_F(RunnerTest, CpuTimeIsOfTheWorkAlone) {
  constexpr double seconds_of_preparation = 0.005;
  const Component component = disturbed([] {
    const std::clock_t begin = std::clock();
    while (static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC < seconds_of_preparation) {
    }
  });
  run({testing::small_case(component, Pass::forward)});
  ASSERT_TRUE(was_measured(0));
  ASSERT_EQ(entry(0).at("time_unit"), "ms");
  EXPECT_LT(entry(0).at("cpu_time").get<double>(), 0.5 * seconds_of_preparation * 1e3);
}

TEST_F(RunnerTest, ACaseFarAboveThePeakIsTimedAllTheSame) {
  // 10^18 FLOPs would take this peak 100 ms, and no machine does them in microseconds.
  peaks.restore(testing::made_up_peaks(1e19, 1e15, {{1 << 20, 1e15}}));
  Component boaster = honest;
  boaster.cost = [](const Workload& w, Pass pass) {
    // As an attention kernel, whose GEMMs the profiler cannot count.
    constexpr int64_t claimed = 1'000'000'000'000'000'000;
    return Cost{.model_flops = claimed,
                .hardware_flops = claimed,
                .bytes = 8,
                .opaque_flops = claimed - testing::linear_cost(w, pass).hardware_flops};
  };
  const Case test_case = testing::small_case(boaster, Pass::forward);
  run({test_case}, 2);
  ASSERT_EQ(results.at(0).entries.size(), 2U + 4U) << "each repetition and the aggregates";
  EXPECT_TRUE(was_measured(0));
  add_shares(test_case, peaks, results[0]);
  EXPECT_CONTAINS(entry(0).value("above_peak", ""), "% of the measured f32 peak: the time,");
}

TEST_F(RunnerTest, FlopsThatTheProfilerDoesNotCountAreAnError) {
  Component boaster = honest;
  boaster.cost = [](const Workload& w, Pass pass) {
    Cost cost = testing::linear_cost(w, pass);
    cost.hardware_flops += 1;
    return cost;
  };
  run({testing::small_case(boaster, Pass::forward_backward)});
  EXPECT_CONTAINS(failure(0),
                  "wrong FLOPs: hardware_flops by formula 3073, counted by the profiler 3072");
  EXPECT_FALSE(was_measured(0));
}

TEST_F(RunnerTest, OperatorsThatTheProfilerDoesNotKnowAreNamedAndAnErrorWhereTheyLookLikeGemms) {
  const Component sum =
      testing::with_forward([](const at::Tensor& x) { return at::cumsum(x, -1); });
  const Component convolution = testing::with_forward([](const at::Tensor& x) {
    return at::conv1d(x.squeeze(0), at::ones({4, 4, 1}));
  });
  settings.verify = Verify::off;
  run({testing::small_case(sum, Pass::forward), testing::small_case(convolution, Pass::forward)});
  EXPECT_EQ(failure(0), "");
  EXPECT_CONTAINS(entry(0).value("label", "none"), "counted_flops leaves out: aten::cumsum");
  EXPECT_CONTAINS(failure(1), "wrong FLOPs: aten::");
  EXPECT_CONTAINS(failure(1), "convolution may multiply matrices");
}

TEST_F(RunnerTest, AttentionByAScoreMatrixThatNobodyAskedForIsAnError) {
  // What drops out has no kernel.
  const auto attention = [](double dropout) {
    Component component = testing::with_forward([dropout](const at::Tensor& x) {
      return at::scaled_dot_product_attention(x, x, x, {}, dropout);
    });
    component.cost = [](const Workload&, Pass) { return Cost{.bytes = 8}; };
    return component;
  };
  settings.verify = Verify::off;
  const Component by_kernel = attention(0), by_math = attention(0.5);
  run({testing::small_case(by_kernel, Pass::forward), testing::small_case(by_math, Pass::forward)});
  EXPECT_EQ(failure(0), "");
  EXPECT_EQ(label_of_case(0), "attention: flash");
  EXPECT_CONTAINS(failure(1), "libtorch's math backend");
  instruments::choose_libraries(cpu, {.attention = "math"});
  run({testing::small_case(by_kernel, Pass::forward)});
  at::globalContext().setSDPUseFlash(true);
  EXPECT_EQ(failure(2), "");
  EXPECT_EQ(label_of_case(2), "attention: math");
}

TEST_F(RunnerTest, AClockThatFallsAndWhatHoldsItDownAreTold) {
  auto looks = std::make_shared<std::atomic<int>>(0);
  sensors = instruments::SystemReader{"a fake", [looks] {
                                        const int look = ++*looks;
                                        return instruments::SystemReading{
                                            {"clock_MHz", look == 1 ? 2000.0 : 1900.0},
                                            {"power_watts", 100},
                                            {"limited_by_power", look == 1 ? 0.0 : 1.0}};
                                      }};
  run({testing::small_case(honest, Pass::forward)}, 3);
  EXPECT_EQ(entry(0).at("clock_MHz"), 2000);
  EXPECT_EQ(entry(0).at("power_W"), 100);
  EXPECT_TRUE(entry(0).contains("joules_per_token"));
  EXPECT_EQ(label_of_case(0), "clock held down by power; clock fell from 2000 to 1900 MHz");
}

// Beside the work of a CPU nothing may read: no thread, but a look before and one after.
TEST_F(RunnerTest, EnergyOfACpuIsReadBeforeAndAfterARepetition) {
  auto looks = std::make_shared<std::atomic<int>>(0);
  sensors =
      instruments::SystemReader{.source = "a fake",
                                .read =
                                    [looks] {
                                      return instruments::SystemReading{
                                          {"clock_MHz", 2000}, {"power_watts", 10.0 * ++*looks}};
                                    },
                                .only_at_ends = true};
  run({testing::small_case(honest, Pass::forward)});
  EXPECT_EQ(*looks, 2);
  EXPECT_EQ(entry(0).at("power_W"), 20);
  EXPECT_TRUE(entry(0).contains("joules_per_token"));
  EXPECT_FALSE(entry(0).contains("clock_MHz")) << "of one moment, not of the repetition";
}

TEST_F(RunnerTest, TheClockOfACaseIsNotThatOfPeaksMeasuredAgain) {
  // Any case is above these bandwidths, and measuring them takes long.
  peaks.restore(testing::made_up_peaks(1e15, 1, {{1 << 20, 1}}));
  auto looks = std::make_shared<std::atomic<int>>(0);
  sensors = instruments::SystemReader{"a fake", [looks] {
                                        ++*looks;
                                        return instruments::SystemReading();
                                      }};
  run({testing::small_case(honest, Pass::forward)});
  EXPECT_TRUE(was_measured(0));
  EXPECT_LE(*looks, 3) << "of microseconds";
}

TEST_F(RunnerTest, AProofAloneTimesNothing) {
  Preparation shared(cpu, settings, &peaks);
  const auto prove = [&](const Case& test_case) {
    return PreparedCase(shared, test_case,
                        {.proof = Steps::Proof::results_and_new_inputs, .times = false});
  };
  const Case right = testing::small_case(honest, Pass::forward_backward);
  {
    const PreparedCase good = prove(right);
    EXPECT_FALSE(good.is_over());
    EXPECT_GT(good.comparison().max_rel_error, 0);
  }
  auto forwards = std::make_shared<int>(0);
  const Component wrong = testing::linear_component({.scale = 1.01}, forwards);
  const Case wrong_case = testing::small_case(wrong, Pass::forward);
  const PreparedCase bad = prove(wrong_case);
  EXPECT_CONTAINS(bad.remarks().failure, "wrong result");
  EXPECT_NEAR(bad.comparison().max_rel_error, 0.01, 1e-3);
  EXPECT_EQ(*forwards, 1 + 2 + 6 + 18) << "its own, and those that show what rounding does";
}

}  // namespace
}  // namespace tinyllama::harness
