#include "model/checkpoint_config.hpp"

#include <gtest/gtest.h>

#include "model/file_testing.hpp"

namespace tinyllama {
namespace {

using Json = nlohmann::json;
using testing::expect_error;

const ModelDimensions kDimensions = {.vocab_size = 50,
                                     .hidden_dim = 48,
                                     .n_layers = 3,
                                     .n_heads = 6,
                                     .n_kv_heads = 2,
                                     .intermediate_dim = 64,
                                     .norm_eps = 1e-5,
                                     .rope_theta = 500000.0};

class CheckpointConfigTest : public ::testing::Test {
 protected:
  ModelConfig read(const std::string& text) const {
    testing::write_bytes(file_, text);
    return read_checkpoint_config(file_);
  }
  ModelConfig read(const Json& json) const { return read(json.dump()); }
  void expect_refused(const std::string& text, std::initializer_list<std::string> parts) const {
    expect_error([&] { read(text); }, {file_.string()});
    expect_error([&] { read(text); }, parts);
  }
  // What the good file with one other value is refused with.
  void expect_refused(const char* key, const Json& value,
                      std::initializer_list<std::string> parts) const {
    expect_refused(with(key, value).dump(), parts);
  }
  static Json good() {
    return Json::parse(checkpoint_config_text(ModelConfig(kDimensions), c10::ScalarType::Float));
  }
  static Json with(const char* key, const Json& value) {
    Json json = good();
    json[key] = value;
    return json;
  }
  static Json without(std::initializer_list<const char*> keys) {
    Json json = good();
    for (const char* key : keys) json.erase(key);
    return json;
  }

  testing::TemporaryFolder folder_;
  std::filesystem::path file_ = folder_.path() / "config.json";
};

TEST_F(CheckpointConfigTest, WhatIsWrittenIsRead) {
  EXPECT_EQ(read(good()).dimensions(), kDimensions);
  EXPECT_EQ(good()["dtype"], "float32");
  const auto text = checkpoint_config_text(ModelConfig(), c10::ScalarType::BFloat16);
  EXPECT_EQ(read(text), ModelConfig());
  EXPECT_EQ(Json::parse(text)["dtype"], "bfloat16");
}

TEST_F(CheckpointConfigTest, TakesLlamaConfigsDefaults) {
  const ModelConfig config =
      read(without({"num_key_value_heads", "rms_norm_eps", "rope_theta", "head_dim", "rope_scaling",
                    "hidden_act", "mlp_bias", "attention_bias", "tie_word_embeddings"}));
  EXPECT_EQ(config.n_kv_heads(), 6);
  EXPECT_EQ(config.norm_eps(), 1e-6);
  EXPECT_EQ(config.rope_theta(), 10000.0);
  EXPECT_EQ(read(with("num_key_value_heads", nullptr)).n_kv_heads(), 6);
  EXPECT_EQ(read(with("head_dim", nullptr)).head_dim(), 8);
}

TEST_F(CheckpointConfigTest, ReadsThetaWhereverItStands) {
  Json json = without({"rope_theta", "rope_scaling"});
  json["rope_parameters"] = {{"rope_theta", 1000}, {"rope_type", "default"}};
  EXPECT_EQ(read(json).rope_theta(), 1000.0);
  json["rope_theta"] = 1000.0;
  EXPECT_EQ(read(json).rope_theta(), 1000.0);
  json["rope_theta"] = 10000.0;
  expect_refused(json.dump(), {"rope_theta = 10000.0: must be rope_parameters.rope_theta = 1000"});
  EXPECT_EQ(read(with("rope_scaling", {{"rope_type", "default"}})).rope_theta(), 500000.0);
}

TEST_F(CheckpointConfigTest, RefusesOtherModels) {
  expect_refused("model_type", "mistral", {"model_type = \"mistral\": must be \"llama\""});
  expect_refused(without({"model_type"}).dump(), {"model_type is missing"});
  expect_refused("tie_word_embeddings", true,
                 {"tie_word_embeddings = true: must be false: the LM"});
  expect_refused("attention_bias", true, {"attention_bias = true: must be false"});
  expect_refused("mlp_bias", true, {"mlp_bias = true: must be false"});
  expect_refused("hidden_act", "gelu", {"hidden_act = \"gelu\": must be \"silu\""});
  expect_refused("attention_dropout", 0.1, {"attention_dropout = 0.1: must be 0"});
  expect_refused("partial_rotary_factor", 0.5, {"partial_rotary_factor = 0.5: must be 1"});
  expect_refused("quantization_config", {{"bits", 4}},
                 {"quantization_config = {\"bits\":4}: must be null"});
  expect_refused("head_dim", 16,
                 {"head_dim = 16: must be hidden_size / num_attention_heads = 48 / 6 = 8"});
}

TEST_F(CheckpointConfigTest, RefusesScaledRotaryEmbeddings) {
  expect_refused("rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}},
                 {"rope_scaling.", "only the plain rotary embedding"});
  expect_refused("rope_scaling", {{"type", "linear"}}, {"rope_scaling.type = \"linear\": only"});
  expect_refused("rope_scaling", "linear",
                 {"rope_scaling = \"linear\": must be an object or null"});
  expect_refused("rope_parameters", {{"rope_theta", 1e4}, {"rope_type", "yarn"}},
                 {"rope_parameters.rope_type = \"yarn\": only the plain"});
  expect_refused("rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}},
                 {"rope_parameters.full_attention = {\"rope_theta\":10000.0}: only the plain"});
}

TEST_F(CheckpointConfigTest, RefusesMissingAndIllTypedKeys) {
  expect_refused(without({"hidden_size"}).dump(), {"hidden_size is missing: must be an integer"});
  expect_refused("hidden_size", nullptr, {"hidden_size is missing"});
  expect_refused("hidden_size", "48", {"hidden_size = \"48\": must be an integer"});
  expect_refused("num_hidden_layers", 2.0, {"num_hidden_layers = 2.0: must be an integer"});
  expect_refused("vocab_size", uint64_t{1} << 63, {"vocab_size = 9223372036854775808: must be"});
  expect_refused("num_key_value_heads", true, {"num_key_value_heads = true: must be an integer"});
  expect_refused("rms_norm_eps", "1e-5", {"rms_norm_eps = \"1e-5\": must be a number"});
  expect_refused("rope_theta", {1}, {"rope_theta = [1]: must be a number"});
  expect_refused("head_dim", "8", {"head_dim = \"8\": must be an integer"});
  expect_refused("rope_theta", -1, {"rope_theta = -1: must be positive"});
  expect_refused("num_hidden_layers", 0, {"num_hidden_layers = 0: must be between 1 and"});
  expect_refused("num_attention_heads", 5,
                 {"num_attention_heads = 5: must divide hidden_size = 48"});
  expect_refused("num_key_value_heads", 4,
                 {"num_key_value_heads = 4: must divide num_attention_heads = 6"});
}

TEST_F(CheckpointConfigTest, RefusesWhatIsNotJson) {
  expect_refused("", {"is not valid JSON"});
  expect_refused("{\"model_type\": ", {"is not valid JSON"});
  expect_refused("[1]", {"must hold a JSON object"});
  expect_refused(std::string("{}\0", 3), {"is not valid JSON: zero byte at 2"});
  expect_refused("{\"a\xff\": 1}", {"is not valid JSON"});
  expect_refused("{\"a\": 1e999}", {"is not valid JSON"});
  expect_refused(R"({"a": {"b": 1, "b": 2}})", {"key 'b' occurs twice"});
  expect_refused(R"({"a": 1, "b": {"a": 1}, "a": 2})", {"key 'a' occurs twice"});
  expect_refused(std::string(1'000'000, '['), {"nests deeper than 32 levels"});
  expect_refused(std::string(1'000'001, ' '), {"has 1000001 bytes: must have at most 1000000"});
  expect_error([&] { read_checkpoint_config(folder_.path() / "none" / "config.json"); },
               {"none/config.json: cannot be read: No such file"});
}

}  // namespace
}  // namespace tinyllama
