#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <stdexcept>

#include "benchmarks/harness/options.hpp"

namespace tinyllama::harness {
namespace {

struct Given {
  std::string name;  // with its dashes
  std::string value;
  bool has_value = false;

  [[noreturn]] void refuse(const std::string& rule) const {
    throw std::invalid_argument(fmt::format("{} '{}': {}", name, value, rule));
  }
  const std::string& text() const {
    if (value.empty())
      throw std::invalid_argument(
          fmt::format("{}{}: write {}=VALUE", name, has_value ? "=" : "", name));
    return value;
  }
  // As Google Benchmark reads it: a flag alone is true.
  bool flag() const {
    if (!has_value) return true;
    for (const char* word : {"true", "yes", "on", "1"}) {
      if (value == word) return true;
    }
    for (const char* word : {"false", "no", "off", "0"}) {
      if (value == word) return false;
    }
    refuse("must be true or false");
  }
  void refuse_if_on(const std::string& instead) const {
    if (flag()) refuse("is not for this suite; " + instead);
  }
};

struct Flag {
  const char* name;
  void (*take)(const Given&, Options&);
  bool is_of_results = true;  ///< how they are measured or what they say
};

// of standard output
constexpr const char* kFormats[] = {"console", "json", "csv", "jsonl", "md"};

// The number before `unit`.
double positive(const Given& given, bool is_count, const std::string& unit, bool may_be_zero) {
  const std::string digits = given.value.substr(0, given.value.size() - unit.size());
  char* end = nullptr;
  const double number = std::strtod(digits.c_str(), &end);
  if (digits.empty() || !std::isfinite(number) || number < 0 || (number == 0 && !may_be_zero) ||
      end == digits.c_str())
    given.refuse("must be positive");
  if (*end != '\0')
    given.refuse(given.name.ends_with("min_time")
                     ? "must be seconds, as 0.5s, or iterations, as 20x"
                     : "has an unknown unit");
  if (is_count && (number != std::floor(number) || number > 1e15))
    given.refuse("must be a whole number");
  return number;
}

void take_min_time(const Given& given, Options& options) {
  TimingOptions& timing = options.timing;
  if (given.value.ends_with('x')) {
    timing.iterations = static_cast<int64_t>(positive(given, true, "x", false));
    return;
  }
  timing.iterations.reset();
  timing.min_seconds = positive(given, false, given.value.ends_with('s') ? "s" : "", false);
}

void take_format(const Given& given, Options& options) {
  if (std::ranges::count(kFormats, given.text()) == 0)
    given.refuse(fmt::format("must be one of {}", fmt::join(kFormats, ", ")));
  options.format = given.value;
}

void take_context(const Given& given, Options& options) {
  std::istringstream pairs(given.text() + ",");  // the last one may be empty
  for (std::string pair; std::getline(pairs, pair, ',');) {
    const size_t equals = pair.find('=');
    if (equals == 0 || equals == std::string::npos) given.refuse("must be KEY=VALUE,...");
  }
  options.benchmark_context.push_back(given.value);
}

const Flag kFlags[] = {
    {"benchmark_list_tests", [](const Given& g, Options& o) { o.list = g.flag(); }, false},
    {"benchmark_filter",
     [](const Given& g, Options& o) { o.filter = g.text() == "all" ? "." : g.value; }, false},
    {"benchmark_min_time", take_min_time},
    {"benchmark_min_warmup_time",
     [](const Given& g, Options& o) {
       o.timing.warm_up_seconds = positive(g, false, g.value.ends_with('s') ? "s" : "", true);
     }},
    {"benchmark_repetitions",
     [](const Given& g, Options& o) {
       o.timing.repetitions = static_cast<int64_t>(positive(g, true, "", false));
     }},
    {"benchmark_dry_run",
     [](const Given& g, Options&) {
       g.refuse_if_on(
           "--benchmark_min_time=1x --benchmark_repetitions=1 times one iteration, --dry-run "
           "prints costs and memory and times none");
     }},
    {"benchmark_enable_random_interleaving",
     [](const Given& g, Options&) {
       g.refuse_if_on(
           "each change of case would build and prove it anew; scripts/compare run interleaves "
           "cases that stay open");
     }},
    {"benchmark_report_aggregates_only",
     [](const Given& g, Options& o) { o.writes_aggregates_only = g.flag(); }},
    {"benchmark_display_aggregates_only",
     [](const Given& g, Options& o) { o.shows_aggregates_only = g.flag(); }},
    {"benchmark_format", take_format, false},
    {"benchmark_out", [](const Given& g, Options& o) { o.out_file = g.text(); }, false},
    {"benchmark_out_format",
     [](const Given& g, Options&) {
       if (g.text() != "json")
         g.refuse(
             "must be json, the format of results; --benchmark_format is that of standard output, "
             "and scripts/report --format csv, jsonl or parquet converts");
     },
     false},
    {"benchmark_color",
     [](const Given& g, Options&) {
       if (g.text() != "auto" && g.flag()) g.refuse("must be auto or false; the tables have none");
     }},
    {"benchmark_counters_tabular",
     [](const Given& g, Options&) {
       if (!g.flag()) g.refuse("must be true: counters are columns, or --benchmark_format=json");
     }},
    {"benchmark_perf_counters",
     [](const Given& g, Options&) {
       g.refuse("is not for this suite; put `perf stat -e EVENTS` before its command line");
     }},
    {"benchmark_context", take_context},
    {"benchmark_time_unit",
     [](const Given& g, Options&) {
       if (g.value != "ms") g.refuse("must be ms, as all rows have");
     }},
    {"v",
     [](const Given& g, Options&) {
       if (g.value != "0") g.refuse("must be 0: there is no log; progress is on standard error");
     }},
};

}  // namespace

bool take_benchmark_flag(const std::string& argument, Options& options) {
  const size_t equals = argument.find('=');
  Given given{argument.substr(0, equals), "", equals != std::string::npos};
  if (given.has_value) given.value = argument.substr(equals + 1);
  if (!given.name.starts_with("--benchmark_") && given.name != "--v") return false;
  const auto known = std::ranges::find(kFlags, given.name.substr(2), &Flag::name);
  if (known == std::end(kFlags)) {
    throw std::invalid_argument(fmt::format("{}: is no flag of Google Benchmark; those are {}",
                                            given.name, fmt::join(benchmark_flag_names(), ", ")));
  }
  known->take(given, options);
  if (known->is_of_results) options.benchmark_arguments.push_back(argument);
  return true;
}

void take_benchmark_environment(Options& options) {
  for (const Flag& flag : kFlags) {
    std::string variable = flag.name;
    // V is set by many for other programs
    if (!variable.starts_with("benchmark_")) continue;
    std::ranges::transform(variable, variable.begin(),
                           [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    const char* value = std::getenv(variable.c_str());
    if (value == nullptr || *value == '\0') continue;
    try {
      take_benchmark_flag(fmt::format("--{}={}", flag.name, value), options);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(
          fmt::format("environment variable {}: {}", variable, error.what()));
    }
  }
}

std::vector<std::string> benchmark_flag_names() {
  std::vector<std::string> names;
  for (const Flag& flag : kFlags) names.emplace_back(flag.name);
  return names;
}

void initialize_benchmark(const Options& options) {
  // One iteration by its own count: how many there are is the timing engine's affair, and so are
  // filter, output and what of it is aggregates.
  std::vector<std::string> arguments = {
      "--benchmark_list_tests=false",
      "--benchmark_filter=.",
      "--benchmark_min_time=1x",
      "--benchmark_min_warmup_time=0",
      fmt::format("--benchmark_repetitions={}", options.timing.repetitions),
      "--benchmark_report_aggregates_only=false",
      "--benchmark_display_aggregates_only=false",
      "--benchmark_format=console",
      "--benchmark_out=",
      "--benchmark_out_format=json",
      "--v=0"};
  for (const std::string& pairs : options.benchmark_context)
    arguments.push_back("--benchmark_context=" + pairs);
  static char program_name[] = "tiny_llama_bench";  // Google Benchmark keeps the pointer
  std::vector<char*> pointers = {program_name};
  for (auto& argument : arguments) pointers.push_back(argument.data());
  int count = static_cast<int>(pointers.size());
  benchmark::Initialize(&count, pointers.data());
  if (count > 1)
    throw std::invalid_argument(fmt::format("{}: Google Benchmark refuses it", pointers[1]));
}

}  // namespace tinyllama::harness
