// Event files for TensorBoard: the curves of a training run.
//
// A file is a row of TFRecords (tensorflow/core/lib/io/record_writer.h), each an Event
// (tensorflow/core/util/event.proto) of which only four fields are needed, so they are encoded
// here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "model/file_io.hpp"

namespace tinyllama::training {

/// What is drawn of one step, each under the tag of its name. What is absent gets no point.
struct StepScalars {
  int64_t step = 0;
  std::optional<double> loss = std::nullopt;
  std::optional<double> evaluation_loss = std::nullopt;
  std::optional<double> step_time_seconds = std::nullopt;
  std::optional<double> samples_per_second = std::nullopt;
  std::optional<double> peak_memory_MiB = std::nullopt;
};

class TensorboardEvents {
 public:
  /// Creates events.out.tfevents.<unix seconds>.<host> in the folder, which must exist; with a
  /// number behind it where there is one already. Throws std::runtime_error, as write() does,
  /// naming the path and the cause.
  explicit TensorboardEvents(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return path_; }
  /// Adds one step; it is in the file when this returns. Where that fails (disk full) the file
  /// still ends with the step before.
  void write(const StepScalars& scalars);

 private:
  void append(std::string_view event);

  std::filesystem::path path_;
  FileDescriptor descriptor_;
  int64_t bytes_ = 0;  ///< of whole records
};

/// CRC-32C (Castagnoli, RFC 3720).
uint32_t crc32c(std::string_view bytes);

}  // namespace tinyllama::training
