// Weights in and out of folders, and config.json.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "core/digest.hpp"
#include "model/cost.hpp"
#include "model/proof_record.hpp"
#include "model/testing.hpp"
#include "model/weights.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama {
namespace {

using Json = nlohmann::json;
using c10::ScalarType;
using testing::expect_error;

const ModelConfig kConfig = testing::small_config();

// Every tensor filled with its place in the list plus a third.
NamedTensors parameters_of_type(ScalarType type) {
  NamedTensors all;
  for (const auto& [name, shape] : parameter_shapes(kConfig))
    all.emplace_back(name, at::full(shape, static_cast<double>(all.size()) + 1.0 / 3.0, type));
  return all;
}

void expect_same(const NamedTensors& actual, const NamedTensors& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(actual[i].first, expected[i].first);
    EXPECT_EQ(actual[i].second.scalar_type(), expected[i].second.scalar_type());
    EXPECT_TRUE(at::equal(actual[i].second, expected[i].second)) << expected[i].first;
  }
}

class WeightsTest : public ::testing::Test {
 protected:
  void put_config() const {
    testing::write_bytes(folder_ / "config.json",
                         checkpoint_config_text(kConfig, ScalarType::Float));
  }
  // A folder whose tensors do not fit: save_weights would not write it.
  void put(const NamedTensors& tensors) const {
    put_config();
    write_safetensors(folder_ / "model.safetensors", tensors);
  }
  // Two shards and their index, the third tensor on in the second.
  void put_shards(const std::string& last_file = "second.safetensors") const {
    put_config();
    const NamedTensors all = parameters_of_type(ScalarType::Float);
    write_safetensors(folder_ / "first.safetensors", {all.begin(), all.begin() + 2});
    write_safetensors(folder_ / "second.safetensors", {all.begin() + 2, all.end()});
    nlohmann::json map;
    for (size_t i = 0; i < all.size(); ++i)
      map[all[i].first] = i < 2 ? "first.safetensors" : "second.safetensors";
    map[all.back().first] = last_file;
    put_index({{"weight_map", map}});
  }
  void put_index(const nlohmann::json& index) const {
    testing::write_bytes(folder_ / "model.safetensors.index.json", index.dump());
  }
  void expect_refused(std::initializer_list<std::string> parts) const {
    expect_error([&] { Weights{folder_}; }, {folder_.string()});
    expect_error([&] { Weights{folder_}; }, parts);
  }

  testing::TemporaryFolder temporary_;
  std::filesystem::path folder_ = temporary_.path();
};

TEST_F(WeightsTest, WhatIsSavedIsLoaded) {
  for (const auto type :
       {ScalarType::Double, ScalarType::Float, ScalarType::Half, ScalarType::BFloat16}) {
    const NamedTensors saved = parameters_of_type(type);
    save_weights(folder_ / "new" / "folder", kConfig, saved);
    const Weights weights(folder_ / "new" / "folder");
    EXPECT_EQ(weights.config(), kConfig);
    expect_same(weights.read_all(), saved);
  }
}

TEST_F(WeightsTest, AreCopiedByNameAndRounded) {
  save_weights(folder_, kConfig, parameters_of_type(ScalarType::Float));
  const Weights weights(folder_);
  const at::Tensor q = at::zeros({12, 12}, ScalarType::Double).requires_grad_(true);
  const at::Tensor norm = at::zeros({12}, ScalarType::BFloat16).requires_grad_(true);
  const NamedTensors parameters = {{"model.layers.1.self_attn.q_proj.weight", q},
                                   {"model.norm.weight", norm}};
  weights.copy_to(parameters);
  EXPECT_EQ(q[0][0].item<double>(), static_cast<double>(11.0F + 1.0F / 3.0F));
  EXPECT_EQ(norm[0].item<double>(), 19.375);  // 8 digits of 19.333
  EXPECT_TRUE(q.is_leaf() && q.requires_grad() && norm.is_leaf());
  weights.copy_to({{"model.layers.1.self_attn.q_proj.weight", q}}, ScalarType::BFloat16);
  EXPECT_EQ(q[0][0].item<double>(), 11.3125);
}

TEST_F(WeightsTest, RefusesToCopyWhatDoesNotFit) {
  NamedTensors tensors = parameters_of_type(ScalarType::Float);
  tensors.front().second[0][0] = 70000;
  save_weights(folder_, kConfig, tensors);
  const Weights weights(folder_);
  const std::string file = (folder_ / "model.safetensors").string();
  const auto copy = [&](const char* name, at::IntArrayRef shape, ScalarType type,
                        std::optional<ScalarType> rounding) {
    weights.copy_to({{name, at::empty(shape, type)}}, rounding);
  };
  expect_error([&] { copy("embed_tokens", {1}, ScalarType::Float, {}); },
               {folder_.string(), "has no tensor 'embed_tokens'"});
  expect_error([&] { copy("model.norm.weight", {13}, ScalarType::Float, {}); },
               {file, "'model.norm.weight' has shape [12], but the parameter has [13]"});
  const std::string too_large =
      "'model.embed_tokens.weight' holds a value of magnitude 70000: too large for Half";
  expect_error(
      [&] {
        copy("model.embed_tokens.weight", {11, 12}, ScalarType::Half, {});
      },
      {file, too_large});
  expect_error(
      [&] {
        copy("model.embed_tokens.weight", {11, 12}, ScalarType::Double, ScalarType::Half);
      },
      {file, too_large});
  EXPECT_NO_THROW(copy("model.embed_tokens.weight", {11, 12}, ScalarType::BFloat16, {}));
}

TEST_F(WeightsTest, NamesWhatIsNoFiniteNumber) {
  NamedTensors tensors = parameters_of_type(ScalarType::Float);
  tensors.front().second[2][3] = std::numeric_limits<float>::quiet_NaN();
  tensors.front().second[4][5] = std::numeric_limits<float>::infinity();
  tensors.back().second[10][11] = -std::numeric_limits<float>::infinity();
  save_weights(folder_, kConfig, tensors);
  const Weights weights(folder_);
  const auto copy = [&](const std::string& name) {
    weights.copy_to({{name, at::empty({11, 12}, ScalarType::Half)}});
  };
  expect_error([&] { copy("model.embed_tokens.weight"); },
               {(folder_ / "model.safetensors").string(),
                "'model.embed_tokens.weight' holds nan at [2, 3] and 1 more such values: weights "
                "must be finite"});
  expect_error([&] { copy("lm_head.weight"); }, {"holds -inf at [10, 11]: weights must be finite"});
}

// As Hugging Face's downloads keep it: models--OWNER--NAME/snapshots/HASH.
TEST_F(WeightsTest, AreFoundInACacheOfDownloads) {
  const auto snapshots = folder_ / "snapshots";
  std::filesystem::create_directories(snapshots);
  expect_refused({"snapshots: holds 0 snapshots and refs/main names none of them: name one"});
  const NamedTensors tensors = parameters_of_type(ScalarType::Float);
  save_weights(snapshots / "aa", kConfig, tensors);
  EXPECT_EQ(Weights(folder_).folder(), snapshots / "aa");
  save_weights(snapshots / "bb", kConfig, tensors);
  expect_refused({"holds 2 snapshots", "name one, such as " + (snapshots / "aa").string()});
  std::filesystem::create_directories(folder_ / "refs");
  testing::write_bytes(folder_ / "refs/main", "bb\n");
  EXPECT_EQ(Weights(folder_).folder(), snapshots / "bb");
}

TEST_F(WeightsTest, ListsEveryTensorThatDoesNotFit) {
  NamedTensors tensors = parameters_of_type(ScalarType::Float);
  tensors[1].second = at::zeros({13});
  tensors[2].first = "model.layers.0.self_attn.query.weight";
  tensors[3].second = at::zeros({6, 12}, ScalarType::Long);
  put(tensors);
  const std::string file = (folder_ / "model.safetensors").string();
  expect_refused({file + " does not hold the model of its config.json: ",
                  "tensor 'model.layers.0.input_layernorm.weight' has shape [13]: must have [12]",
                  "tensor 'model.layers.0.self_attn.q_proj.weight' of shape [12, 12] is missing",
                  "tensor 'model.layers.0.self_attn.k_proj.weight' holds integers",
                  "tensor 'model.layers.0.self_attn.query.weight' is not part of the model"});
}

TEST_F(WeightsTest, KeepsWhatElseTheConfigSays) {
  save_weights(folder_, kConfig, parameters_of_type(ScalarType::Float),
               R"({"eos_token_id": [7, 9], "torch_dtype": "float64", "use_cache": false})");
  const auto json = nlohmann::json::parse(Weights(folder_).config_text());
  EXPECT_EQ(json.at("eos_token_id").dump(), "[7,9]");
  EXPECT_EQ(json.at("use_cache"), false);
  EXPECT_EQ(json.at("dtype"), "float32");
  EXPECT_FALSE(json.contains("torch_dtype"));
}

TEST_F(WeightsTest, ListsFiveProblemsAtMost) {
  put({parameters_of_type(ScalarType::Float).front(), {"other", at::zeros({1})}});
  expect_refused({"is missing", "; and 16 more"});
  put({{"other", at::zeros({1})}});
  expect_refused({"2 layers, but there are only 1 tensors"});
}

TEST_F(WeightsTest, IgnoresRotaryBuffersOfOlderVersions) {
  NamedTensors tensors = parameters_of_type(ScalarType::Float);
  tensors.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq", at::zeros({1}));
  put(tensors);
  EXPECT_EQ(Weights(folder_).read_all().size(), 21);
}

TEST_F(WeightsTest, NamesTheFileThatIsMissing) {
  expect_refused({"is empty: name a folder with config.json and model.safetensors (or model."});
  expect_error([&] { Weights(folder_ / "none"); },
               {"none: there is no such folder: name a folder"});
  put_config();
  expect_refused({"holds config.json: name a folder with config.json and model.safetensors"});
  std::filesystem::create_directory(folder_ / "model.safetensors");
  expect_refused({"model.safetensors: cannot be read: it is a folder"});
}

TEST_F(WeightsTest, NamesWhatIsThereInsteadAndTheNearestModel) {
  const NamedTensors tensors = parameters_of_type(ScalarType::Float);
  const auto snapshot = folder_ / "hub/models--a--b/snapshots/cc";
  save_weights(snapshot, kConfig, tensors);
  for (const char* name : {"a.txt", "b.txt", "c.txt", "pytorch_model.bin"})
    testing::write_bytes(folder_ / name, "");
  const std::string nearest = "; the nearest is ";
  expect_refused({"holds a.txt, b.txt, c.txt, hub/ and 1 more: name", nearest + snapshot.string()});
  expect_error([&] { Weights(snapshot / "config.json"); },
               {"cc/config.json: is a file: name a folder with", nearest + snapshot.string()});
  save_weights(folder_ / "gemma", kConfig, tensors);
  save_weights(folder_ / "llama_3", kConfig, tensors);
  expect_error([&] { Weights(folder_ / "llama3"); },
               {"llama3: there is no such folder: ", nearest + (folder_ / "llama_3").string()});
}

TEST_F(WeightsTest, ShardsAreRead) {
  put_shards();
  const NamedTensors expected = parameters_of_type(ScalarType::Float);
  expect_same(Weights(folder_).read_all(), expected);
}

TEST_F(WeightsTest, AnIndexThatDoesNotFitItsShardsIsRefused) {
  put_shards("first.safetensors");
  expect_refused({"model.safetensors.index.json does not fit its files",
                  "tensor 'lm_head.weight' is not in first.safetensors",
                  "tensor 'lm_head.weight' of second.safetensors is not listed"});
  put_shards("third.safetensors");
  expect_refused({"third.safetensors: cannot be read: No such file"});
  put_shards("../first.safetensors");
  expect_refused({"tensor 'lm_head.weight' is in \"../first.safetensors\": must be the name"});
  put_index({{"weight_map", {{"lm_head.weight", "a\x1b[31mb"}}}});
  expect_refused({"must be the name of a file in this folder"});
  put_index({{"weight_map", {{"lm_head.weight", 3}}}});
  expect_refused({"tensor 'lm_head.weight' is in 3: must be the name"});
  put_index({{"weight_map", {}}});
  expect_refused({"weight_map must be an object"});
  put_index(nlohmann::json::parse(R"({"weight_map": {}})"));
  expect_refused({"2 layers, but there are only 0 tensors"});
}

TEST_F(WeightsTest, OnlyTheModelsParametersAreSaved) {
  NamedTensors tensors = parameters_of_type(ScalarType::Float);
  tensors.pop_back();
  expect_error([&] { save_weights(folder_ / "new", kConfig, tensors); },
               {(folder_ / "new" / "model.safetensors").string(), "cannot be written",
                "tensor 'lm_head.weight' of shape [11, 12] is missing"});
  EXPECT_FALSE(std::filesystem::exists(folder_ / "new"));
  testing::write_bytes(folder_ / "file", "");
  expect_error(
      [&] { save_weights(folder_ / "file", kConfig, parameters_of_type(ScalarType::Float)); },
      {(folder_ / "file").string()});
}

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

TEST_F(CheckpointConfigTest, ThePaddingTokenIsAsTorchReadsIt) {
  EXPECT_EQ(read(with("pad_token_id", nullptr)).padding_token(), std::nullopt);
  EXPECT_EQ(read(with("pad_token_id", 0)).padding_token(), 0);
  const int64_t vocab = kDimensions.vocab_size;
  EXPECT_EQ(read(with("pad_token_id", -1)).padding_token(), vocab - 1);
  for (const int64_t beyond : {vocab, -vocab - 1})
    expect_refused(with("pad_token_id", beyond).dump(), {"pad_token_id", "must be from -"});
}

TEST_F(CheckpointConfigTest, SequencesBeyondTheModelsOwnAreToldOf) {
  const std::string text = checkpoint_config_text(kConfig, ScalarType::Float);
  EXPECT_EQ(longer_than_made_for(text, 2048), "");
  EXPECT_TRUE(longer_than_made_for(text, 2049)
                  .starts_with("sequences of 2049 tokens are longer than max_position_embeddings = "
                               "2048 of the model's config.json"));
  EXPECT_EQ(longer_than_made_for("{}", 2049), "");
  EXPECT_EQ(longer_than_made_for(R"({"max_position_embeddings": null})", 2049), "");
}

TEST_F(CheckpointConfigTest, IsReadInUtf16) {
  std::string little = "\xff\xfe";
  std::string big = "\xfe\xff";
  for (const char c : good().dump()) {
    little += {c, '\0'};
    big += {'\0', c};
  }
  EXPECT_EQ(read(little).dimensions(), kDimensions);
  EXPECT_EQ(read(big).dimensions(), kDimensions);
  EXPECT_EQ(read("\xef\xbb\xbf" + good().dump()).dimensions(), kDimensions);
  expect_refused(little + '{', {"is not valid JSON"});
}

TEST_F(CheckpointConfigTest, RefusesWhatIsNotThisModel) {
  const struct {
    const char* key;
    Json value;
    const char* message;
  } cases[] = {
      {"model_type", "mistral", "= \"mistral\": must be \"llama\""},
      {"tie_word_embeddings", true, "= true: must be false: the LM"},
      {"attention_bias", true, "= true: must be false"},
      {"mlp_bias", true, "= true: must be false"},
      {"hidden_act", "gelu", "= \"gelu\": must be \"silu\""},
      {"attention_dropout", 0.1, "= 0.1: must be 0"},
      {"partial_rotary_factor", 0.5, "= 0.5: must be 1"},
      {"quantization_config", {{"bits", 4}}, "= {\"bits\":4}: must be null"},
      {"head_dim", 16, "= 16: must be hidden_size / num_attention_heads = 48 / 6 = 8"},
      {"rope_scaling", {{"type", "llama3"}, {"factor", 8.0}}, "only the plain rotary embedding"},
      {"rope_scaling", {{"type", "linear"}}, ".type = \"linear\": only"},
      {"rope_scaling", "linear", "= \"linear\": must be an object or null"},
      {"rope_parameters", {{"rope_type", "yarn"}}, ".rope_type = \"yarn\": only the plain"},
      {"rope_parameters",
       {{"full", {{"rope_theta", 1e4}}}},
       ".full = {\"rope_theta\":10000.0}: only"},
      {"hidden_size", nullptr, " is missing: must be an integer"},
      {"hidden_size", "48", "= \"48\": must be an integer"},
      {"num_hidden_layers", 2.0, "= 2.0: must be an integer"},
      {"vocab_size", uint64_t{1} << 63, "= 9223372036854775808: must be"},
      {"num_key_value_heads", true, "= true: must be an integer"},
      {"rms_norm_eps", "1e-5", "= \"1e-5\": must be a number"},
      {"rope_theta", Json::array({1}), "= [1]: must be a number"},
      {"head_dim", "8", "= \"8\": must be an integer"},
      {"rope_theta", -1, "= -1: must be positive"},
      {"num_hidden_layers", 0, "= 0: must be between 1 and"},
      {"num_attention_heads", 5, "= 5: must divide hidden_size = 48"},
      {"num_key_value_heads", 4, "= 4: must divide num_attention_heads = 6"}};
  for (const auto& [key, value, message] : cases)
    expect_refused(with(key, value).dump(), {key, message});
  for (const char* key : {"model_type", "hidden_size"})
    expect_refused(without({key}).dump(), {std::string(key) + " is missing"});
}

TEST_F(CheckpointConfigTest, RefusesWhatIsNotJson) {
  for (const std::string text : {"", "{\"model_type\": ", "{\"a\xff\": 1}", "{\"a\": 1e999}"})
    expect_refused(text, {"is not valid JSON"});
  expect_refused("[1]", {"must hold a JSON object"});
  expect_refused(std::string("{}\0", 3), {"is not valid JSON: zero byte at 2"});
  expect_refused(R"({"a": {"b": 1, "b": 2}})", {"key 'b' occurs twice"});
  expect_refused(R"({"a": 1, "b": {"a": 1}, "a": 2})", {"key 'a' occurs twice"});
  expect_refused(std::string(1'000'000, '['), {"nests deeper than 32 levels"});
  expect_refused(std::string(1'000'001, ' '), {"has 1000001 bytes: must have at most 1000000"});
  expect_error([&] { read_checkpoint_config(folder_.path() / "none" / "config.json"); },
               {"none/config.json: cannot be read: No such file"});
}

std::string digest_of(const std::string& bytes) {
  Digest digest;
  digest.add(bytes.data(), bytes.size());
  return digest.text();
}

TEST(DigestTest, AnyBitAndTheLengthChangeIt) {
  const std::string bytes = "some bytes that are no multiple of eight";
  EXPECT_EQ(digest_of(bytes), digest_of(bytes));
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string other = bytes;
    other[at] = static_cast<char>(other[at] ^ 1);
    EXPECT_NE(digest_of(other), digest_of(bytes)) << at;
  }
  EXPECT_NE(digest_of(bytes + '\0'), digest_of(bytes));
}

}  // namespace
}  // namespace tinyllama
