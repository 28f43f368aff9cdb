// Requests, what is answered to them, and the lines that they come and go by; the conversation as a
// whole is tested through the program.
#include "benchmarks/harness/serve.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <iostream>
#include <memory>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "benchmarks/harness/testing.hpp"

namespace tinyllama::harness {
namespace {

using Action = ServeRequest::Action;

constexpr double kMostSeconds = 10;

std::string error_of_line(const std::string& line) {
  return testing::error_of<std::invalid_argument>([&] { parse_serve_request(line, kMostSeconds); });
}

TEST(ServeRequestTest, OpensWithWhatWasAskedForAndNothingElse) {
  const auto bare = parse_serve_request(R"({"do":"open","case":"a/b"})", kMostSeconds);
  EXPECT_EQ(bare.action, Action::open);
  EXPECT_EQ(bare.case_name, "a/b");
  EXPECT_FALSE(bare.verify || bare.meter);
  const auto proved =
      parse_serve_request(R"({"do":"open","case":"a","verify":true,"meter":false})", kMostSeconds);
  EXPECT_TRUE(proved.verify);
  EXPECT_FALSE(proved.meter);
  EXPECT_TRUE(parse_serve_request(R"({"do":"open","case":"a","meter":true})", kMostSeconds).meter);
}

TEST(ServeRequestTest, TimesForASpanBetweenOneIterationAndTheLimit) {
  for (const double seconds : {0.0, 0.015, kMostSeconds}) {
    const std::string line =
        R"({"do":"time","case":"a","seconds":)" + std::to_string(seconds) + "}";
    const auto request = parse_serve_request(line, kMostSeconds);
    EXPECT_EQ(request.action, Action::time);
    EXPECT_DOUBLE_EQ(request.seconds, seconds);
  }
}

TEST(ServeRequestTest, Closes) {
  const auto request = parse_serve_request(R"({"case":"a","do":"close"})", kMostSeconds);
  EXPECT_EQ(request.action, Action::close);
  EXPECT_EQ(request.case_name, "a");
}

TEST(ServeRequestTest, WhatIsNoRequestIsNamedWithTheRule) {
  const std::string range = "must be a number from 0 to 10 (--max-seconds-per-case)";
  const std::vector<std::pair<std::string, std::string>> lines = {
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
  };
  for (const auto& [line, message] : lines) EXPECT_CONTAINS(error_of_line(line), message) << line;
}

TEST(ServeRequestTest, ControlCharactersAreNotRepeated) {
  EXPECT_EQ(error_of_line(std::string("a\0b\x1b[1m", 7)),
            "'a?b?[1m': a request is one JSON object on one line");
}

TEST(ServeRequestTest, OfALongLineOnlyTheBeginningIsQuoted) {
  const std::string error = error_of_line(std::string(5000, 'x'));
  EXPECT_CONTAINS(error, "xxx...': a request");
  EXPECT_LT(error.size(), 250U);
}

class ServerTest : public ::testing::Test {
 protected:
  void TearDown() override { instruments::host_allocator::set_limit(0); }

  Server& server() {
    if (!server_) server_ = std::make_unique<Server>(cpu, cases, settings, slow);
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
  std::vector<KnownSlowdown> slow;
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

TEST_F(ServerTest, ATurnRunsWhatItAnswersAndNothingElse) {
  ask("open", 0);
  for (const double seconds : {0.0, 0.002, 0.02}) {
    *forwards = 0;
    const Json timed = time(0, seconds);
    EXPECT_EQ(timed.at("seconds").size(), static_cast<size_t>(*forwards));
  }
}

TEST_F(ServerTest, ATurnUsesItsTimeAndRunsAtLeastOnce) {
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
  EXPECT_GT(iterations, 10U) << "a GEMM of 8 by 8 takes microseconds";
}

TEST_F(ServerTest, OnlyCasesThatTheExpressionFindsTakeLonger) {
  Server plain(cpu, cases, settings);
  // So much longer that no other work on the machine does the same.
  slow = {{"/forward/", 1.0}, {"/forward/", 1000.0}};
  const auto fastest = [&](Server& timed, size_t index) {
    const auto ask_it = [&](Json request) {
      request["case"] = cases[index].name();
      return timed.answer(request.dump());
    };
    ask_it({{"do", "open"}});
    const Json seconds = ask_it({{"do", "time"}, {"seconds", 0.05}}).at("seconds");
    return std::min_element(seconds.begin(), seconds.end())->get<double>();
  };
  EXPECT_GT(fastest(server(), 0), 100 * fastest(plain, 0))
      << "the last of several fractions counts";
  EXPECT_LT(fastest(server(), 1), 100 * fastest(plain, 1)) << "the expression does not find it";
}

TEST_F(ServerTest, ASlowdownThatSlowsNothingIsRefused) {
  const auto error = [&](const char* pattern) {
    return testing::error_of<std::invalid_argument>([&] {
      const Server refused(cpu, cases, settings, {{pattern, 0.1}});
    });
  };
  EXPECT_EQ(error("attention"), "--slow 'attention': no case has such a name");
  EXPECT_CONTAINS(error("("), "--slow '(': is not a regular expression");
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

TEST_F(ServerTest, AProofIsGivenOnRequest) {
  const double error = ask("open", 2, {{"verify", true}}).at("max_rel_error");
  EXPECT_GT(error, 0);
  EXPECT_LE(error, 2e-5);
}

TEST_F(ServerTest, AWrongCaseFailsItsProofAndIsNotOpened) {
  const Component wrong = testing::linear_component({.scale = 1.01});
  cases[0] = testing::small_case(wrong, Pass::forward);
  EXPECT_CONTAINS(text(ask("open", 0, {{"verify", true}}), "failed"), "wrong result: output[");
  EXPECT_CONTAINS(text(time(0, 0), "error"), "must be opened first");
  EXPECT_TRUE(ask("open", 0).contains("opened")) << "no proof was asked for";
}

TEST_F(ServerTest, FlopsThatTheProfilerDoesNotCountAreAFailureOfMetering) {
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

TEST_F(ServerTest, WhatABuildThrowsIsItsCasesFailureAndTheOthersGoOn) {
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

TEST_F(ServerTest, RefusedCasesAreSkippedUnbuilt) {
  auto builds = std::make_shared<int>(0);
  const Component counted = testing::component_with_build([builds] { ++*builds; });
  cases[0] = testing::small_case(counted, Pass::forward);
  cases[0].skip_reason = "has no such switch";
  EXPECT_EQ(ask("open", 0), Json({{"skipped", "has no such switch"}}));
  cases[1] = testing::small_case(counted, Pass::backward);
  cases[1].known_memory = PredictedMemory{.weights = int64_t{1} << 60};
  EXPECT_CONTAINS(text(ask("open", 1), "skipped"), "predicted peak memory 1.00 EiB exceeds");
  EXPECT_EQ(*builds, 0);
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
  EXPECT_CONTAINS(text(ask("open", 0), "error"), cases[0].name() + "\": is open; close it first");
  EXPECT_CONTAINS(text(ask("close", 1), "error"), "must be opened first");
  EXPECT_CONTAINS(text(time(0, -1), "error"), "\"seconds\" -1");
  EXPECT_CONTAINS(text(server().answer(R"({"do":"close","case":"ffn"})"), "error"),
                  "\"case\" \"ffn\": must be one of the cases that the first line names");
  EXPECT_CONTAINS(text(server().answer("{"), "error"), "one JSON object on one line");
  EXPECT_TRUE(time(0, 0).contains("seconds"));
}

class Pipe {
 public:
  Pipe() {
    if (::pipe(ends_.data()) != 0) throw std::runtime_error("pipe failed");
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  int out() const { return ends_[0]; }
  int in() const { return ends_[1]; }
  void close_end(int which) {
    if (ends_[which] >= 0) ::close(ends_[which]);
    ends_[which] = -1;
  }
  void write(const std::string& text) const {
    ASSERT_EQ(::write(in(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  /// What was written until now, and nothing after it.
  std::string finish() {
    close_end(1);
    std::string text;
    std::array<char, 4096> bytes;
    ssize_t count = 0;
    while ((count = ::read(out(), bytes.data(), bytes.size())) > 0)
      text.append(bytes.data(), static_cast<size_t>(count));
    return text;
  }

 private:
  std::array<int, 2> ends_ = {-1, -1};
};

// Standard output and standard error are these pipes for as long as it lives.
class Redirected {
 public:
  Redirected(const Pipe& out, const Pipe& err) : saved_{::dup(1), ::dup(2)} {
    std::cout.flush();
    ::dup2(out.in(), 1);
    ::dup2(err.in(), 2);
  }
  ~Redirected() {
    for (const int stream : {1, 2}) {
      ::dup2(saved_[stream - 1], stream);
      ::close(saved_[stream - 1]);
    }
  }
  Redirected(const Redirected&) = delete;
  Redirected& operator=(const Redirected&) = delete;

 private:
  std::array<int, 2> saved_;
};

TEST(LineInputTest, LinesComeOneByOneHoweverTheyWereWritten) {
  Pipe pipe;
  LineInput input(pipe.out());
  pipe.write("one\n\nthr");
  EXPECT_EQ(input.next(), "one");
  EXPECT_EQ(input.next(), "");
  pipe.write("ee\nfour\nrest");
  pipe.close_end(1);
  EXPECT_EQ(input.next(), "three");
  EXPECT_EQ(input.next(), "four");
  EXPECT_EQ(input.next(), std::nullopt) << "a line cut short is none";
  EXPECT_EQ(input.next(), std::nullopt);
}

TEST(LineInputTest, OfAnEndlessLineTheBeginningIsKeptAndTheNextLineIsWhole) {
  Pipe pipe;
  LineInput input(pipe.out());
  // A pipe holds 64 KiB; the reader below takes what the child writes.
  if (const pid_t child = ::fork(); child == 0) {
    std::string text = "begin";
    text.append(5 * LineInput::kLongestLine, 'x');
    text += "\nnext\n";
    size_t written = 0;
    while (written < text.size()) {
      const ssize_t count = ::write(pipe.in(), text.data() + written, text.size() - written);
      if (count < 0) ::_exit(1);
      written += static_cast<size_t>(count);
    }
    ::_exit(0);
  }
  pipe.close_end(1);
  const std::string kept = input.next().value();
  EXPECT_EQ(kept.size(), LineInput::kLongestLine);
  EXPECT_TRUE(kept.starts_with("beginx")) << kept.substr(0, 20);
  EXPECT_EQ(input.next(), "next");
  EXPECT_EQ(input.next(), std::nullopt);
}

TEST(LineOutputTest, AnswersAreAloneOnStandardOutput) {
  Pipe out;
  Pipe err;
  {
    const Redirected streams(out, err);
    LineOutput output;
    std::cout << "words of a library" << std::endl;
    EXPECT_TRUE(output.write({{"seconds", {0.1, 2.0}}}));
  }
  EXPECT_EQ(out.finish(), "{\"seconds\":[0.1,2.0]}\n");
  EXPECT_EQ(err.finish(), "words of a library\n");
}

TEST(LineOutputTest, WhatIsStillInABufferAtTheEndIsNoAnswerEither) {
  Pipe out;
  Pipe err;
  {
    const Redirected streams(out, err);
    {
      LineOutput output;
      EXPECT_TRUE(output.write({{"closed", "a"}}));
      std::fputs("words without an end", stdout);
    }
    std::fflush(stdout);
  }
  EXPECT_EQ(out.finish(), "{\"closed\":\"a\"}\n");
  EXPECT_EQ(err.finish(), "words without an end");
}

TEST(LineOutputTest, TextThatIsNotUtf8IsWrittenAsJson) {
  Pipe out;
  Pipe err;
  {
    const Redirected streams(out, err);
    LineOutput output;
    EXPECT_TRUE(output.write({{"error", "\xff"}}));
  }
  EXPECT_EQ(out.finish(), "{\"error\":\"\xef\xbf\xbd\"}\n");
}

TEST(LineOutputTest, AReaderThatWentAwayIsNoticed) {
  Pipe out;
  const Pipe err;
  const Redirected streams(out, err);
  LineOutput output;
  out.close_end(0);
  EXPECT_FALSE(output.write({{"closed", "a"}}));
}

}  // namespace
}  // namespace tinyllama::harness
