#include "benchmarks/harness/result_document.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <stdexcept>

#include "benchmarks/harness/testing.hpp"

namespace tinyllama::harness {
namespace {

TEST(ResultDocumentTest, TextIsGoogleBenchmarksJsonInTheOrderOfTheResults) {
  ResultDocument document;
  document.context = {{"schema_version", kSchemaVersion}, {"date", "today"}};
  document.results = {
      {"b", Json::array({{{"name", "b"}, {"run", 0}}, {{"name", "b"}, {"run", 1}}})},
      {"none", Json::array()},
      {"a", Json::array({{{"name", "a"}}})}};
  const std::string text = document.text();
  const Json parsed = Json::parse(text);
  EXPECT_TRUE(text.ends_with("}\n"));
  EXPECT_EQ(parsed.begin().key(), "context");
  EXPECT_EQ(parsed.at("context"), document.context);
  const Json& rows = parsed.at("benchmarks");
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0], (Json{{"name", "b"}, {"run", 0}}));
  EXPECT_EQ(rows[1], (Json{{"name", "b"}, {"run", 1}}));
  EXPECT_EQ(rows[2], (Json{{"name", "a"}}));
}

TEST(ResultDocumentTest, ARunWithoutResultsIsAnEmptyList) {
  EXPECT_EQ(Json::parse(ResultDocument{}.text()).at("benchmarks"), Json::array());
}

class WriteFileAtomicallyTest : public ::testing::Test {
 protected:
  std::string text() const {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder.path()),
                                             std::filesystem::directory_iterator()));
  }
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

TEST_F(WriteFileAtomicallyTest, AFolderThatIsMissingIsNamed) {
  const auto missing = folder / "missing/result.json";
  const auto error =
      testing::error_of<std::runtime_error>([&] { write_file_atomically(missing, "text"); });
  EXPECT_EQ(error, missing.string() + ": cannot be written: No such file or directory");
}

TEST_F(WriteFileAtomicallyTest, AFileInTheWayOfTheFolderIsNamed) {
  write_file_atomically(file, "a file");
  const auto below = file / "result.json";
  const auto error =
      testing::error_of<std::runtime_error>([&] { write_file_atomically(below, "text"); });
  EXPECT_EQ(error, below.string() + ": cannot be written: Not a directory");
}

TEST_F(WriteFileAtomicallyTest, AFailureLeavesNoNeighbourBehind) {
  std::filesystem::create_directory(file);
  const auto error =
      testing::error_of<std::runtime_error>([&] { write_file_atomically(file, "text"); });
  EXPECT_CONTAINS(error, file.string() + ": cannot be written: ");
  EXPECT_TRUE(std::filesystem::is_directory(file));
  EXPECT_EQ(files(), 1U);
}

}  // namespace
}  // namespace tinyllama::harness
