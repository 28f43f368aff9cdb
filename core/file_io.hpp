// Files read in pieces and written whole or not at all. Errors name the file and the cause.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>

namespace tinyllama {

/// Owns an open file.
class FileDescriptor {
 public:
  explicit FileDescriptor(int number) : number_(number) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;

  int number() const { return number_; }
  /// All of it, however often the system takes a part or a signal comes between. Returns 0 or
  /// errno.
  int write(const void* data, int64_t bytes) const;
  /// Closes it now; what the system then says (0 or errno).
  int close();

 private:
  int number_;
};

/// A regular file, open for reading at any place. It is never mapped into memory: a mapped file
/// that someone cuts short kills its reader.
class ReadableFile {
 public:
  /// Throws std::invalid_argument where the path is missing, not a regular file or unreadable.
  explicit ReadableFile(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  /// Size when it was opened.
  int64_t bytes() const { return bytes_; }
  /// Fills `to` with the bytes from `offset` on. Throws std::runtime_error where the file cannot be
  /// read or has meanwhile become shorter.
  void read(int64_t offset, int64_t bytes, void* to) const;

 private:
  std::filesystem::path path_;
  FileDescriptor descriptor_;
  int64_t bytes_ = 0;
};

/// The text of a small file. Throws as ReadableFile does, and std::invalid_argument where it is
/// longer than `most_bytes`.
std::string read_text(const std::filesystem::path& path, int64_t most_bytes);

/// Makes a new file for `wanted`, of the first of the names name(0), name(1), ... that is free.
/// Throws std::runtime_error that names `wanted` and the cause.
std::pair<std::filesystem::path, FileDescriptor> create_new_file(
    const std::filesystem::path& wanted, const std::function<std::filesystem::path(int)>& name);
/// Throws std::runtime_error that names the path and the cause, of errno's values.
[[noreturn]] void fail_writing(const std::filesystem::path& path, int error);

/// A file that takes the place of `path` when it is complete. Until then the data lies in a
/// temporary file beside it, which is removed if it is never committed: neither an interruption nor
/// a full disk leaves half a file or destroys the old one. Every method throws std::runtime_error
/// that names the path and the cause.
class ReplacementFile {
 public:
  explicit ReplacementFile(std::filesystem::path path);
  ~ReplacementFile();
  ReplacementFile(const ReplacementFile&) = delete;
  ReplacementFile& operator=(const ReplacementFile&) = delete;

  void write(const void* data, int64_t bytes);
  /// Forces the data onto the disk, then renames.
  void commit();
  /// The same, under a name that was not known before; in the same folder.
  void commit_as(std::filesystem::path path);

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  FileDescriptor descriptor_;
  bool committed_ = false;
};

/// Writes the text through a ReplacementFile; pipes, devices and links are written to in place.
/// Throws std::runtime_error as it does.
void write_file_atomically(const std::filesystem::path& file, const std::string& text);

/// Makes the folder and those it lies in, as far as they are missing, and writes a file there,
/// which goes again. Throws std::runtime_error that names the path and the cause.
void try_to_write_in(const std::filesystem::path& folder);

/// Whether results can be written where an option says, so that a wrong path does not cost a run.
/// What is there stays. Empty names stand for none. Throw std::invalid_argument that names the
/// option, the path and the cause.
void check_output_file(const char* option, const std::filesystem::path& file);
void check_output_folder(const char* option, const std::filesystem::path& folder);

}  // namespace tinyllama
