#include "benchmarks/harness/run_context.hpp"

#include <ATen/Parallel.h>

#include "benchmarks/harness/reporter.hpp"
#include "benchmarks/instruments/context.hpp"
#include "benchmarks/instruments/memory_meter.hpp"

namespace tinyllama::harness {

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

Json run_context(const Options& options, const instruments::Device& device) {
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
  return context;
}

std::vector<std::string> circumstances_to_keep() {
  return {"schema_version", "git_commit", "device", "torch_version",
          "threads",        "seed",       "verify", "cold_cache"};
}

}  // namespace tinyllama::harness
