#include "benchmarks/harness/result_document.hpp"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace tinyllama::harness
