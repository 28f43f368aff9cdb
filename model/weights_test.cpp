// Weights in and out of folders.
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
