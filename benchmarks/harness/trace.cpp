#include "benchmarks/harness/trace.hpp"

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>

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

}  // namespace

std::string trace_file_name(const std::string& case_name) {
  std::string name = case_name;
  std::ranges::replace(name, '/', '.');
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0 && !std::strchr("._+-", c); }, '-');
  return name + ".json";
}

std::string write_trace(const instruments::Device& device, WorkItem& item,
                        const std::string& case_name, const std::string& folder) {
  try {
    record(device, item, case_name, fs::path(folder) / trace_file_name(case_name));
  } catch (const std::exception& error) {
    const std::string reason = error.what();
    return kNoTrace + reason.substr(0, reason.find('\n'));
  }
  return {};
}

}  // namespace tinyllama::harness
