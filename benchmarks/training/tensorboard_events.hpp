// Event files for TensorBoard: the curves of a training run.
//
// A file is a row of TFRecords (tensorflow/core/lib/io/record_writer.h), each an Event
// (tensorflow/core/util/event.proto) of which only four fields are needed, so they are encoded
// here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/file_io.hpp"

namespace tinyllama::training {

class TensorboardEvents {
 public:
  /// Creates events.out.tfevents.<unix seconds>.<host> in the folder, which must exist; with a
  /// number behind it where there is one already. Throws std::runtime_error, as write() does,
  /// naming the path and the cause.
  explicit TensorboardEvents(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return path_; }
  /// Adds one step's scalars, by tag; what is absent gets no point. It is in the file when this
  /// returns. Where that fails (disk full) the file still ends with the step before.
  void write(int64_t step,
             const std::vector<std::pair<std::string_view, std::optional<double>>>& scalars);

 private:
  void append(std::string_view event);

  std::filesystem::path path_;
  FileDescriptor descriptor_;
  int64_t bytes_ = 0;  ///< of whole records
};

/// CRC-32C (Castagnoli, RFC 3720).
uint32_t crc32c(std::string_view bytes);

}  // namespace tinyllama::training
