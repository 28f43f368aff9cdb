// A Chrome trace of what libtorch's profiler recorded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/file_io.hpp"

namespace torch::autograd::profiler {
struct ProfilerResult;
}  // namespace torch::autograd::profiler

namespace tinyllama::instruments {

/// One trace of any number of recordings, written as they come: memory holds neither a whole
/// recording as text nor as values.
class TraceFile {
 public:
  /// Throws std::runtime_error naming path and cause, as all the others do.
  explicit TraceFile(const std::filesystem::path& path);

  /// Appends the events of a recording. Its times must count from the same moment as those before,
  /// which Kineto's do within a process. Kineto writes them to a file only, in the folder of the
  /// trace, which is gone when this returns, and says nothing of a full disk: throws
  /// std::runtime_error where it cannot be read back.
  void append(torch::autograd::profiler::ProfilerResult& recording);

  /// Puts the file in its place; `path` may differ from the constructor's in its name.
  void finish(const std::filesystem::path& path);

 private:
  using Json = nlohmann::ordered_json;

  /// `base_nanoseconds`: what the event's time counts from; `first_arrow`: highest number of an
  /// arrow of the recordings before.
  void add(Json& event, int64_t base_nanoseconds, int64_t first_arrow);
  void write();

  std::filesystem::path folder_;
  ReplacementFile file_;
  std::string text_;    // not yet written
  int64_t arrows_ = 0;  // highest number of an arrow so far
  std::optional<int64_t> base_nanoseconds_;
  Json head_;  // what of the first trace is not events; written after them
};

}  // namespace tinyllama::instruments
