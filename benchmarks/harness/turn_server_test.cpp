#include "benchmarks/harness/turn_server.hpp"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <new>

#include "benchmarks/harness/testing.hpp"

namespace tinyllama::harness {
namespace {

class TurnServerTest : public ::testing::Test {
 protected:
  void TearDown() override { instruments::host_allocator::set_limit(0); }

  TurnServer& server() {
    if (!server_) server_ = std::make_unique<TurnServer>(cpu, cases, settings);
    return *server_;
  }
  Json ask(const std::string& action, size_t index, const Json& more = Json::object()) {
    Json request = {{"do", action}, {"case", cases.at(index).name()}};
    request.update(more);
    return server().answer(request.dump());
  }
  Json time(size_t index, double seconds) { return ask("time", index, {{"seconds", seconds}}); }
  static std::string text(const Json& answer, const char* key) { return answer.value(key, "none"); }
  static int64_t live_bytes() { return instruments::host_allocator::read().live_bytes; }

  // Holds 600 KiB.
  static Component with_600_kib() {
    Component component = testing::linear_component();
    component.build = [](const BuildRequest& request) -> std::unique_ptr<WorkItem> {
      const at::Tensor x = at::zeros({int64_t{600} << 10},
                                     at::TensorOptions().dtype(at::kByte).device(request.device));
      const auto forward = [=] { return NamedTensors{{"output", x}}; };
      return std::make_unique<LayerWork>(Layer{{}, {}, forward, {}}, request.pass,
                                         request.workload.dtype, request.device.type());
    };
    return component;
  }

  instruments::Device cpu = instruments::Device::select("cpu");
  RunSettings settings;
  std::shared_ptr<int> forwards = std::make_shared<int>(0);
  Component honest = testing::linear_component({}, forwards);
  std::vector<Case> cases = {testing::small_case(honest, Pass::forward),
                             testing::small_case(honest, Pass::backward),
                             testing::small_case(honest, Pass::forward_backward, Dtype::f32, 64)};

 private:
  std::unique_ptr<TurnServer> server_;
};

TEST_F(TurnServerTest, OpensTimesAndCloses) {
  const Json opened = ask("open", 0);
  EXPECT_EQ(text(opened, "opened"), cases[0].name());
  EXPECT_GT(opened.at("seconds").get<double>(), 0);
  EXPECT_EQ(opened.size(), 2U) << "neither proved nor metered: " << opened;
  const Json timed = time(0, 0.01);
  ASSERT_EQ(timed.size(), 1U) << timed;
  for (const double seconds : timed.at("seconds")) EXPECT_GT(seconds, 0);
  EXPECT_EQ(ask("close", 0), Json({{"closed", cases[0].name()}}));
}

TEST_F(TurnServerTest, ATurnRunsWhatItAnswersAndNothingElse) {
  ask("open", 0);
  for (const double seconds : {0.0, 0.002, 0.02}) {
    *forwards = 0;
    const Json timed = time(0, seconds);
    EXPECT_EQ(timed.at("seconds").size(), static_cast<size_t>(*forwards));
  }
}

TEST_F(TurnServerTest, ATurnUsesItsTimeAndRunsAtLeastOnce) {
  ask("open", 0);
  EXPECT_EQ(time(0, 0).at("seconds").size(), 1U);
  // A busy machine may take the processor away for most of a turn, but not of every one.
  size_t iterations = 0;
  for (int turn = 0; turn < 20 && iterations <= 10; ++turn) {
    const auto start = std::chrono::steady_clock::now();
    iterations = time(0, 0.05).at("seconds").size();
    const std::chrono::duration<double> used = std::chrono::steady_clock::now() - start;
    EXPECT_GE(used.count(), 0.05);
  }
  EXPECT_GT(iterations, 10U) << "a product of 8 by 8 takes microseconds";
}

TEST_F(TurnServerTest, CountersAreThoseOfTheCaseWhateverElseIsOpen) {
  const Json alone = ask("open", 1, {{"meter", true}}).at("counters");
  EXPECT_EQ(alone.at("hardware_flops"), 2.0 * 2 * 8 * 8 * 8);
  EXPECT_EQ(alone.at("counted_flops"), alone.at("hardware_flops"));
  EXPECT_GT(alone.at("operators"), 0);
  EXPECT_GT(alone.at("allocations"), 0);
  EXPECT_GT(alone.at("peak_memory_MiB"), 0);
  ask("close", 1);
  ask("open", 2);
  time(2, 0);
  EXPECT_EQ(ask("open", 1, {{"meter", true}}).at("counters"), alone);
}

TEST_F(TurnServerTest, SeveralCasesAreOpenAtOnceAndClosingOneLeavesTheOthers) {
  for (const size_t index : {0, 1, 2}) EXPECT_TRUE(ask("open", index).contains("opened"));
  ask("close", 1);
  EXPECT_TRUE(time(0, 0).contains("seconds"));
  EXPECT_TRUE(time(2, 0).contains("seconds"));
  EXPECT_CONTAINS(text(time(1, 0), "error"), "must be opened first");
  EXPECT_TRUE(ask("open", 1).contains("opened"));
}

TEST_F(TurnServerTest, ClosedCasesLeaveNoMemoryBehind) {
  const int64_t before = live_bytes();
  for (const size_t index : {0, 1, 2}) ask("open", index, {{"verify", true}, {"meter", true}});
  EXPECT_GT(live_bytes(), before);
  for (const size_t index : {0, 1, 2}) ask("close", index);
  EXPECT_EQ(live_bytes(), before);
  EXPECT_EQ(instruments::host_allocator::read().cached_bytes, 0);
}

TEST_F(TurnServerTest, AProofIsGivenOnRequest) {
  const double error = ask("open", 2, {{"verify", true}}).at("max_rel_error");
  EXPECT_GT(error, 0);
  EXPECT_LE(error, tolerance(Dtype::f32));
}

TEST_F(TurnServerTest, AWrongCaseFailsItsProofAndIsNotOpened) {
  const Component wrong = testing::linear_component({.scale = 1.01});
  cases[0] = testing::small_case(wrong, Pass::forward);
  EXPECT_CONTAINS(text(ask("open", 0, {{"verify", true}}), "failed"), "wrong result: output[");
  EXPECT_CONTAINS(text(time(0, 0), "error"), "must be opened first");
  EXPECT_TRUE(ask("open", 0).contains("opened")) << "no proof was asked for";
}

TEST_F(TurnServerTest, FlopsThatTheProfilerDoesNotCountAreAFailureOfMetering) {
  Component boaster = honest;
  boaster.cost = [](const Workload& w, Pass pass) {
    Cost cost = testing::linear_cost(w, pass);
    cost.hardware_flops += 1;
    return cost;
  };
  cases[0] = testing::small_case(boaster, Pass::forward);
  EXPECT_CONTAINS(text(ask("open", 0, {{"meter", true}}), "failed"), "wrong FLOPs");
  EXPECT_CONTAINS(text(time(0, 0), "error"), "must be opened first");
}

TEST_F(TurnServerTest, WhatABuildThrowsIsItsCasesFailureAndTheOthersGoOn) {
  const std::vector<std::pair<std::function<void()>, std::string>> faults = {
      {[] { TORCH_CHECK_WITH(OutOfMemoryError, false, "70 TiB asked for"); },
       "out of memory: 70 TiB asked for"},
      {[] { throw std::bad_alloc(); }, "out of memory: the system refused an allocation"},
      {[] { TORCH_CHECK(false, "shapes differ"); }, "shapes differ"},
      {[] { throw std::invalid_argument("something else"); }, "something else"}};
  ask("open", 1);
  for (const auto& [fault, message] : faults) {
    const Component broken = testing::component_with_build(fault);
    cases[0] = testing::small_case(broken, Pass::forward);
    EXPECT_EQ(text(ask("open", 0), "failed"), message);
    EXPECT_EQ(text(ask("open", 0, {{"verify", true}}), "failed"), message);
    EXPECT_TRUE(time(1, 0).contains("seconds")) << message;
  }
}

TEST_F(TurnServerTest, ACaseThatThrowsInItsTurnIsClosedWithItsMemory) {
  const int64_t before = live_bytes();
  auto broken_now = std::make_shared<bool>(false);
  Component component = testing::linear_component();
  component.build = [broken_now](const BuildRequest& request) -> std::unique_ptr<WorkItem> {
    const at::Tensor x = at::empty({1024}).zero_();
    const auto forward = [=] {
      if (*broken_now) throw std::runtime_error("lost the device");
      return NamedTensors{{"output", x + x}};
    };
    return std::make_unique<LayerWork>(Layer{{}, {}, forward, {}}, request.pass,
                                       request.workload.dtype, request.device.type());
  };
  cases[0] = testing::small_case(component, Pass::forward);
  ASSERT_TRUE(ask("open", 0).contains("opened"));
  *broken_now = true;
  EXPECT_EQ(text(time(0, 0), "failed"), "lost the device");
  EXPECT_CONTAINS(text(time(0, 0), "error"), "must be opened first");
  EXPECT_EQ(live_bytes(), before);
}

TEST_F(TurnServerTest, RefusedCasesAreSkippedUnbuilt) {
  auto builds = std::make_shared<int>(0);
  const Component counted = testing::component_with_build([builds] { ++*builds; });
  cases[0] = testing::small_case(counted, Pass::forward);
  cases[0].skip_reason = "has no such switch";
  EXPECT_EQ(ask("open", 0), Json({{"skipped", "has no such switch"}}));
  cases[1] = testing::small_case(counted, Pass::backward);
  cases[1].known_memory = instruments::PredictedMemory{.weights = int64_t{1} << 60};
  EXPECT_CONTAINS(text(ask("open", 1), "skipped"), "predicted peak memory 1.00 EiB exceeds");
  EXPECT_EQ(*builds, 0);
}

TEST_F(TurnServerTest, WhatOpenCasesUseIsNotLeftOfTheMemoryLimit) {
  const Component large = with_600_kib();
  cases = {testing::small_case(large, Pass::forward),
           testing::small_case(large, Pass::forward, Dtype::f32, 4)};
  settings.memory_limit_bytes = live_bytes() + (int64_t{1000} << 10);
  ASSERT_TRUE(ask("open", 0).contains("opened"));
  const std::string reason = text(ask("open", 1), "skipped");
  EXPECT_CONTAINS(reason, "predicted peak memory 600.00 KiB exceeds");
  EXPECT_CONTAINS(reason, "(left of --memory-limit)");
  ask("close", 0);
  EXPECT_TRUE(ask("open", 1).contains("opened"));
}

TEST_F(TurnServerTest, NorIsItLeftForAProof) {
  const Component large = with_600_kib();
  Component proved = honest;
  proved.memory = large.memory;
  cases = {testing::small_case(large, Pass::forward),
           testing::small_case(proved, Pass::forward, Dtype::f32, 4)};
  // Of two cases, or of one with its reference; not of three.
  settings.memory_limit_bytes = live_bytes() + (int64_t{1700} << 10);
  ASSERT_TRUE(ask("open", 0).contains("opened"));
  const std::string reason = text(ask("open", 1, {{"verify", true}}), "skipped");
  EXPECT_CONTAINS(reason, "its float64 reference does not fit beside it");
  EXPECT_CONTAINS(reason, "(left of --memory-limit)");
  EXPECT_TRUE(ask("open", 1).contains("opened")) << "no proof was asked for";
  ask("close", 0);
  ask("close", 1);
  const Json alone = ask("open", 1, {{"verify", true}});
  EXPECT_TRUE(alone.contains("opened")) << alone;
}

TEST_F(TurnServerTest, RequestsThatMakeNoSenseAreErrorsAndChangeNothing) {
  ask("open", 0);
  EXPECT_CONTAINS(text(ask("open", 0), "error"), cases[0].name() + "\": is open; close it first");
  EXPECT_CONTAINS(text(ask("close", 1), "error"), "must be opened first");
  EXPECT_CONTAINS(text(time(0, -1), "error"), "\"seconds\" -1");
  EXPECT_CONTAINS(text(server().answer(R"({"do":"close","case":"ffn"})"), "error"),
                  "\"case\" \"ffn\": must be one of the cases that the first line names");
  EXPECT_CONTAINS(text(server().answer("{"), "error"), "one JSON object on one line");
  EXPECT_TRUE(time(0, 0).contains("seconds"));
}

}  // namespace
}  // namespace tinyllama::harness
