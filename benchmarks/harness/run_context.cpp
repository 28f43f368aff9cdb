#include "benchmarks/harness/run_context.hpp"

#include <ATen/Parallel.h>

#include "benchmarks/harness/reporter.hpp"
#include "benchmarks/instruments/context.hpp"
#include "benchmarks/instruments/memory_meter.hpp"

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

Json describe_device(const instruments::Device& device) {
  const auto& d = device.description();
  return {{"name", d.name},
          {"architecture", d.architecture},
          {"backend", instruments::to_string(device.backend())},
          {"memory_bytes", d.memory_bytes},
          {"multiprocessors", d.multiprocessors},
          {"last_level_cache_bytes", d.last_level_cache_bytes},
          {"runtime_version", d.runtime_version},
          {"driver_version", d.driver_version}};
}

Json run_context(const Options& options, const instruments::Device& device,
                 const Weights* weights) {
  Json context = CaseReporter::benchmark_context();
  const auto version = instruments::source_version();
  context["schema_version"] = kSchemaVersion;
  context["git_commit"] = version.commit;
  context["git_dirty"] = version.dirty;
  context["device"] = describe_device(device);
  context["torch_version"] = instruments::torch_version();
  context["threads"] = at::get_num_threads();
  context["seed"] = options.seed;
  context["verify"] = options.verify == Verify::off ? "off" : "before";
  context["cold_cache"] = options.cold_cache;
  context["memory_source"] = instruments::memory_source(device);
  context["settings"] = instruments::system_settings(device);
  // Not where they lie: a path is private, and says nothing elsewhere.
  if (weights != nullptr) context["weights"] = describe_weights(*weights);
  return context;
}

std::vector<std::string> circumstances_to_keep() {
  return {"schema_version", "git_commit", "device",     "torch_version", "threads",
          "seed",           "verify",     "cold_cache", "weights"};
}

}  // namespace tinyllama::harness
