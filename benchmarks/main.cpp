// tiny_llama_bench: options -> plan -> run.
#include <fmt/format.h>

#include <iostream>

#include "benchmarks/components/components.hpp"
#include "benchmarks/console/exit.hpp"
#include "benchmarks/console/named_sizes.hpp"
#include "benchmarks/harness/find_limit.hpp"
#include "benchmarks/harness/memory_check.hpp"
#include "benchmarks/harness/options.hpp"
#include "benchmarks/harness/plan.hpp"
#include "benchmarks/harness/serve.hpp"
#include "benchmarks/harness/suite.hpp"
#include "benchmarks/instruments/bring_up.hpp"
#include "benchmarks/instruments/context.hpp"

namespace tinyllama {
namespace {

using console::ExitCode;

ExitCode run(int argc, char** argv) {
  const std::vector<harness::Component> components = components::all();
  std::vector<std::string> names;
  for (const auto& component : components) names.push_back(component.name);
  names.emplace_back(harness::kPeakComponent);
  auto options = harness::parse_options(argc, argv, names);
  if (!options) return ExitCode::ok;
  const instruments::BringUp machine("tiny_llama_bench", argv,
                                     {options->device, options->threads, options->libraries});
  const instruments::Device& device = machine.device();
  harness::open_model(*options);
  harness::initialize_benchmark(*options);

  auto files = console::SizeFiles::in(TINY_LLAMA_SOURCE_DIR "/fixtures");
  if (!options->problem_sizes_file.empty()) files.problem_sizes = options->problem_sizes_file;
  const harness::Plan plan =
      harness::make_plan(*options, components, console::NamedSizes(files), machine.traits());
  if (options->list) {
    for (const auto& peak : plan.peak_cases) std::cout << peak.name << "\n";
    for (const auto& test_case : plan.cases) std::cout << test_case.name() << "\n";
    return ExitCode::ok;
  }
  if (options->describe_device) {
    std::cout << nlohmann::ordered_json{{"device", instruments::describe_device(device)}}.dump()
              << "\n";
    return ExitCode::ok;
  }
  if (options->weights) {
    if (const std::string unread = options->weights->not_read(); !unread.empty())
      fmt::print(stderr, "tiny_llama_bench: note: {}\n", unread);
  }
  for (const std::string& warning : plan.warnings)
    fmt::print(stderr, "tiny_llama_bench: warning: {}\n", warning);
  if (options->dry_run) {
    std::cout << harness::dry_run_text(*options, plan, device);
    return ExitCode::ok;
  }
  if (options->find_limit) return harness::run_find_limit(*options, plan, device);
  if (options->serve) return harness::serve(*options, plan, device);
  return harness::run_suite(*options, plan, device, components::parts_of_step());
}

}  // namespace
}  // namespace tinyllama

int main(int argc, char** argv) {
  return tinyllama::console::run_program("tiny_llama_bench",
                                         [&] { return tinyllama::run(argc, argv); });
}
