#include "core/file_io.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace tinyllama {
namespace {

constexpr int kClosed = -1;
// One call of the system moves at most 2 GiB.
constexpr int64_t kLargestPiece = int64_t{1} << 30;
constexpr int kMostNames = 100;

[[noreturn]] void fail_reading(const std::filesystem::path& path, const std::string& cause) {
  throw std::invalid_argument(fmt::format("{}: cannot be read: {}", path.string(), cause));
}

size_t piece(int64_t bytes) {
  return static_cast<size_t>(std::min(bytes, kLargestPiece));
}

FileDescriptor open_for_reading(const std::filesystem::path& path) {
  // Not to wait for a writer, should the path be a pipe.
  const int number = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (number < 0) fail_reading(path, std::strerror(errno));
  return FileDescriptor(number);
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  close();
}

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept
    : number_(std::exchange(other.number_, kClosed)) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    close();
    number_ = std::exchange(other.number_, kClosed);
  }
  return *this;
}

int FileDescriptor::write(const void* data, int64_t bytes) const {
  const auto* next = static_cast<const char*>(data);
  for (int64_t done = 0; done < bytes;) {
    const auto count = ::write(number_, next + done, piece(bytes - done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    done += count;
  }
  return 0;
}

int FileDescriptor::close() {
  const int number = std::exchange(number_, kClosed);
  return number == kClosed || ::close(number) == 0 ? 0 : errno;
}

ReadableFile::ReadableFile(std::filesystem::path path)
    : path_(std::move(path)), descriptor_(open_for_reading(path_)) {
  struct stat status = {};
  if (::fstat(descriptor_.number(), &status) != 0) fail_reading(path_, std::strerror(errno));
  if (S_ISDIR(status.st_mode)) fail_reading(path_, "it is a folder, not a file");
  if (!S_ISREG(status.st_mode)) fail_reading(path_, "it is not a regular file");
  bytes_ = status.st_size;
}

void ReadableFile::read(int64_t offset, int64_t bytes, void* to) const {
  auto* next = static_cast<char*>(to);
  for (int64_t done = 0; done < bytes;) {
    const auto count =
        ::pread(descriptor_.number(), next + done, piece(bytes - done), offset + done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      throw std::runtime_error(
          fmt::format("{}: cannot be read: {}", path_.string(), std::strerror(errno)));
    }
    if (count == 0) {
      throw std::runtime_error(fmt::format("{}: ends at byte {}, but had {} when it was opened",
                                           path_.string(), offset + done, bytes_));
    }
    done += count;
  }
}

std::string read_text(const std::filesystem::path& path, int64_t most_bytes) {
  const ReadableFile file(path);
  if (file.bytes() > most_bytes) {
    throw std::invalid_argument(fmt::format("{}: has {} bytes: must have at most {}", path.string(),
                                            file.bytes(), most_bytes));
  }
  std::string text(static_cast<size_t>(file.bytes()), '\0');
  file.read(0, file.bytes(), text.data());
  return text;
}

void fail_writing(const std::filesystem::path& path, int error) {
  throw std::runtime_error(
      fmt::format("{}: cannot be written: {}", path.string(), std::strerror(error)));
}

std::pair<std::filesystem::path, FileDescriptor> create_new_file(
    const std::filesystem::path& wanted, const std::function<std::filesystem::path(int)>& name) {
  for (int attempt = 0;; ++attempt) {
    auto path = name(attempt);
    FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file.number() >= 0) return {std::move(path), std::move(file)};
    if (errno != EEXIST || attempt == kMostNames) fail_writing(wanted, errno);
  }
}

ReplacementFile::ReplacementFile(std::filesystem::path path)
    : path_(std::move(path)), descriptor_(kClosed) {
  // Beside the target: a rename works only within one file system.
  std::tie(temporary_, descriptor_) = create_new_file(path_, [&](int attempt) {
    return path_.string() + fmt::format(".{}.{}.tmp", ::getpid(), attempt);
  });
}

ReplacementFile::~ReplacementFile() {
  if (!committed_) ::unlink(temporary_.c_str());
}

void ReplacementFile::write(const void* data, int64_t bytes) {
  if (const int error = descriptor_.write(data, bytes); error != 0) fail_writing(path_, error);
}

void ReplacementFile::commit_as(std::filesystem::path path) {
  path_ = std::move(path);
  commit();
}

void ReplacementFile::commit() {
  if (::fsync(descriptor_.number()) != 0) fail_writing(path_, errno);
  // Some network file systems report a full disk only here.
  if (const int error = descriptor_.close(); error != 0) fail_writing(path_, error);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_writing(path_, errno);
  committed_ = true;
  // The new name is on the disk once its folder is; not every file system can say so.
  const auto folder = path_.has_parent_path() ? path_.parent_path() : std::filesystem::path(".");
  const FileDescriptor directory(::open(folder.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECTORY));
  if (directory.number() >= 0) static_cast<void>(::fsync(directory.number()));
}

void write_file_atomically(const std::filesystem::path& file, const std::string& text) {
  std::error_code unknown;
  const auto status = std::filesystem::status(file, unknown);
  // A pipe or a device (/dev/stdout) must not be replaced by a file of its name, nor a link by what
  // it points to.
  const bool in_place =
      std::filesystem::exists(status) &&
      (!std::filesystem::is_regular_file(status) || std::filesystem::is_symlink(file, unknown));
  if (!in_place) {
    ReplacementFile replacement(file);
    replacement.write(text.data(), std::ssize(text));
    return replacement.commit();
  }
  FileDescriptor there(::open(file.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
  int error = there.number() < 0 ? errno : there.write(text.data(), std::ssize(text));
  if (error == 0) error = there.close();
  if (error != 0) fail_writing(file, error);
}

void try_to_write_in(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  ReplacementFile(folder / "trial").write("x", 1);
}

void check_output_file(const char* option, const std::filesystem::path& file) {
  std::error_code unknown;
  if (file.empty() || std::filesystem::is_other(file, unknown)) return;
  if (std::filesystem::is_directory(file, unknown))
    throw std::invalid_argument(fmt::format("{}: {}: is a directory", option, file.string()));
  try {
    const ReplacementFile trial(file);
  } catch (const std::runtime_error& error) {
    throw std::invalid_argument(fmt::format("{}: {}", option, error.what()));
  }
}

void check_output_folder(const char* option, const std::filesystem::path& folder) {
  if (folder.empty()) return;
  try {
    try_to_write_in(folder);
  } catch (const std::runtime_error& error) {
    throw std::invalid_argument(fmt::format("{} '{}': must be a folder that can be written to: {}",
                                            option, folder.string(), error.what()));
  }
}

}  // namespace tinyllama
