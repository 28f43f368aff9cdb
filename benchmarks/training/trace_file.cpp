#include "benchmarks/training/trace_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace tinyllama::training {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kBase = "baseTimeNanoseconds";
constexpr const char* kEvents = "traceEvents";
constexpr const char* kName = "traceName";
constexpr const char* kForwardBackward = "fwdbwd";

Json read_trace(const std::filesystem::path& path) {
  std::ifstream stream(path);
  try {
    return Json::parse(stream);
  } catch (const Json::exception& error) {
    throw std::runtime_error(
        fmt::format("{}: the profiler's trace of this step cannot be read back: is the disk full? "
                    "({})",
                    path.string(), error.what()));
  }
}

}  // namespace

TraceFile::TraceFile(const std::filesystem::path& path) : file_(path) {}

void TraceFile::write(const std::string& text) {
  file_.write(text.data(), std::ssize(text));
}

void TraceFile::append(const std::filesystem::path& trace) {
  Json document = read_trace(trace);
  const Json events = std::move(document[kEvents]);
  document.erase(kEvents);
  const int64_t base = document.value(kBase, int64_t{0});
  if (!base_nanoseconds_) {
    base_nanoseconds_ = base;
    head_ = document;
    write(fmt::format("{{\"{}\": [\n", kEvents));
  }
  // Microseconds count from the base; another base would shift these events against the others.
  const double shift = static_cast<double>(base - *base_nanoseconds_) * 1e-3;
  const int64_t first_arrow = arrows_;
  std::string text;
  for (Json event : events) {
    // Each recording numbers its arrows from forward to backward from 1.
    if (event.value("cat", "") == kForwardBackward && event.contains("id")) {
      event["id"] = event["id"].get<int64_t>() + first_arrow;
      arrows_ = std::max(arrows_, event["id"].get<int64_t>());
    }
    if (shift != 0 && event.contains("ts")) event["ts"] = event["ts"].get<double>() + shift;
    text += has_events_ ? ",\n" : "";
    text += event.dump(-1, ' ', false, Json::error_handler_t::replace);
    has_events_ = true;
  }
  write(text);
}

void TraceFile::finish(const std::filesystem::path& path) {
  if (!base_nanoseconds_) write(fmt::format("{{\"{}\": [", kEvents));
  head_[kName] = path.filename().string();
  write("\n],\n" + head_.dump().substr(1) + "\n");  // without the opening brace
  file_.commit_as(path);
}

}  // namespace tinyllama::training
