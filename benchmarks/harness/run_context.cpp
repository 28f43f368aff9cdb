#include "benchmarks/harness/run_context.hpp"

#include <benchmark/benchmark.h>

#include <sstream>

#include "benchmarks/instruments/context.hpp"

namespace tinyllama::harness {
namespace {

Json describe_weights(const Weights& weights) {
  const ModelDimensions& d = weights.config().dimensions();
  return {{"parameters", weights.parameter_count()},
          {"fingerprint", weights.fingerprint()},
          {"vocab_size", d.vocab_size},
          {"hidden_dim", d.hidden_dim},
          {"n_layers", d.n_layers},
          {"n_heads", d.n_heads},
          {"n_kv_heads", d.n_kv_heads},
          {"intermediate_dim", d.intermediate_dim},
          {"norm_eps", d.norm_eps},
          {"rope_theta", d.rope_theta}};
}

}  // namespace

// Google Benchmark's own reporter writes it, so that it is its format whatever its version.
Json benchmark_context() {
  std::ostringstream out;
  benchmark::JSONReporter reporter;
  reporter.SetOutputStream(&out);
  reporter.SetErrorStream(&out);
  reporter.ReportContext(benchmark::BenchmarkReporter::Context());
  reporter.Finalize();
  return Json::parse(out.str()).at("context");
}

Json run_context(const Options& options, const instruments::Device& device,
                 const Weights* weights) {
  Json context = benchmark_context();
  context["schema_version"] = kSchemaVersion;
  context.update(instruments::machine_context(device));
  context["seed"] = options.seed;
  context["verify"] = options.verify == Verify::off ? "off" : "before";
  context["cold_cache"] = options.cold_cache;
  // Not where they lie: a path is private, and says nothing elsewhere.
  if (weights != nullptr) context["weights"] = describe_weights(*weights);
  return context;
}

std::vector<std::string> circumstances_to_keep() {
  return {"schema_version", "git_commit", "device",     "torch_version", "threads",
          "seed",           "verify",     "cold_cache", "weights"};
}

}  // namespace tinyllama::harness
