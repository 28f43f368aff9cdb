// Sizes of a model and the file of named sizes.
#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

#include "model/config.hpp"
#include "model/cost.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama {
namespace {

std::string error_of(const ModelDimensions& dimensions) {
  return testing::error_of([&] { ModelConfig{dimensions}; });
}

TEST(ModelConfig, DefaultsAreTheWorkshopsTiny) {
  const ModelConfig config;
  EXPECT_EQ(config.head_dim(), 32);
  EXPECT_EQ(config.kv_dim(), 128);
  EXPECT_EQ(config.n_groups(), 2);
}

TEST(ModelConfig, NamesFieldValueAndRule) {
  EXPECT_EQ(error_of({.hidden_dim = 250}),
            "n_heads = 8: must divide hidden_dim = 250, but 250 % 8 = 2");
  EXPECT_EQ(error_of({.n_kv_heads = 3}), "n_kv_heads = 3: must divide n_heads = 8, but 8 % 3 = 2");
  EXPECT_EQ(error_of({.vocab_size = 0}), "vocab_size = 0: must be between 1 and 1048576");
  EXPECT_EQ(error_of({.n_layers = -4}), "n_layers = -4: must be between 1 and 1048576");
  EXPECT_EQ(error_of({.intermediate_dim = int64_t{1} << 40}),
            "intermediate_dim = 1099511627776: must be between 1 and 1048576");
  EXPECT_NE(error_of({.hidden_dim = 24, .n_heads = 8}).find("head_dim must be even"),
            std::string::npos);
  EXPECT_NE(error_of({.norm_eps = 0}).find("norm_eps = 0: must be positive"), std::string::npos);
}

TEST(ModelConfig, ChecksBatchAndSeq) {
  EXPECT_NO_THROW(check_batch_and_seq(1, 1));
  EXPECT_THROW(check_batch_and_seq(0, 1), std::invalid_argument);
  EXPECT_THROW(check_batch_and_seq(1, -1), std::invalid_argument);
}

std::string error_for(const std::string& text) {
  const testing::TemporaryFolder folder;
  testing::write_bytes(folder / "sizes.json", text);
  return testing::error_of([&] { load_problem_sizes(folder / "sizes.json"); });
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
  const auto sizes = load_problem_sizes(TINY_LLAMA_SOURCE_DIR "/fixtures/problem_sizes.json");
  ASSERT_EQ(sizes.size(), expected.size());
  for (const auto& size : sizes)
    EXPECT_EQ(count_parameters(size.config), expected.at(size.name)) << size.name;
  EXPECT_EQ(sizes.front().name, "tiny");  // the file's order
}

TEST(ProblemSizes, NamesWhatIsWrong) {
  EXPECT_EQ(error_for(size_with(R"("seq": 4)")), "no error");
  EXPECT_THROW(load_problem_sizes("/nonexistent/sizes.json"), std::invalid_argument);
  const struct {
    std::string text;
    std::string part;
  } cases[] = {{"{\"tiny\": ", "sizes.json: is not valid JSON"},
               {"[]", "must hold a JSON object"},
               {"{}", "must be an object"},
               {R"({"tiny": 3})", "tiny = 3: must be an object"},
               {R"({"tiny": 1e999})", "is not valid JSON"},
               {R"({"tiny": {}, "tiny": {}})", "key 'tiny' occurs twice"},
               {R"({"tiny": )" + std::string(100'000, '[') + std::string(100'000, ']') + "}",
                "nests deeper than 2 levels"},
               {size_with(R"("seq": "many")"), "mine.seq = \"many\": must be an integer"},
               {size_with(R"("seq": 1.5)"), "mine.seq = 1.5: must be an integer"},
               {size_with(R"("seq": 18446744073709551615)"),
                "mine.seq = 18446744073709551615: must be an integer"},
               {size_with(R"("seq": -2)"), "mine: seq = -2: must be between"},
               {size_with(R"("seq": 4, "depth": 2)"), "mine.depth: unknown key"},
               {R"({"mine": {"n_layers": 2}})", "mine: key batch is missing"}};
  for (const auto& [text, part] : cases) testing::expect_mentions(error_for(text), {part});
}

}  // namespace
}  // namespace tinyllama
