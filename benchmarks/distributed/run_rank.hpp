// How a program that may be one of several ranks starts and ends.
#pragma once

#include <functional>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/distributed/launch_environment.hpp"
#include "benchmarks/instruments/device.hpp"

namespace tinyllama::distributed {

/// Runs the body with what the launcher says. Errors of one of several ranks say which. Where a
/// rank is lost, it ends the process: destructors would wait for operations that the lost rank will
/// never take part in.
console::ExitCode run_rank(const char* program,
                           const std::function<console::ExitCode(const LaunchEnvironment&)>& body);

/// As Device::select; a general name ("auto", "cuda") is the GPU of the rank's number on its host.
instruments::Device select_device(const std::string& text, const LaunchEnvironment& where);

}  // namespace tinyllama::distributed
