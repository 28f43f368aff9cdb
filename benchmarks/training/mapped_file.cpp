#include "benchmarks/training/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace tinyllama::training {
namespace {

[[noreturn]] void reject(const std::filesystem::path& path, const std::string& cause) {
  throw std::invalid_argument(fmt::format("{}: {}", path.string(), cause));
}

FileDescriptor open_for_reading(const std::filesystem::path& path) {
  // Not to wait for a writer, should the path be a pipe.
  const int number = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (number < 0) reject(path, fmt::format("cannot be read: {}", std::strerror(errno)));
  return FileDescriptor(number);
}

struct stat status_of(const FileDescriptor& descriptor, const std::filesystem::path& path) {
  struct stat status = {};
  if (::fstat(descriptor.number(), &status) != 0) {
    throw std::runtime_error(
        fmt::format("{}: its size cannot be read: {}", path.string(), std::strerror(errno)));
  }
  return status;
}

}  // namespace

MappedFile::MappedFile(std::filesystem::path path)
    : path_(std::move(path)), descriptor_(open_for_reading(path_)) {
  const struct stat status = status_of(descriptor_, path_);
  if (S_ISDIR(status.st_mode)) reject(path_, "is a folder; name a file");
  if (!S_ISREG(status.st_mode)) reject(path_, "is not a regular file, and only such can be mapped");
  if (status.st_size == 0) reject(path_, "is empty (0 bytes); name a file with text in it");
  bytes_ = status.st_size;
  void* data =
      ::mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ, MAP_PRIVATE, descriptor_.number(), 0);
  if (data == MAP_FAILED) {
    throw std::runtime_error(
        fmt::format("{}: cannot be mapped into memory: {}", path_.string(), std::strerror(errno)));
  }
  data_ = static_cast<const uint8_t*>(data);
}

MappedFile::~MappedFile() {
  ::munmap(const_cast<uint8_t*>(data_), static_cast<size_t>(bytes_));
}

std::span<const uint8_t> MappedFile::read(int64_t offset, int64_t count) const {
  if (offset < 0 || count < 0 || offset > bytes_ - count) {
    throw std::out_of_range(fmt::format("{}: bytes {} to {} were asked for, it has {}",
                                        path_.string(), offset, offset + count, bytes_));
  }
  const int64_t now = status_of(descriptor_, path_).st_size;
  if (now < bytes_) {
    throw std::runtime_error(
        fmt::format("{}: had {} bytes when it was opened and has {} now; a file must not be cut "
                    "short while it is trained on",
                    path_.string(), bytes_, now));
  }
  return {data_ + offset, static_cast<size_t>(count)};
}

}  // namespace tinyllama::training
