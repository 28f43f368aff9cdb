// --trace: what the profiler sees of one iteration of a case, as a Chrome trace.
#pragma once

#include <string>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/instruments/device.hpp"

namespace tinyllama::harness {

/// How write_trace begins what it says of a fault.
inline constexpr const char* kNoTrace = "no trace: ";

/// The case's name with '.' for '/' and '-' for what a file system may not take, and ".json".
std::string trace_file_name(const std::string& case_name);

/// Records one iteration, of which prepare() is not seen, and writes it whole or not at all. Throws
/// nothing: a trace that fails must not cost the case. Returns why there is none; empty where there
/// is one.
std::string write_trace(const instruments::Device& device, WorkItem& item,
                        const std::string& case_name, const std::string& folder);

}  // namespace tinyllama::harness
