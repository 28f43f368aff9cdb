// The folders that a run writes to: tried before the run, and written to as long as they can be.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace tinyllama::training {

class ResultFolder {
 public:
  /// Creates the folder and tries to write a file there; an empty path stands for no folder. Throws
  /// std::invalid_argument naming the option, the folder and the cause.
  ResultFolder(const char* option, std::filesystem::path path);

  bool exists() const { return !path_.empty(); }
  const std::filesystem::path& path() const { return path_; }
  /// Writes a file, which may lie in a folder below, and remembers its name.
  void write(const std::string& name, const std::string& text);
  /// Remembers a file that is written here, once.
  void add(const std::string& name);
  const std::vector<std::string>& files() const { return files_; }

 private:
  std::filesystem::path path_;
  std::vector<std::string> files_;
};

/// Runs every piece of work, whether or not one before it failed, and then throws the first error.
/// One full disk must not keep the results from being written to another.
class WriteAttempts {
 public:
  void attempt(const std::function<void()>& work);
  void rethrow() const;

 private:
  std::exception_ptr first_;
};

}  // namespace tinyllama::training
