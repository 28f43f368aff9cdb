#include "benchmarks/instruments/trace_file.hpp"

#include <c10/util/ScopeExit.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <utility>

namespace tinyllama::instruments {
namespace {

constexpr const char* kEvents = "traceEvents";
constexpr size_t kPieceBytes = size_t{1} << 20;

}  // namespace

TraceFile::TraceFile(const std::filesystem::path& path)
    : folder_(path.parent_path()), file_(path), text_(fmt::format("{{\"{}\": [", kEvents)) {}

void TraceFile::append(torch::autograd::profiler::ProfilerResult& recording) {
  // another run may write into the same folder
  const auto file = folder_ / fmt::format(".trace.{}.json", ::getpid());
  const auto remove = c10::make_scope_exit([&] {
    std::error_code absent;
    std::filesystem::remove(file, absent);
    // Kineto fills this one first, and leaves it behind where the disk is full.
    std::filesystem::remove(file.string() + ".tmp", absent);
  });
  recording.save(file.string());
  std::ifstream stream(file);
  const int64_t first_arrow = arrows_;
  int64_t base_nanoseconds = 0;
  std::string key;
  // Takes each event as it is read and drops it. A tree of all would be many times as large as the
  // text, and Json asks for memory when it frees a tree, where nothing can be done if there is
  // none.
  const auto take = [&](int depth, Json::parse_event_t part, Json& value) {
    if (depth == 1 && part == Json::parse_event_t::key) key = value.get<std::string>();
    // before the events
    if (depth == 1 && part == Json::parse_event_t::value && key == "baseTimeNanoseconds")
      base_nanoseconds = value.get<int64_t>();
    if (depth != 2 || part != Json::parse_event_t::object_end || key != kEvents) return true;
    add(value, base_nanoseconds, first_arrow);
    return false;
  };
  try {
    Json head = Json::parse(stream, take);
    head.erase(kEvents);
    if (head_.is_null()) head_ = std::move(head);
  } catch (const Json::exception& error) {
    throw std::runtime_error(
        fmt::format("{}: the profiler's trace cannot be read back: is the disk full? ({})",
                    file.string(), error.what()));
  }
}

void TraceFile::add(Json& event, int64_t base_nanoseconds, int64_t first_arrow) {
  text_ += base_nanoseconds_ ? ",\n" : "\n";
  if (!base_nanoseconds_) base_nanoseconds_ = base_nanoseconds;
  // Each recording numbers its arrows from forward to backward from 1.
  if (event.value("cat", "") == "fwdbwd" && event.contains("id")) {
    event["id"] = event["id"].get<int64_t>() + first_arrow;
    arrows_ = std::max(arrows_, event["id"].get<int64_t>());
  }
  // Microseconds count from the base; another base would shift these events against the others.
  const double shift = static_cast<double>(base_nanoseconds - *base_nanoseconds_) * 1e-3;
  if (shift != 0 && event.contains("ts")) event["ts"] = event["ts"].get<double>() + shift;
  text_ += event.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text_.size() >= kPieceBytes) write();
}

void TraceFile::finish(const std::filesystem::path& path) {
  head_["traceName"] = path.filename().string();
  // without the opening brace
  text_ += "\n],\n" + head_.dump(-1, ' ', false, Json::error_handler_t::replace).substr(1) + "\n";
  write();
  file_.commit_as(path);
}

void TraceFile::write() {
  file_.write(text_.data(), std::ssize(text_));
  text_.clear();
}

}  // namespace tinyllama::instruments
