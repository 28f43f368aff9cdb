#include "core/data_folder.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>

#include "core/version.hpp"

namespace tinyllama {
namespace {

class DataFolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / "data of é";
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override {
    unsetenv("TINY_LLAMA_DATA_DIR");
    std::filesystem::remove_all(folder_);
  }
  static std::string refusal() {
    try {
      return data_folder().string() + " was not refused";
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
  }
  void give(const std::string& version) const {
    std::ofstream(folder_ / "VERSION") << version << "\n";
    setenv("TINY_LLAMA_DATA_DIR", folder_.c_str(), 1);
  }
  std::filesystem::path folder_;
};

TEST_F(DataFolderTest, TheVariableNamesIt) {
  give(project_version());
  EXPECT_EQ(data_folder(), folder_);
}

TEST_F(DataFolderTest, OneThatIsMissingIsNamedWithWhatToDo) {
  setenv("TINY_LLAMA_DATA_DIR", "/no/such/folder", 1);
  EXPECT_NE(refusal().find("TINY_LLAMA_DATA_DIR=/no/such/folder: is no data folder"),
            std::string::npos)
      << refusal();
}

TEST_F(DataFolderTest, WithoutTheVariableItLiesBesideTheProgram) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  for (const bool is_empty : {false, true}) {
    if (is_empty) setenv("TINY_LLAMA_DATA_DIR", "", 1);
    EXPECT_EQ(data_folder(), program.parent_path().parent_path() / "share/tiny_llama");
  }
}

TEST_F(DataFolderTest, ACommandIsTypedAsInACheckoutWhereTheProgramIsOfOne) {
  EXPECT_EQ(typed("report"), "scripts/report");
}

TEST_F(DataFolderTest, AnotherVersionIsRefusedAndBothAreNamed) {
  give("0.9.9");
  EXPECT_NE(refusal().find("holds the data of version 0.9.9, this program is " + project_version()),
            std::string::npos)
      << refusal();
  give("");
  EXPECT_NE(refusal().find("no file VERSION"), std::string::npos) << refusal();
}

}  // namespace
}  // namespace tinyllama
