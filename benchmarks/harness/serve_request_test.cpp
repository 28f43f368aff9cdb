#include "benchmarks/harness/serve_request.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "model/testing.hpp"

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

}  // namespace
}  // namespace tinyllama::harness
