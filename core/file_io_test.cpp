#include "core/file_io.hpp"

#include <gtest/gtest.h>

#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama {
namespace {

class WriteFileAtomicallyTest : public ::testing::Test {
 protected:
  std::string text() const { return testing::read_bytes(file); }
  size_t files() const { return folder.entries().size(); }
  testing::TemporaryFolder folder;
  std::filesystem::path file = folder / "result.json";
};

TEST_F(WriteFileAtomicallyTest, WritesAndReplacesLeavingNothingElse) {
  write_file_atomically(file, "first, and longer");
  EXPECT_EQ(text(), "first, and longer");
  write_file_atomically(file, "second");
  EXPECT_EQ(text(), "second");
  EXPECT_EQ(files(), 1U);
}

TEST_F(WriteFileAtomicallyTest, WhereItCannotBeWrittenIsNamed) {
  write_file_atomically(file, "a file");
  for (const auto& [place, cause] : {std::pair{folder / "missing/result.json", "No such file"},
                                     {file / "result.json", "Not a directory"}}) {
    const auto error = testing::error_of([&, to = place] { write_file_atomically(to, "text"); });
    testing::expect_mentions(error, {place.string() + ": cannot be written: " + cause});
  }
}

TEST_F(WriteFileAtomicallyTest, AFailureLeavesNoNeighbourBehind) {
  std::filesystem::create_directory(file);
  const auto error = testing::error_of([&] { write_file_atomically(file, "text"); });
  testing::expect_mentions(error, {file.string() + ": cannot be written: "});
  EXPECT_TRUE(std::filesystem::is_directory(file));
  EXPECT_EQ(files(), 1U);
}

class CheckOutputTest : public ::testing::Test {
 protected:
  testing::TemporaryFolder folder;
};

TEST_F(CheckOutputTest, AFolderIsMadeAndOneThatCannotBeWrittenIsRefused) {
  const auto wanted = folder / "a/b";
  check_output_folder("--trace", wanted);
  EXPECT_TRUE(std::filesystem::is_empty(wanted));
  check_output_folder("--trace", "");
  folder.write("file", "x");
  for (const std::filesystem::path& bad :
       {folder / "file", folder / "file/b", std::filesystem::path("/proc/self")}) {
    testing::expect_mentions(
        testing::error_of([&] { check_output_folder("--trace", bad); }),
        {"--trace '" + bad.string() + "': must be a folder that can be written to: "});
  }
}

TEST_F(CheckOutputTest, AFileIsLeftAsItIsAndOneThatCannotBeWrittenIsRefused) {
  folder.write("file", "x");
  check_output_file("--out", folder / "file");
  EXPECT_EQ(testing::read_bytes(folder / "file"), "x\n");
  check_output_file("--out", folder / "new");
  check_output_file("--out", "/dev/null");
  check_output_file("--out", "");
  EXPECT_EQ(folder.entries().size(), 1U);
  for (const auto& bad : {folder / "absent/file", folder.path()}) {
    testing::expect_mentions(testing::error_of([&] { check_output_file("--out", bad); }),
                             {"--out: " + bad.string() + ": "});
  }
}

}  // namespace
}  // namespace tinyllama
