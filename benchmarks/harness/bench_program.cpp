#include "benchmarks/harness/bench_program.hpp"

#include <fmt/format.h>

#include <iostream>
#include <string>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/console/named_sizes.hpp"
#include "benchmarks/harness/dry_trace.hpp"
#include "benchmarks/harness/find_limit.hpp"
#include "benchmarks/harness/memory_check.hpp"
#include "benchmarks/harness/options.hpp"
#include "benchmarks/harness/plan.hpp"
#include "benchmarks/harness/replay.hpp"
#include "benchmarks/harness/serve.hpp"
#include "benchmarks/harness/suite.hpp"
#include "benchmarks/instruments/bring_up.hpp"
#include "benchmarks/instruments/context.hpp"
#include "core/data_folder.hpp"
#include "core/file_io.hpp"

namespace tinyllama::harness {
namespace {

using console::ExitCode;

ExitCode run(const char* program, int argc, char** argv, const std::vector<Component>& components,
             const PartsOfStep& step) {
  std::vector<std::string> names;
  for (const auto& component : components) names.push_back(component.name);
  names.emplace_back(kPeakComponent);
  auto options = parse_options(argc, argv, names);
  if (!options) return ExitCode::ok;
  const instruments::BringUp machine(program, argv,
                                     {options->device, options->threads, options->libraries});
  const instruments::Device& device = machine.device();
  open_model(*options);
  initialize_benchmark(*options);
  if (!options->replay_file.empty()) return run_replay(*options, device);

  auto files = console::SizeFiles::in(data_folder() / "fixtures");
  if (!options->problem_sizes_file.empty()) files.problem_sizes = options->problem_sizes_file;
  const Plan plan = make_plan(*options, components, console::NamedSizes(files), machine.traits());
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
      fmt::print(stderr, "{}: note: {}\n", program, unread);
  }
  for (const std::string& warning : plan.warnings)
    fmt::print(stderr, "{}: warning: {}\n", program, warning);
  if (options->dry_run) {
    check_world(*options, plan);
    check_output_folder("--execution-trace", options->execution_trace_folder);
    std::cout << dry_run_text(*options, plan, device);
    if (!options->execution_trace_folder.empty()) return trace_dry_run(*options, plan);
    return ExitCode::ok;
  }
  if (options->find_limit) return run_find_limit(*options, plan, device);
  if (options->serve) return serve(*options, plan, device);
  return run_suite(*options, plan, device, step);
}

}  // namespace

int bench_program(const char* program, int argc, char** argv,
                  const std::vector<Component>& components, const PartsOfStep& step) {
  return console::run_program(program, [&] { return run(program, argc, argv, components, step); });
}

}  // namespace tinyllama::harness
