// Checkpoints as they are published: names, types and tensors that differ from what save_weights()
// writes, and how much of them is read.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "model/checkpoint_testing.hpp"
#include "model/testing.hpp"
#include "model/weights.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama {
namespace {

using c10::ScalarType;
using testing::CheckpointTest;
using testing::counted_parameters;
using testing::expect_error;
using testing::named;

const ModelConfig kConfig = testing::small_config();
const std::string kTable = "model.embed_tokens.weight";
const std::string kHead = "lm_head.weight";

// What this process has read so far, however it lay on a disk or in memory.
int64_t bytes_read() {
  std::ifstream in("/proc/self/io");
  std::string key;
  int64_t value = 0;
  while (in >> key >> value)
    if (key == "rchar:") return value;
  return -1;
}

// --- names and types ---

TEST_F(CheckpointTest, AnyMixtureOfTypesIsReadAsItIs) {
  constexpr ScalarType kTypes[] = {ScalarType::BFloat16, ScalarType::Half, ScalarType::Float,
                                   ScalarType::Double};
  NamedTensors tensors = counted_parameters(kConfig, ScalarType::Double);
  for (size_t i = 0; i < tensors.size(); ++i)
    tensors[i].second = tensors[i].second.to(kTypes[i % std::size(kTypes)]);
  put(kConfig, tensors);
  const Weights weights(folder_);
  EXPECT_EQ(weights.not_read(), "");
  for (const ScalarType type : kTypes) {
    for (const auto& [name, stored] : tensors) {
      const at::Tensor parameter = at::empty(stored.sizes(), type);
      weights.copy_to({{name, parameter}});
      EXPECT_TRUE(at::equal(parameter, stored.to(type))) << name << " as " << type;
      EXPECT_EQ(weights.read(name).scalar_type(), stored.scalar_type());
    }
  }
}

TEST_F(CheckpointTest, NamesWithoutModelAreThoseOfABareLlamaModel) {
  const NamedTensors tensors = counted_parameters(kConfig);
  NamedTensors bare;
  for (const auto& [name, tensor] : tensors)
    bare.emplace_back(name.starts_with("model.") ? name.substr(6) : name, tensor);
  put(kConfig, bare);
  const Weights weights(folder_);
  for (const auto& [name, tensor] : weights.read_all())
    EXPECT_TRUE(at::equal(tensor, named(tensors, name))) << name;
  EXPECT_EQ(weights.read_all().size(), tensors.size());
  const std::string fingerprint = weights.fingerprint();
  put(kConfig, tensors);
  EXPECT_EQ(Weights(folder_).fingerprint(), fingerprint);

  bare[1].second = at::zeros({13});
  bare.emplace_back("model.norm.weight", named(tensors, "model.norm.weight"));
  bare.emplace_back("model.lm_head.weight", named(tensors, kHead));
  put(kConfig, bare);
  expect_refused({"tensor 'layers.0.input_layernorm.weight' has shape [13]: must have [12]",
                  "'norm.weight' is stored as 'model.norm.weight', too",
                  "tensor 'model.lm_head.weight' is not part of the model"});
}

TEST_F(CheckpointTest, RotaryBuffersAreNotReadAndNamedOnce) {
  NamedTensors tensors = counted_parameters(kConfig);
  const at::Tensor buffer = at::full({1}, std::numeric_limits<float>::quiet_NaN());
  const auto expect = [&](const std::string& text) {
    put(kConfig, tensors);
    const Weights weights(folder_);
    EXPECT_EQ(weights.not_read(), text);
    EXPECT_EQ(weights.read_all().size(), 21);
  };
  expect("");
  tensors.emplace_back("model.rotary_emb.inv_freq", buffer);
  expect(folder_.string() +
         ": a tensor that the model does not have is not read: "
         "'model.rotary_emb.inv_freq'");
  for (const char* layer : {"0", "1"})
    tensors.emplace_back(fmt::format("model.layers.{}.self_attn.rotary_emb.inv_freq", layer),
                         buffer);
  tensors.emplace_back("rotary_emb.inv_freq", buffer);
  expect(folder_.string() +
         ": 4 tensors that the model does not have are not read: "
         "'model.layers.0.self_attn.rotary_emb.inv_freq' is the first");
  tensors.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq.scale", buffer);
  tensors.emplace_back("model.layers.0.self_attn.q_proj.weight_scale", buffer);
  tensors.emplace_back("not_rotary_emb.inv_freq", buffer);
  put(kConfig, tensors);
  expect_refused({"inv_freq.scale' is not part", "q_proj.weight_scale' is not part",
                  "'not_rotary_emb.inv_freq' is not part"});
}

// --- how much is read ---

// Two pieces of 64 MiB, and the beginning of a third.
constexpr int64_t kLargeWidth = 384;
ModelConfig with_large_table() {
  ModelDimensions dimensions = kConfig.dimensions();
  dimensions.hidden_dim = kLargeWidth;
  dimensions.vocab_size = (int64_t{33} << 20) / kLargeWidth;
  return ModelConfig(dimensions);
}

TEST_F(CheckpointTest, LargeTensorsAreReadPieceByPiece) {
  const ModelConfig config = with_large_table();
  const int64_t values = config.vocab_size() * kLargeWidth;
  const int64_t first_of_second = (int64_t{64} << 20) / (4 * kLargeWidth) * kLargeWidth;
  put_sparse(config, {{kTable, 0, 1.5F},
                      {kTable, first_of_second - 1, 2.5F},
                      {kTable, first_of_second, 3.5F},
                      {kTable, values - 1, 4.5F}});
  const at::Tensor table = at::full({config.vocab_size(), kLargeWidth}, 9, ScalarType::BFloat16);
  const Weights weights(folder_);
  weights.copy_to({{kTable, table}});
  const at::Tensor flat = table.flatten();
  EXPECT_EQ(flat[0].item<double>(), 1.5);
  EXPECT_EQ(flat[first_of_second - 1].item<double>(), 2.5);
  EXPECT_EQ(flat[first_of_second].item<double>(), 3.5);
  EXPECT_EQ(flat[values - 1].item<double>(), 4.5);
  EXPECT_EQ(flat.sum(ScalarType::Double).item<double>(), 12);
}

TEST_F(CheckpointTest, WhatIsNotFiniteIsCountedOverAllPieces) {
  const ModelConfig config = with_large_table();
  const int64_t last_row = config.vocab_size() - 1;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  put_sparse(config, {{kTable, last_row * kLargeWidth + 5, nan},
                      {kTable, last_row * kLargeWidth + 7, -nan}});
  const at::Tensor table = at::empty({config.vocab_size(), kLargeWidth});
  const Weights late(folder_);
  const std::string place = fmt::format("[{}, 5] and 1 more such values", last_row);
  expect_error(
      [&] {
        late.copy_to({{kTable, table}});
      },
      {file_.string(), "'" + kTable + "' holds ", "nan at " + place});
  EXPECT_CONTAINS(late.fault(), "nan at " + place);
  put_sparse(config, {{kTable, kLargeWidth + 1, -INFINITY}, {kTable, last_row * kLargeWidth, nan}});
  expect_error(
      [&] {
        Weights(folder_).copy_to({{kTable, table}});
      },
      {"holds -inf at [1, 1] and 1 more such values"});
  put_sparse(config,
             {{kTable, kLargeWidth + 1, 66000.0F}, {kTable, last_row * kLargeWidth, -70000.0F}});
  expect_error(
      [&] {
        Weights(folder_).copy_to({{kTable, table}}, ScalarType::Half);
      },
      {"holds a value of magnitude 70000: too large for Half"});
  EXPECT_NO_THROW(Weights(folder_).copy_to({{kTable, table}}, ScalarType::BFloat16));
}

// Wherever it lies, in vectors of any length and their remainders.
TEST_F(CheckpointTest, NoNaNIsOverlooked) {
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  for (const ScalarType type :
       {ScalarType::BFloat16, ScalarType::Half, ScalarType::Float, ScalarType::Double}) {
    put(kConfig, counted_parameters(kConfig, type));
    const Weights weights(folder_);
    const at::Tensor parameter = at::empty({7, 12}, type);
    const std::string bytes = testing::read_bytes(file_);
    const auto place = static_cast<int64_t>(bytes.find('{')) +
                       parse_safetensors_header_length(bytes, std::ssize(bytes), "") +
                       SafetensorsFile(file_).tensor(name).begin;
    std::fstream file(file_, std::ios::in | std::ios::out | std::ios::binary);
    const auto size = static_cast<int64_t>(c10::elementSize(type));
    const auto write = [&](const at::Tensor& values, int64_t at) {
      file.seekp(place + at * size);
      file.write(static_cast<const char*>(values.const_data_ptr()),
                 static_cast<std::streamsize>(values.nbytes()));
      file.flush();
    };
    const at::Tensor right = weights.read(name);
    for (const double wrong : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
      for (int64_t at = 0; at < 7 * 12; ++at) {
        write(at::full({}, wrong, type), at);
        expect_error(
            [&] {
              weights.copy_to({{name, parameter}});
            },
            {fmt::format("at [{}, {}]: weights must be finite", at / 12, at % 12)});
        write(right, 0);
      }
    }
    EXPECT_NO_THROW(weights.copy_to({{name, parameter}}));
  }
}

// Opening a folder reads no value, nor does what is not measured cost anything: 100 GB lie here.
TEST_F(CheckpointTest, AFolderOfAnySizeIsOpenedFromItsHeaders) {
  ModelDimensions dimensions = kConfig.dimensions();
  dimensions.hidden_dim = 12 * 512;
  dimensions.intermediate_dim = int64_t{1} << 20;
  const ModelConfig config(dimensions);
  const SafetensorsHead head = put_sparse(config);
  ASSERT_GT(head.tensors.back().end, int64_t{100'000'000'000});
  if (bytes_read() < 0) GTEST_SKIP() << "the system does not say what was read";

  const auto start = std::chrono::steady_clock::now();
  const int64_t before = bytes_read();
  const Weights weights(folder_);
  const int64_t opened = bytes_read();
  EXPECT_LT(opened - before, 100'000);

  const std::string name = "model.layers.0.self_attn.k_proj.weight";
  const at::Tensor k = at::full({config.kv_dim(), config.hidden_dim()}, 9, ScalarType::BFloat16);
  weights.copy_to({{name, k}});
  const int64_t copied = bytes_read();
  EXPECT_LT(copied - opened, k.numel() * 4 + 10'000);
  EXPECT_EQ(k.abs().max().item<double>(), 0);

  // of a rank's share: its rows alone
  ModelDimensions part = dimensions;
  part.own_head_dim = config.head_dim();
  part.n_heads = part.n_kv_heads = 1;
  const ModelConfig share(part);
  weights.copy_to({{name, k.narrow(0, 0, config.head_dim())}}, std::nullopt, &share);
  EXPECT_LT(bytes_read() - copied, config.head_dim() * config.hidden_dim() * 4 + 10'000);

  EXPECT_EQ(weights.fingerprint_sample(),
            "16 pieces of 4096 bytes, evenly spread over each tensor");
  const int64_t sampled = bytes_read();
  weights.fingerprint();
  EXPECT_LT(bytes_read() - sampled, int64_t{21} * 16 * 4096 + 10'000);

  auto json = nlohmann::json::parse(checkpoint_config_text(config, ScalarType::Float));
  json["hidden_act"] = "gelu";
  testing::write_bytes(folder_ / "config.json", json.dump());
  expect_refused({"config.json: hidden_act = \"gelu\": must be"});
  put_config(config);
  std::filesystem::resize_file(file_, std::filesystem::file_size(file_) - 1);
  expect_refused({"model.safetensors: tensor '", "it was cut short"});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_LT(seconds.count(), 1);
}

TEST_F(CheckpointTest, AFingerprintOfASampleDiffersWithTypesShapesAndValues) {
  ModelDimensions dimensions = kConfig.dimensions();
  dimensions.hidden_dim = kLargeWidth;
  dimensions.vocab_size = 1'000'000;  // two tables of 1.5 GB
  const ModelConfig config(dimensions);
  const auto fingerprint = [&](const std::vector<std::tuple<std::string, int64_t, float>>& values,
                               const ModelConfig& of) {
    put_sparse(of, values);
    return Weights(folder_).fingerprint();
  };
  const std::string before = fingerprint({}, config);
  EXPECT_EQ(fingerprint({}, config), before);
  const int64_t last = dimensions.vocab_size * kLargeWidth - 1;
  EXPECT_NE(fingerprint({{kTable, 0, 1}}, config), before);
  EXPECT_NE(fingerprint({{kTable, last, 1}}, config), before);
  EXPECT_NE(fingerprint({{kHead, last, 1}}, config), before);
  EXPECT_NE(fingerprint({{kHead, last / 15 * 7 + 500, 1}}, config), before);
  EXPECT_NE(fingerprint({{"model.norm.weight", 5, 1}}, config), before) << "small ones are whole";
  dimensions.vocab_size -= 1;
  EXPECT_NE(fingerprint({}, ModelConfig(dimensions)), before);
  // the price of it, which the context of a result states
  EXPECT_EQ(fingerprint({{kHead, last / 2 + 9'000'000, 1}}, config), before);
}

TEST_F(CheckpointTest, AFingerprintTellsTypesOfTheSameBytes) {
  const auto fingerprint = [&](ScalarType type) {
    NamedTensors zeros;
    for (const auto& [name, shape] : parameter_shapes(kConfig))
      zeros.emplace_back(name, at::zeros(shape, type));
    put(kConfig, zeros);
    return Weights(folder_).fingerprint();
  };
  EXPECT_NE(fingerprint(ScalarType::Half), fingerprint(ScalarType::BFloat16));
}

// --- what is no checkpoint: file and tensor are named ---

TEST_F(CheckpointTest, AFileThatBecomesShorterIsAnErrorThatNamesItAndNoSignal) {
  put(kConfig, counted_parameters(kConfig));
  const Weights weights(folder_);
  std::filesystem::resize_file(file_, std::filesystem::file_size(file_) / 2);
  expect_error([&] { weights.copy_to(counted_parameters(kConfig)); },
               {file_.string(), "tensor '", "but had ", "when it was opened"});
  EXPECT_CONTAINS(weights.fault(), file_.string());
}

TEST_F(CheckpointTest, ShardsAreNamed) {
  NamedTensors tensors = counted_parameters(kConfig);
  tensors[3].second = at::zeros({7, 12});
  tensors.emplace_back("model.extra", at::zeros({1}));
  put_config(kConfig);
  write_safetensors(folder_ / "a.safetensors", {tensors.begin(), tensors.begin() + 3});
  write_safetensors(folder_ / "b.safetensors", {tensors.begin() + 3, tensors.end()});
  nlohmann::json map;
  for (size_t i = 0; i < tensors.size(); ++i)
    map[tensors[i].first] = i < 3 ? "a.safetensors" : "b.safetensors";
  const nlohmann::json index = {{"weight_map", map}};
  testing::write_bytes(folder_ / "model.safetensors.index.json", index.dump());
  expect_refused({"model.safetensors.index.json does not hold the model of its config.json",
                  "tensor 'model.layers.0.self_attn.k_proj.weight' of b.safetensors has shape [7, "
                  "12]: must have [6, 12]",
                  "tensor 'model.extra' of b.safetensors is not part of the model"});
  std::filesystem::resize_file(folder_ / "b.safetensors",
                               std::filesystem::file_size(folder_ / "b.safetensors") - 8);
  expect_refused({"b.safetensors: tensor '", "it was cut short"});
}

// A header as long as the format allows, of nothing but spaces, and one that is a byte longer.
TEST_F(CheckpointTest, AHeaderOf100MBIsReadOrRefusedAtOnce) {
  put_config(kConfig);
  const auto put_length = [&](uint64_t length) {
    std::string bytes(sizeof length, '\0');
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<char>(length >> (8 * i) & 0xff);
    testing::write_bytes(file_, bytes + "{");
    std::filesystem::resize_file(file_, sizeof length + length);
  };
  put_length(kLargestSafetensorsHeader);
  expect_refused({"model.safetensors: header", "is not valid JSON"});
  put_length(kLargestSafetensorsHeader + 1);
  expect_refused({"model.safetensors: header of 100000001 bytes: must be at most 100000000"});
}

}  // namespace
}  // namespace tinyllama
