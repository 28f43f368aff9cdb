// Helpers of the tests in this folder: made-up files and what is thrown.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace tinyllama::instruments {

/// A folder that the kernel's or a user's files are made up in, gone at the end.
class FakeFiles {
 public:
  FakeFiles() {
    std::string pattern = ::testing::TempDir() + "tiny_llama_test_XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~FakeFiles() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  FakeFiles(const FakeFiles&) = delete;
  FakeFiles& operator=(const FakeFiles&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  void write(const std::filesystem::path& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text << '\n';
  }

 private:
  std::filesystem::path path_;
};

template <typename Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

inline void expect_mentions(const std::string& text, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
}

}  // namespace tinyllama::instruments
