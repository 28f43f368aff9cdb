#include "benchmarks/harness/run_context.hpp"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <sstream>

#include "benchmarks/harness/plan.hpp"
#include "benchmarks/instruments/context.hpp"
#include "benchmarks/instruments/timer.hpp"

namespace tinyllama::harness {
namespace {

Json describe_weights(const Weights& weights) {
  Json described = {{"parameters", count_parameters(weights.config())},
                    {"fingerprint", weights.fingerprint()}};
  if (const std::string sample = weights.fingerprint_sample(); !sample.empty())
    described["fingerprint_sample"] = sample;
  described.update(dimensions_of(weights.config()));
  if (const auto token = weights.config().padding_token()) described["pad_token_id"] = *token;
  return described;
}

}  // namespace

// Google Benchmark's own reporter writes it, so that it is its format whatever its version; but for
// the name of the host, which is nobody else's business.
Json benchmark_context() {
  std::ostringstream out;
  benchmark::JSONReporter reporter;
  reporter.SetOutputStream(&out);
  reporter.SetErrorStream(&out);
  reporter.ReportContext(benchmark::BenchmarkReporter::Context());
  reporter.Finalize();
  Json context = Json::parse(out.str()).at("context");
  context["host_name"] = instruments::host_word();
  return context;
}

Json run_context(const Options& options, const instruments::Device& device) {
  Json context = benchmark_context();
  context["schema_version"] = kSchemaVersion;
  context.update(instruments::machine_context(device, options.plugins));
  context["seed"] = options.seed;
  context["verify"] = options.verify == Verify::off ? "off" : "before";
  context["timer"] = {{"clock", device.is_gpu() ? "device events" : "steady clock"},
                      {"empty_pair_us", instruments::seconds_of_empty_pair(device) * 1e6}};
  context["cold_cache"] = options.cold_cache;
  // Not where they lie: a path is private, and says nothing elsewhere.
  if (options.weights) context["weights"] = describe_weights(*options.weights);
  return context;
}

Json goals_of(const Options& options) {
  const TimingOptions& timing = options.timing;
  Json goals = {
      {"benchmark_min_time", timing.iterations ? fmt::format("{}x", *timing.iterations)
                                               : fmt::format("{:g}s", timing.min_seconds)},
      {"benchmark_min_warmup_time", timing.warm_up_seconds},
      {"benchmark_repetitions", timing.repetitions},
      {"precision", "default"},
      {"max-seconds-per-case", options.max_seconds_per_case},
      {"memory-limit", "what is free"},
      {"admit", options.admit == Admit::all ? "all" : "fitting"}};
  if (timing.precision) goals["precision"] = 100 * *timing.precision;
  if (options.memory_limit_bytes > 0) goals["memory-limit"] = options.memory_limit_bytes;
  return goals;
}

std::vector<std::string> circumstances_to_keep() {
  return {"schema_version", "git_commit", "git_dirty",     "host_name", "device",
          "torch_version",  "threads",    "memory_source", "seed",      "verify",
          "cold_cache",     "weights",    "plugins",       "goals",     "settings"};
}

}  // namespace tinyllama::harness
