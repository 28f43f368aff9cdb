// One rank's way through a run of the scaling program.
#pragma once

#include "benchmarks/console/exit.hpp"
#include "benchmarks/distributed/launch_environment.hpp"
#include "benchmarks/instruments/device.hpp"
#include "benchmarks/scaling/scaling_options.hpp"

namespace tinyllama::scaling {

/// Meets the other ranks, proves, measures, writes. Throws std::invalid_argument for what has to be
/// set otherwise, RankLostError where a rank is lost, std::runtime_error where the file cannot be
/// written; what was measured until then is in it.
console::ExitCode run_scaling(const ScalingOptions& options,
                              const distributed::LaunchEnvironment& where,
                              const instruments::Device& device);

}  // namespace tinyllama::scaling
