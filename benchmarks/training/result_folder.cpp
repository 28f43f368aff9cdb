#include "benchmarks/training/result_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "model/file_io.hpp"

namespace tinyllama::training {

ResultFolder::ResultFolder(const char* option, std::filesystem::path path)
    : path_(std::move(path)) {
  if (path_.empty()) return;
  try {
    std::filesystem::create_directories(path_);
    const auto trial = path_ / ".tiny_llama_train_writes_here";
    write_file_atomically(trial, "x");
    std::filesystem::remove(trial);
  } catch (const std::exception& error) {
    throw std::invalid_argument(fmt::format("{} '{}': must be a folder that can be written to: {}",
                                            option, path_.string(), error.what()));
  }
}

void ResultFolder::add(const std::string& name) {
  if (std::find(files_.begin(), files_.end(), name) == files_.end()) files_.push_back(name);
}

void ResultFolder::write(const std::string& name, const std::string& text) {
  const auto file = path_ / name;
  std::error_code refused;  // the write says why
  std::filesystem::create_directories(file.parent_path(), refused);
  write_file_atomically(file, text);
  add(name);
}

void WriteAttempts::attempt(const std::function<void()>& work) {
  try {
    work();
  } catch (...) {
    if (!first_) first_ = std::current_exception();
  }
}

void WriteAttempts::rethrow() const {
  if (first_) std::rethrow_exception(first_);
}

}  // namespace tinyllama::training
