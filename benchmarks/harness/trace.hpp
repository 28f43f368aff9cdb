// --trace: what the profiler sees of one iteration of a case, as a Chrome trace.
#pragma once

#include <string>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/instruments/device.hpp"

namespace tinyllama::harness {

/// How the reason begins that write_trace() returns.
inline constexpr const char* kNoTrace = "no trace: ";

/// The case's name with '.' for '/' and '-' for what a file system may not take, and ".json".
std::string trace_file_name(const std::string& case_name);

/// Records run() of one iteration, after an unrecorded prepare(), and writes the file whole or not
/// at all. Throws nothing, so that the case is measured even where its trace fails. Returns why
/// there is none; empty where there is one.
std::string write_trace(const instruments::Device& device, WorkItem& item,
                        const std::string& case_name, const std::string& folder);

}  // namespace tinyllama::harness
