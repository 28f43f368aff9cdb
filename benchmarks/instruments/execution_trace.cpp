#include "benchmarks/instruments/execution_trace.hpp"

#include <c10/util/Logging.h>
#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <torch/csrc/profiler/standalone/execution_trace_observer.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/file_io.hpp"

namespace tinyllama::instruments {
namespace {

namespace fs = std::filesystem;
namespace observer = torch::profiler::impl;

// The observer announces as a warning each time that it begins and ends.
template <class Call>
void quietly(const Call& call) {
  constexpr int errors_only = 2;  // c10::GLOG_ERROR
  const int level = FLAGS_caffe2_log_level;
  FLAGS_caffe2_log_level = std::max(level, errors_only);
  const auto restore = c10::make_scope_exit([level] { FLAGS_caffe2_log_level = level; });
  call();
}

// The observer does not look whether its stream took what it wrote: where it did not, the end is
// missing.
void refuse_if_cut_off(const fs::path& written, const fs::path& file) {
  constexpr int64_t most = 64;
  const ReadableFile trace(written);
  const int64_t bytes = std::min(most, trace.bytes());
  std::string end(static_cast<size_t>(bytes), '\0');
  trace.read(trace.bytes() - bytes, bytes, end.data());
  if (end.find("\"finish_ts\"") == std::string::npos || !end.ends_with('}')) {
    throw std::runtime_error(fmt::format(
        "{}: cannot be written: libtorch's observer left it without its end: is the disk full?",
        file.string()));
  }
}

}  // namespace

void record_execution_trace(const fs::path& file, const std::function<void()>& work) {
  // Another run may write into the same folder. The observer, once it failed to open a file, never
  // records again in this process: whether it can is tried before.
  const auto [written, descriptor] = create_new_file(file, [&](int tried) {
    return file.parent_path() / fmt::format(".execution_trace.{}.{}.json", ::getpid(), tried);
  });
  const auto remove = c10::make_scope_exit([&, path = written] {
    std::error_code absent;
    fs::remove(path, absent);
  });
  if (!observer::addExecutionTraceObserver(written.string()))
    throw std::runtime_error(fmt::format("{}: cannot be written", file.string()));
  {
    const auto end = c10::make_scope_exit([] {
      quietly([] {
        observer::disableExecutionTraceObserver();
        observer::removeExecutionTraceObserver();
      });
    });
    quietly([] { observer::enableExecutionTraceObserver(); });
    work();
  }
  refuse_if_cut_off(written, file);
  std::error_code failed;
  fs::rename(written, file, failed);
  if (failed) fail_writing(file, failed.value());
}

}  // namespace tinyllama::instruments
