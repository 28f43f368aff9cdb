// One Chrome trace of many recordings, written as they come: memory holds one of them at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "model/file_io.hpp"

namespace tinyllama::training {

class TraceFile {
 public:
  /// Throws std::runtime_error naming path and cause, as all the others do.
  explicit TraceFile(const std::filesystem::path& path);

  /// Appends the events of a trace that Kineto saved. Its times must count from the same moment as
  /// those before, which Kineto's do within a process.
  void append(const std::filesystem::path& trace);
  /// Puts the file in its place; `path` may differ from the constructor's in its name.
  void finish(const std::filesystem::path& path);

 private:
  void write(const std::string& text);

  ReplacementFile file_;
  int64_t arrows_ = 0;  ///< highest number of an arrow so far
  std::optional<int64_t> base_nanoseconds_;
  nlohmann::ordered_json head_;  ///< what of the first trace is not events; written after them
  bool has_events_ = false;
};

}  // namespace tinyllama::training
