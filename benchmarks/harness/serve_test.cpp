// What is answered to requests; the conversation as a whole is tested through the program.
#include "benchmarks/harness/serve.hpp"

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "benchmarks/harness/testing.hpp"

namespace tinyllama::harness {
namespace {

class ServerTest : public ::testing::Test {
 protected:
  void TearDown() override { instruments::host_allocator::set_limit(0); }

  Server& server() {
    if (!server_) server_ = std::make_unique<Server>(cpu, cases, settings);
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
  Options settings;
  std::shared_ptr<int> forwards = std::make_shared<int>(0);
  Component honest = testing::linear_component({}, forwards);
  std::vector<Case> cases = {testing::small_case(honest, Pass::forward),
                             testing::small_case(honest, Pass::backward),
                             testing::small_case(honest, Pass::forward_backward, Dtype::f32, 64)};

 private:
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, OpensTimesAndCloses) {
  const Json opened = ask("open", 0);
  EXPECT_EQ(text(opened, "opened"), cases[0].name());
  EXPECT_GT(opened.at("seconds").get<double>(), 0);
  EXPECT_EQ(opened.size(), 2U) << "neither proved nor metered: " << opened;
  const Json timed = time(0, 0.01);
  ASSERT_EQ(timed.size(), 1U) << timed;
  for (const double seconds : timed.at("seconds")) EXPECT_GT(seconds, 0);
  EXPECT_EQ(ask("close", 0), Json({{"closed", cases[0].name()}}));
}

TEST_F(ServerTest, ATurnUsesItsTimeRunsAtLeastOnceAndNothingThatItDoesNotAnswer) {
  settings.max_seconds_per_case = 0.05;  // which is the longest turn
  ask("open", 0);
  EXPECT_EQ(time(0, 0).at("seconds").size(), 1U);
  // A busy machine may take the processor away for most of a turn, but not of every one.
  size_t iterations = 0;
  for (int turn = 0; turn < 20 && iterations <= 10; ++turn) {
    *forwards = 0;
    const auto start = std::chrono::steady_clock::now();
    iterations = time(0, 0.05).at("seconds").size();
    const std::chrono::duration<double> used = std::chrono::steady_clock::now() - start;
    EXPECT_GE(used.count(), 0.05);
    EXPECT_EQ(iterations, static_cast<size_t>(*forwards));
  }
  EXPECT_GT(iterations, 10U) << "a GEMM of 8 by 8 takes microseconds";
}

TEST_F(ServerTest, CountersAreThoseOfTheCaseWhateverElseIsOpen) {
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

TEST_F(ServerTest, SeveralCasesAreOpenAtOnceAndClosingOneLeavesTheOthers) {
  for (const size_t index : {0, 1, 2}) EXPECT_TRUE(ask("open", index).contains("opened"));
  ask("close", 1);
  EXPECT_TRUE(time(0, 0).contains("seconds"));
  EXPECT_TRUE(time(2, 0).contains("seconds"));
  EXPECT_CONTAINS(text(time(1, 0), "error"), "must be opened first");
  EXPECT_TRUE(ask("open", 1).contains("opened"));
}

TEST_F(ServerTest, ClosedCasesLeaveNoMemoryBehind) {
  const int64_t before = live_bytes();
  for (const size_t index : {0, 1, 2}) ask("open", index, {{"verify", true}, {"meter", true}});
  EXPECT_GT(live_bytes(), before);
  for (const size_t index : {0, 1, 2}) ask("close", index);
  EXPECT_EQ(live_bytes(), before);
  EXPECT_EQ(instruments::host_allocator::read().cached_bytes, 0);
}

TEST_F(ServerTest, WhatIsProvedIsBuiltOnceAndTimedWithTheInputsItWasBuiltWith) {
  const auto inputs = std::make_shared<std::vector<at::Tensor>>();
  Component component = honest;
  component.build = [inputs, build = honest.build](const BuildRequest& request) {
    auto item = build(request);
    const bool is_reference = request.workload.dtype == Dtype::f64;
    if (!request.device.is_meta() && !is_reference)
      for (const auto& [name, given] : item->givens()) inputs->push_back(given);
    return item;
  };
  cases[1] = testing::small_case(component, Pass::backward);
  ASSERT_TRUE(ask("open", 1, {{"verify", true}}).contains("opened"));
  const std::vector<at::Tensor> timed = std::exchange(*inputs, {});
  component.build({cases[1].workload, Pass::backward, settings.seed, c10::kCPU});
  ASSERT_EQ(timed.size(), inputs->size()) << "built once";
  for (size_t i = 0; i < timed.size(); ++i) EXPECT_TRUE(at::equal(timed[i], inputs->at(i))) << i;
}

TEST_F(ServerTest, AWrongCaseFailsItsProofAndIsNotOpened) {
  const Component wrong = testing::linear_component({.scale = 1.01});
  cases[0] = testing::small_case(wrong, Pass::forward);
  EXPECT_CONTAINS(text(ask("open", 0, {{"verify", true}}), "failed"), "wrong result: output[");
  EXPECT_CONTAINS(text(time(0, 0), "error"), "must be opened first");
  EXPECT_TRUE(ask("open", 0).contains("opened")) << "no proof was asked for";
  const double error = ask("open", 2, {{"verify", true}}).at("max_rel_error");
  EXPECT_GT(error, 0);
  EXPECT_LE(error, 2e-5);
}

TEST_F(ServerTest, WhatThePredictionOfItsMemoryThrowsIsTheCasesFailureToo) {
  Component broken = honest;
  broken.build = [](const BuildRequest&) -> std::unique_ptr<WorkItem> {
    throw std::runtime_error("no such shape");
  };
  cases[0] = testing::small_case(broken, Pass::forward);
  EXPECT_EQ(text(ask("open", 0), "failed"), "no such shape");
  EXPECT_TRUE(ask("open", 1).contains("opened"));
}

TEST_F(ServerTest, ACaseThatThrowsInItsTurnIsClosedWithItsMemory) {
  const int64_t before = live_bytes();
  auto broken_now = std::make_shared<bool>(false);
  const Component component = testing::with_forward([broken_now](const at::Tensor& x) {
    if (*broken_now) throw std::runtime_error("lost the device");
    return x + x;
  });
  cases[0] = testing::small_case(component, Pass::forward);
  ASSERT_TRUE(ask("open", 0).contains("opened"));
  *broken_now = true;
  EXPECT_EQ(text(time(0, 0), "failed"), "lost the device");
  EXPECT_CONTAINS(text(time(0, 0), "error"), "must be opened first");
  EXPECT_EQ(live_bytes(), before);
}

TEST_F(ServerTest, WhatOpenCasesUseIsNotLeftOfTheMemoryLimit) {
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

TEST_F(ServerTest, NorIsItLeftForAProof) {
  const Component large = with_600_kib();
  cases = {testing::small_case(large, Pass::forward),
           testing::small_case(honest, Pass::forward, Dtype::f32, 4)};
  // Beside the first there is room for the second, but not for its reference of some KiB.
  cases[1].known_memory = PredictedMemory{.weights = int64_t{1099} << 10};
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

TEST_F(ServerTest, RequestsThatMakeNoSenseAreErrorsAndChangeNothing) {
  ask("open", 0);
  const std::string open = cases[0].name(), closed = cases[1].name();
  const std::string range = "must be a number from 0 to 10 (--max-seconds-per-case)";
  const std::pair<std::string, std::string> lines[] = {
      {R"({"do":"open","case":")" + open + R"("})", open + "\": is open; close it first"},
      {R"({"do":"close","case":")" + closed + R"("})", "must be opened first"},
      {R"({"do":"close","case":"ffn"})",
       R"("case" "ffn": must be one of the cases that the first line names)"},
      {"", "'': a request is one JSON object on one line"},
      {"open ffn", "'open ffn': a request is one JSON object on one line"},
      {R"({"do":"open"} {})", "a request is one JSON object on one line"},
      {"[]", "'[]': a request is one JSON object on one line"},
      {R"({"case":"a"})", R"('{"case":"a"}': the request lacks "do")"},
      {R"({"do":"open"})", R"('{"do":"open"}': the request lacks "case")"},
      {R"({"do":"stop","case":"a"})", R"("do" "stop": must be open, time or close)"},
      {R"({"do":1,"case":"a"})", R"("do" 1: must be open, time or close)"},
      {R"({"do":"open","case":["a"]})", R"("case" ["a"]: must be the name of a case)"},
      {R"({"do":"open","case":"a","verify":1})", R"("verify" 1: must be true or false)"},
      {R"({"do":"open","case":"a","metre":true})",
       R"("metre" true: unknown here; known are do, case, verify, meter)"},
      {R"({"do":"close","case":"a","seconds":1})", "known are do, case"},
      {R"({"do":"time","case":"a"})", "the request lacks \"seconds\""},
      {R"({"do":"time","case":"a","seconds":"1"})", R"("seconds" "1": )" + range},
      {R"({"do":"time","case":"a","seconds":-0.1})", R"("seconds" -0.1: )" + range},
      {R"({"do":"time","case":"a","seconds":10.5})", R"("seconds" 10.5: )" + range},
      {R"({"do":"time","case":"a","seconds":1e999})", "a request is one JSON object"},
      {std::string("a\0b\x1b[1m", 7), "'a?b?[1m': a request is one JSON object on one line"},
      {std::string(5000, 'x'), "xxx...': a request"}};
  for (const auto& [line, message] : lines) {
    const std::string error = text(server().answer(line), "error");
    EXPECT_CONTAINS(error, message) << line;
    EXPECT_LT(error.size(), 250U);
  }
  EXPECT_TRUE(time(0, 0).contains("seconds"));
}

}  // namespace
}  // namespace tinyllama::harness
