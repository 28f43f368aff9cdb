// One iteration of a case on record: --trace, a Chrome trace of what the profiler sees, and
// --execution-trace, a Chakra trace of its operators.
#pragma once

#include <string>

#include "benchmarks/harness/case.hpp"
#include "benchmarks/instruments/device.hpp"

namespace tinyllama::harness {

/// How the reasons begin that write_trace() and write_execution_trace() return.
inline constexpr const char* kNoTrace = "no trace: ";
inline constexpr const char* kNoExecutionTrace = "no execution trace: ";

/// The case's name with '.' for '/' and '-' for what a file system may not take, and ".json".
std::string trace_file_name(const std::string& case_name);
/// The same with ".et.json", so that both may lie in one folder.
std::string execution_trace_file_name(const std::string& case_name);

/// Records run() of one iteration, after an unrecorded prepare(), and writes the file whole or not
/// at all. Throws nothing, so that the case is measured even where its trace fails. Returns why
/// there is none; empty where there is one.
std::string write_trace(const instruments::Device& device, WorkItem& item,
                        const std::string& case_name, const std::string& folder);
/// The same for the execution trace.
std::string write_execution_trace(const instruments::Device& device, WorkItem& item,
                                  const std::string& case_name, const std::string& folder);

}  // namespace tinyllama::harness
