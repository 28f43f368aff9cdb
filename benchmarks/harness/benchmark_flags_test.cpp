#include <benchmark/benchmark.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <regex>
#include <set>

#include "benchmarks/harness/options.hpp"
#include "benchmarks/harness/testing.hpp"

namespace tinyllama::harness {
namespace {

Options taken(const std::string& argument) {
  Options options;
  EXPECT_TRUE(take_benchmark_flag(argument, options)) << argument;
  return options;
}

std::string error_of(const std::string& argument) {
  Options options;
  return testing::error_of<std::invalid_argument>([&] { take_benchmark_flag(argument, options); });
}

std::set<std::string> flags_of_the_library() {
  ::testing::internal::CaptureStdout();
  benchmark::PrintDefaultHelp();
  const std::string help = ::testing::internal::GetCapturedStdout();
  const std::regex flag("--(\\w+)");
  std::set<std::string> names;
  for (std::sregex_iterator at(help.begin(), help.end(), flag), end; at != end; ++at)
    names.insert((*at)[1]);
  return names;
}

// A version of the library with a flag that is not here fails this test.
TEST(BenchmarkFlagsTest, EveryFlagOfTheLibraryIsHonouredOrRefused) {
  const std::pair<std::string, std::function<bool(const Options&)>> honoured[] = {
      {"benchmark_list_tests=true", [](const Options& o) { return o.list; }},
      {"benchmark_filter=-a", [](const Options& o) { return o.filter == "-a"; }},
      {"benchmark_min_time=3s", [](const Options& o) { return o.timing.min_seconds == 3; }},
      {"benchmark_min_warmup_time=2",
       [](const Options& o) { return o.timing.warm_up_seconds == 2; }},
      {"benchmark_repetitions=7", [](const Options& o) { return o.timing.repetitions == 7; }},
      {"benchmark_report_aggregates_only",
       [](const Options& o) { return o.writes_aggregates_only; }},
      {"benchmark_display_aggregates_only",
       [](const Options& o) { return o.shows_aggregates_only; }},
      {"benchmark_format=csv", [](const Options& o) { return o.format == "csv"; }},
      {"benchmark_out=a", [](const Options& o) { return o.out_file == "a"; }},
      {"benchmark_context=a=b,c=d", [](const Options& o) {
         return o.benchmark_context == std::vector<std::string>{"a=b,c=d"};
       }}};
  const std::pair<std::string, std::string> refused[] = {
      {"benchmark_dry_run", "--benchmark_min_time=1x --benchmark_repetitions=1 times"},
      {"benchmark_enable_random_interleaving=true", "scripts/compare run interleaves"},
      {"benchmark_out_format=csv", "must be json, the format of results; --benchmark_format"},
      {"benchmark_color=true", "must be auto or false"},
      {"benchmark_counters_tabular=false", "must be true"},
      {"benchmark_perf_counters=CYCLES", "perf stat"},
      {"benchmark_time_unit=us", "must be ms"},
      {"v=2", "must be 0"}};
  std::set<std::string> seen;
  for (const auto& [argument, holds] : honoured) {
    EXPECT_TRUE(holds(taken("--" + argument))) << argument;
    EXPECT_FALSE(holds(Options())) << argument << ": as it is without it";
    seen.insert(argument.substr(0, argument.find('=')));
  }
  for (const auto& [argument, instead] : refused) {
    const std::string name = argument.substr(0, argument.find('='));
    EXPECT_CONTAINS(error_of("--" + argument), "--" + name + " '");
    EXPECT_CONTAINS(error_of("--" + argument), instead);
    seen.insert(name);
  }
  const auto names = benchmark_flag_names();
  EXPECT_EQ(seen, std::set<std::string>(names.begin(), names.end()));
  const auto of_the_library = flags_of_the_library();
  EXPECT_GE(of_the_library.size(), 14U);
  for (const std::string& name : of_the_library) EXPECT_TRUE(seen.contains(name)) << name;
}

TEST(BenchmarkFlagsTest, WhatIsOffAnywayMayBeSaid) {
  for (const char* argument :
       {"--benchmark_dry_run=false", "--benchmark_enable_random_interleaving=0",
        "--benchmark_color=auto", "--benchmark_counters_tabular", "--benchmark_time_unit=ms",
        "--benchmark_report_aggregates_only=no", "--benchmark_list_tests=false", "--v=0"}) {
    EXPECT_FALSE(taken(argument).writes_aggregates_only) << argument;
    EXPECT_FALSE(taken(argument).list) << argument;
  }
  Options options;
  EXPECT_FALSE(take_benchmark_flag("--seed", options));
}

TEST(BenchmarkFlagsTest, ValuesAreReadAsTheLibraryDoes) {
  EXPECT_EQ(taken("--benchmark_filter=all").filter, ".");
  EXPECT_EQ(taken("--benchmark_filter=a=b").filter, "a=b");
  EXPECT_TRUE(taken("--benchmark_list_tests").list);
  EXPECT_EQ(taken("--benchmark_min_time=2").timing.min_seconds, 2);
  EXPECT_EQ(taken("--benchmark_min_time=20x").timing.iterations, 20);
  EXPECT_EQ(taken("--benchmark_min_warmup_time=0").timing.warm_up_seconds, 0);
  const std::pair<const char*, const char*> bad[] = {
      {"min_time=0", "must be positive"},
      {"min_time=-1s", "must be positive"},
      {"min_time=infs", "must be positive"},
      {"min_time=soon", "must be positive"},
      {"min_time", "must be positive"},
      {"repetitions=0", "must be positive"},
      {"min_warmup_time=-1", "must be positive"},
      {"min_time=5ms", "must be seconds, as 0.5s, or iterations"},
      {"min_time=1.5x", "must be a whole number"},
      {"repetitions=2.5", "must be a whole number"},
      {"filter", "write --benchmark_filter=VALUE"},
      {"filter=", "write --benchmark_filter=VALUE"},
      {"format=markdown",
       "--benchmark_format 'markdown': must be one of console, json, csv, jsonl"},
      {"dry_run=maybe", "must be true or false"},
      {"context=a", "must be KEY=VALUE"},
      {"speed=9", "is no flag of Google Benchmark; those are"}};
  for (const auto& [argument, rule] : bad)
    EXPECT_CONTAINS(error_of(std::string("--benchmark_") + argument), rule) << argument;
}

TEST(BenchmarkFlagsTest, TheEnvironmentCountsAsTheCommandLineDoes) {
  for (const auto& [name, value] : {std::pair{"BENCHMARK_OUT", "a.json"},
                                    {"BENCHMARK_REPETITIONS", "5"},
                                    {"BENCHMARK_FORMAT", ""},
                                    {"BENCHMARK_SOMETHING", "else"}})
    ::setenv(name, value, 1);
  Options options;
  take_benchmark_environment(options);
  EXPECT_EQ(options.out_file, "a.json");
  EXPECT_EQ(options.timing.repetitions, 5);
  EXPECT_EQ(options.format, "console");
  ::setenv("BENCHMARK_FORMAT", "xml", 1);
  EXPECT_CONTAINS(
      testing::error_of<std::invalid_argument>([&] { take_benchmark_environment(options); }),
      "environment variable BENCHMARK_FORMAT: --benchmark_format 'xml': must be");
  for (const char* name :
       {"BENCHMARK_OUT", "BENCHMARK_REPETITIONS", "BENCHMARK_FORMAT", "BENCHMARK_SOMETHING"})
    ::unsetenv(name);
}

}  // namespace
}  // namespace tinyllama::harness
