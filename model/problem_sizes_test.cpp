#include "model/problem_sizes.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <stdexcept>

#include "model/cost.hpp"
#include "model/file_testing.hpp"

namespace tinyllama {
namespace {

const std::filesystem::path kProjectsFile =
    std::filesystem::path(TINY_LLAMA_SOURCE_DIR) / "fixtures/problem_sizes.json";

std::string error_for(const std::string& text) {
  const testing::TemporaryFolder folder;
  const auto file = folder / "problem_sizes_test.json";
  std::ofstream(file) << text;
  try {
    load_problem_sizes(file);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

void expect_mentions(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks: " << part;
}

std::string size_with(const std::string& key_and_value) {
  return R"({"mine": {"vocab_size": 10, "hidden_dim": 8, "n_layers": 1, "n_heads": 2, "n_kv_heads": 1,
             "intermediate_dim": 4, "batch": 1, )" +
         key_and_value + "}}";
}

TEST(ProblemSizes, HaveTheParameterCountsOfTheWorkshop) {
  const std::map<std::string, int64_t> expected = {{"tiny", 2'873'600},
                                                   {"small", 20'890'112},
                                                   {"medium", 167'224'320},
                                                   {"large", 1'300'203'520},
                                                   {"very_large", 10'691'284'992}};
  const auto sizes = load_problem_sizes(kProjectsFile);
  ASSERT_EQ(sizes.size(), expected.size());
  for (const auto& size : sizes)
    EXPECT_EQ(count_parameters(size.config), expected.at(size.name)) << size.name;
  EXPECT_EQ(sizes.front().name, "tiny");  // the file's order
}

TEST(ProblemSizes, AcceptsAWellFormedFile) {
  EXPECT_EQ(error_for(size_with(R"("seq": 4)")), "no error");
}

TEST(ProblemSizes, NamesWhatIsWrong) {
  EXPECT_THROW(load_problem_sizes("/nonexistent/sizes.json"), std::invalid_argument);
  expect_mentions(error_for("{\"tiny\": "), {"problem_sizes_test.json", "not valid JSON"});
  expect_mentions(error_for("[]"), {"must be an object"});
  expect_mentions(error_for("{}"), {"must be an object"});
  expect_mentions(error_for(R"({"tiny": 3})"), {"tiny = 3", "must be an object"});
  expect_mentions(error_for(size_with(R"("seq": "many")")),
                  {"mine.seq = \"many\"", "must be an integer"});
  expect_mentions(error_for(size_with(R"("seq": 1.5)")), {"mine.seq = 1.5", "must be an integer"});
  expect_mentions(error_for(size_with(R"("seq": 18446744073709551615)")),
                  {"mine.seq", "must be an integer"});
  expect_mentions(error_for(size_with(R"("seq": -2)")), {"mine", "seq = -2", "must be between"});
  expect_mentions(error_for(size_with(R"("seq": 4, "depth": 2)")), {"mine.depth", "unknown key"});
  expect_mentions(error_for(size_with(R"("n_layers": 2)")), {"mine", "seq is missing"});
}

}  // namespace
}  // namespace tinyllama
