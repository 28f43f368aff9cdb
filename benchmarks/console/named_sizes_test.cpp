// Names of sizes, and what --config and results say of one.
#include "benchmarks/console/named_sizes.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "benchmarks/console/size_options.hpp"
#include "model/testing.hpp"

namespace tinyllama::console {
namespace {

using ::tinyllama::testing::error_of;

SizeFiles fixtures() {
  return SizeFiles::in(TINY_LLAMA_SOURCE_DIR "/fixtures");
}

TEST(NamedSizesTest, AreProblemSizesAndPublishedModels) {
  const NamedSizes sizes(fixtures());
  EXPECT_EQ(sizes.find("--size", "tiny").config, ModelConfig());
  EXPECT_EQ(sizes.find("--size", "tiny").config_text, "");
  const ProblemSize model = sizes.find("--size", "tinyllama-1.1b");
  EXPECT_EQ(model.config.intermediate_dim(), 5632);
  EXPECT_EQ(model.batch, 1);
  EXPECT_EQ(model.seq, 2048);
  EXPECT_CONTAINS(model.config_text, "\"model_type\":\"llama\"");
}

TEST(NamedSizesTest, AProblemSizeComesBeforeAModelOfItsName) {
  NamedSizes sizes(fixtures());
  sizes.add({"llama-2-7b", ModelConfig(), 3, 5});
  EXPECT_EQ(sizes.find("--size", "llama-2-7b").batch, 3);
}

TEST(NamedSizesTest, AnUnknownNameIsToldWhatThereIsAndTheNearest) {
  const NamedSizes sizes(fixtures());
  const auto error = [&](const std::string& name) {
    return error_of<std::invalid_argument>([&] { sizes.find("--sizes", name); });
  };
  for (const auto& [typed, meant] : {std::pair{"Llama-2-7B", "llama-2-7b"},
                                     {"llama3.1-8b", "llama-3.1-8b"},
                                     {"mistral7b", "mistral-7b"},
                                     {"medum", "medium"}}) {
    EXPECT_CONTAINS(error(typed),
                    "--sizes '" + std::string(typed) + "': must be one of tiny, small");
    EXPECT_CONTAINS(error(typed), "or of the published models llama-2-7b, llama-2-13b");
    EXPECT_TRUE(error(typed).ends_with("; the nearest is " + std::string(meant))) << error(typed);
  }
  EXPECT_FALSE(testing::contains(error("gpt-2"), "nearest"));
  EXPECT_CONTAINS(error("custom"), "; custom needs --hidden-dim or another of its options, or");
  EXPECT_FALSE(testing::contains(error(std::string(100'000, 'l')), "nearest"));
}

TEST(FeaturesTest, OnlyWhatASizeHasIsNamed) {
  EXPECT_EQ(features_of(ModelConfig()).dump(), "{}");
  const ModelConfig all({.own_head_dim = 48,
                         .tied_embeddings = true,
                         .qkv_bias = true,
                         .o_bias = true,
                         .mlp_bias = true,
                         .qk_norm = true,
                         .sliding_window = 9,
                         .rope_scaling = {.type = RopeScaling::Type::llama3, .factor = 8},
                         .whole_vocab = 4000,
                         .only_layers = true});
  EXPECT_EQ(features_of(all).dump(),
            R"({"head_dim":48,"tied_embeddings":true,"qkv_bias":true,"o_bias":true,)"
            R"("mlp_bias":true,"qk_norm":true,"sliding_window":9,"rope_scaling":)"
            R"({"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,)"
            R"("original_max_position_embeddings":8192},"whole_vocab":4000,"only_layers":true})");
  const ModelConfig linear({.rope_scaling = {.type = RopeScaling::Type::linear, .factor = 4}});
  EXPECT_EQ(features_of(linear).dump(), R"({"rope_scaling":{"rope_type":"linear","factor":4.0}})");
}

class ConfigOptionTest : public ::testing::Test {
 protected:
  static std::string config(const std::string& type = "llama") {
    return R"({"model_type": ")" + type +
           R"(", "vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 2,
               "num_attention_heads": 2, "intermediate_size": 12})";
  }
  std::string refusal(const std::string& place) const {
    return error_of<std::invalid_argument>([&] { open_config_option(folder_ / place); });
  }
  testing::TemporaryFolder folder_;
};

TEST_F(ConfigOptionTest, TakesAFileAFolderAndAFolderOfTheCache) {
  testing::write_bytes(folder_ / "any.name", config());
  std::filesystem::create_directories(folder_ / "models--a--b/snapshots/abc");
  testing::write_bytes(folder_ / "models--a--b/snapshots/abc/config.json", config());
  for (const std::string place : {"any.name", "models--a--b/snapshots/abc", "models--a--b"}) {
    const ConfigFile file = open_config_option(folder_ / place);
    EXPECT_EQ(file.config.n_layers(), 2) << place;
    EXPECT_EQ(file.text, config());
  }
}

TEST_F(ConfigOptionTest, NamesFileKeyValueAndRule) {
  EXPECT_CONTAINS(refusal("none.json"), "--config: " + (folder_ / "none.json").string() + ": ");
  EXPECT_EQ(error_of<std::invalid_argument>([&] { open_config_option(""); }),
            "--config '': needs the name of a file or folder");
  std::filesystem::create_directories(folder_ / "empty");
  EXPECT_CONTAINS(refusal("empty"), "empty: is empty: name a config.json, or a folder with one");
  testing::write_bytes(folder_ / "empty/model.safetensors", "");
  EXPECT_CONTAINS(refusal("empty"), "holds model.safetensors: name a config.json");
  testing::write_bytes(folder_ / "cut.json", config().substr(0, 40));
  EXPECT_CONTAINS(refusal("cut.json"), "cut.json: is not valid JSON");
  testing::write_bytes(folder_ / "other.json", config("mamba"));
  EXPECT_CONTAINS(refusal("other.json"), "other.json: model_type = \"mamba\": ");
}

}  // namespace
}  // namespace tinyllama::console
