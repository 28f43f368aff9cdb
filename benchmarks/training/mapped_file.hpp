// A file that is read as if it lay in memory: the kernel brings in only the pages that are used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "model/file_io.hpp"

namespace tinyllama::training {

/// A regular file mapped read-only at the size it has when it is opened.
class MappedFile {
 public:
  /// Throws std::invalid_argument naming the path and the cause where it is missing, unreadable, a
  /// folder, not a regular file, or empty; std::runtime_error where the kernel cannot map it.
  explicit MappedFile(std::filesystem::path path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  /// Size when it was opened.
  int64_t bytes() const { return bytes_; }
  /// The `count` bytes from `offset` on, valid until they are used at once. Looks at the file's
  /// size first, because touching a page behind the end of a file that was cut short kills the
  /// process. Throws std::runtime_error naming both sizes where it has become shorter, and
  /// std::out_of_range where the bytes lie outside.
  std::span<const uint8_t> read(int64_t offset, int64_t count) const;

 private:
  std::filesystem::path path_;
  FileDescriptor descriptor_;
  int64_t bytes_ = 0;
  const uint8_t* data_ = nullptr;
};

}  // namespace tinyllama::training
