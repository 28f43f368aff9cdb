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

}  // namespace
}  // namespace tinyllama
