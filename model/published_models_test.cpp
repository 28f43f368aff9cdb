// The file of published models: what it states, and what is refused.
#include "model/published_models.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

#include "model/cost.hpp"
#include "model/testing.hpp"

namespace tinyllama {
namespace {

const std::filesystem::path kModels = TINY_LLAMA_SOURCE_DIR "/fixtures/models.json";

std::string file_of(const std::string& entries) {
  return R"({"description": "of a test", "models": {)" + entries + "}}";
}

std::string entry(const std::string& name, const std::string& keys) {
  return '"' + name + R"(": {"source": "a page", "checked": ["a copy"], "parameters": 1, "batch": 1,
      "seq": 8, "config": {}, )" +
         keys + "}";
}

// The last of a key given twice would win; here the entry has each once.
std::string entry_with(const std::string& key, const std::string& value) {
  std::string text = R"("mine": {)";
  for (const auto& [name, right] :
       std::vector<std::pair<std::string, std::string>>{{"source", "\"a page\""},
                                                        {"checked", "[\"a copy\"]"},
                                                        {"parameters", "1"},
                                                        {"batch", "1"},
                                                        {"seq", "8"},
                                                        {"config", "{}"}}) {
    text += (text.ends_with('{') ? "\"" : ", \"") + name + "\": " + (name == key ? value : right);
  }
  return text + "}";
}

std::string error_for(const std::string& text) {
  const testing::TemporaryFolder folder;
  testing::write_bytes(folder / "models.json", text);
  return testing::error_of([&] { PublishedModels(folder / "models.json"); });
}

TEST(PublishedModels, HaveTheDimensionsOfTheirConfigAndTheShapeOfTheFile) {
  const PublishedModels models(kModels);
  EXPECT_GE(models.names().size(), 30U);
  EXPECT_EQ(models.names().front(), "llama-2-7b");  // the file's order
  EXPECT_FALSE(models.contains("llama-2-8b"));
  const PublishedModel model = models.read("llama-2-70b");
  EXPECT_EQ(model.size.name, "llama-2-70b");
  EXPECT_EQ(model.size.batch, 1);
  EXPECT_EQ(model.size.seq, 2048);
  EXPECT_EQ(model.size.config.hidden_dim(), 8192);
  EXPECT_EQ(model.size.config.n_kv_heads(), 8);
  EXPECT_EQ(count_parameters(model.size.config), model.parameters);
  EXPECT_CONTAINS(model.source, "https://huggingface.co/meta-llama/Llama-2-70b-hf/");
  EXPECT_CONTAINS(model.size.config_text, "\"max_position_embeddings\":4096");
  EXPECT_THROW(models.read("llama-2-8b"), std::out_of_range);
}

TEST(PublishedModels, EachHasThePublishedNumberOfParameters) {
  const PublishedModels models(kModels);
  for (const std::string& name : models.names()) {
    const PublishedModel model = models.read(name);
    EXPECT_EQ(count_parameters(model.size.config), model.parameters) << name;
  }
}

TEST(PublishedModels, NamesWhatIsWrong) {
  EXPECT_EQ(error_for(file_of(entry_with("", ""))), "no error");
  EXPECT_THROW(PublishedModels("/nonexistent/models.json"), std::invalid_argument);
  const struct {
    std::string text;
    std::string part;
  } cases[] = {
      {"{\"models\": ", "models.json: is not valid JSON"},
      {"{}", "models.json: description: is missing"},
      {R"({"description": "", "models": []})", "models = []: must be an object"},
      {R"({"description": "", "models": {}, "more": 1})", "more: unknown key"},
      {file_of(R"("mine": 3)"), "mine: must be an object"},
      {file_of(R"("mine": {})"), "mine.source: is missing"},
      {file_of(entry("mine", R"("depth": 2)")), "mine.depth: unknown key"},
      {file_of(entry("Mine", R"("more": 1)")), "name 'Mine': must be of a-z"},
      {file_of(entry("a/b", R"("more": 1)")), "name 'a/b': must be of a-z"},
      {file_of(entry("custom", R"("more": 1)")), "and not custom"},
      {file_of(entry_with("source", "\"\"")), "mine.source = \"\": must be a text"},
      {file_of(entry_with("checked", "[]")), "mine.checked = []: must be a list of texts"},
      {file_of(entry_with("parameters", "1.5")), "mine.parameters = 1.5: must be a positive"},
      {file_of(entry_with("parameters", "0")), "mine.parameters = 0: must be a positive"},
      {file_of(entry_with("seq", "18446744073709551615")), "mine.seq = 18446744073709551615: must"},
      {file_of(entry_with("config", "[]")), "mine.config = []: must be an object"}};
  for (const auto& [text, part] : cases) testing::expect_mentions(error_for(text), {part});
}

TEST(PublishedModels, AWrongConfigIsNoticedWhenTheModelIsAskedFor) {
  const testing::TemporaryFolder folder;
  testing::write_bytes(folder / "models.json",
                       file_of(entry_with("config", R"({"model_type": "mamba"})")));
  const PublishedModels models(folder / "models.json");
  testing::expect_mentions(testing::error_of([&] { models.read("mine"); }),
                           {"models.json: mine: model_type = \"mamba\""});
}

}  // namespace
}  // namespace tinyllama
