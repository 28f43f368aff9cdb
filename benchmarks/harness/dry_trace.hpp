// --dry-run --execution-trace: execution traces of cases that are not run, for sizes and numbers of
// ranks that nobody has at hand.
#pragma once

#include <string>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/harness/plan.hpp"

namespace tinyllama::harness {

/// The file's name in --execution-trace: the case's, and with --world the rank's.
std::string dry_trace_file_name(const Options& options, const Case& test_case);

/// Throws std::invalid_argument that names value and rule where the stages of --world's ranks would
/// differ in their layers.
void check_world(const Options& options, const Plan& plan);

/// Writes the trace of one iteration on libtorch's meta device. As one rank of --world, with the
/// all-reduces of the gradients, where the case has a backward. Throws std::invalid_argument for a
/// case that cannot be traced, with the reason, and std::runtime_error for a file that cannot be
/// written.
void write_dry_trace(const Options& options, const Case& test_case);

/// Writes those of a plan, and says each file on standard error, or why there is none. Failed where
/// one could not be written.
console::ExitCode trace_dry_run(const Options& options, const Plan& plan);

}  // namespace tinyllama::harness
