#include "benchmarks/harness/trace.hpp"

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <functional>

#include "benchmarks/instruments/execution_trace.hpp"
#include "benchmarks/instruments/operator_profile.hpp"
#include "benchmarks/instruments/trace_file.hpp"

namespace tinyllama::harness {
namespace {

namespace fs = std::filesystem;

void record(const instruments::Device& device, WorkItem& item, const std::string& case_name,
            const fs::path& file) {
  item.prepare();
  instruments::KinetoSession session(device, {.shapes = true});
  {
    at::RecordFunction range(at::RecordScope::USER_SCOPE);
    range.before(case_name);
    item.run();
    device.synchronize();
  }
  instruments::TraceFile trace(file);
  trace.append(*session.stop());
  trace.finish(file);
}

std::string reason_of_none(const char* begin, const std::function<void()>& write) {
  try {
    write();
  } catch (const std::exception& error) {
    const std::string reason = error.what();
    return begin + reason.substr(0, reason.find('\n'));
  }
  return {};
}

// Without a suffix.
std::string file_stem(const std::string& case_name) {
  std::string name = case_name;
  std::ranges::replace(name, '/', '.');
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0 && !std::strchr("._+-", c); }, '-');
  return name;
}

}  // namespace

std::string trace_file_name(const std::string& case_name) {
  return file_stem(case_name) + ".json";
}

std::string execution_trace_file_name(const std::string& case_name) {
  return file_stem(case_name) + ".et.json";
}

std::string write_trace(const instruments::Device& device, WorkItem& item,
                        const std::string& case_name, const std::string& folder) {
  return reason_of_none(kNoTrace, [&] {
    record(device, item, case_name, fs::path(folder) / trace_file_name(case_name));
  });
}

std::string write_execution_trace(const instruments::Device& device, WorkItem& item,
                                  const std::string& case_name, const std::string& folder) {
  return reason_of_none(kNoExecutionTrace, [&] {
    item.prepare();
    device.synchronize();
    instruments::record_execution_trace(fs::path(folder) / execution_trace_file_name(case_name),
                                        [&] {
                                          item.run();
                                          device.synchronize();
                                        });
  });
}

}  // namespace tinyllama::harness
