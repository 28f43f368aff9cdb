// config.json: read as the classes of the transformers package compute, written, and refused.
// tests/test_model_configs.py compares what is read with those classes themselves.
#include "model/checkpoint_config.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/testing.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama {
namespace {

using Json = nlohmann::json;
using c10::ScalarType;
using testing::expect_error;

constexpr const char* kTypes[] = {"llama", "mistral", "qwen2", "qwen3"};

const ModelDimensions kDimensions = {.vocab_size = 50,
                                     .hidden_dim = 48,
                                     .n_layers = 3,
                                     .n_heads = 6,
                                     .n_kv_heads = 2,
                                     .intermediate_dim = 64,
                                     .norm_eps = 1e-5,
                                     .rope_theta = 500000.0};

// kDimensions as a file of that type states them, and no other key but those given.
Json file_of(const std::string& model_type, const Json& keys = Json::object()) {
  Json json = {
      {"model_type", model_type},    {"vocab_size", 50},          {"hidden_size", 48},
      {"num_hidden_layers", 3},      {"num_attention_heads", 6},  {"head_dim", 8},
      {"num_key_value_heads", 2},    {"intermediate_size", 64},   {"rms_norm_eps", 1e-5},
      {"rope_theta", 500000.0},      {"sliding_window", nullptr}, {"pad_token_id", nullptr},
      {"max_position_embeddings", 8}};
  json.update(keys);
  return json;
}

Json without(Json json, std::initializer_list<const char*> keys) {
  for (const char* key : keys) json.erase(key);
  return json;
}

template <typename Change>
ModelDimensions changed(Change change) {
  ModelDimensions dimensions = kDimensions;
  change(dimensions);
  return dimensions;
}

class CheckpointConfigTest : public ::testing::Test {
 protected:
  ModelConfig read(const std::string& text) const {
    testing::write_bytes(file_, text);
    return read_checkpoint_config(file_);
  }
  ModelDimensions read(const Json& json) const { return read(json.dump()).dimensions(); }
  void expect_refused(const std::string& text, std::initializer_list<std::string> parts) const {
    SCOPED_TRACE(text.substr(0, 500));
    expect_error([&] { read(text); }, {file_.string() + ": "});
    expect_error([&] { read(text); }, parts);
  }

  testing::TemporaryFolder folder_;
  std::filesystem::path file_ = folder_.path() / "config.json";
};

TEST_F(CheckpointConfigTest, EachTypeHasItsOwnDefaults) {
  const auto type = [](const char* name) { return Json{{"model_type", name}}; };
  const ModelDimensions llama = {.vocab_size = 32000,
                                 .hidden_dim = 4096,
                                 .n_layers = 32,
                                 .n_heads = 32,
                                 .n_kv_heads = 32,
                                 .intermediate_dim = 11008,
                                 .norm_eps = 1e-6,
                                 .rope_theta = 10000.0};
  EXPECT_EQ(read(type("llama")), llama);
  ModelDimensions mistral = llama;
  mistral.n_kv_heads = 8;
  mistral.intermediate_dim = 14336;
  mistral.sliding_window = 4096;
  EXPECT_EQ(read(type("mistral")), mistral);
  ModelDimensions qwen2 = llama;
  qwen2.vocab_size = 151936;
  qwen2.intermediate_dim = 22016;
  qwen2.qkv_bias = true;
  EXPECT_EQ(read(type("qwen2")), qwen2);
  ModelDimensions qwen3 = qwen2;
  qwen3.qkv_bias = false;
  qwen3.qk_norm = true;
  EXPECT_EQ(read(type("qwen3")), qwen3);
  // 128, whatever hidden_size / num_attention_heads is.
  EXPECT_EQ(read(Json{{"model_type", "qwen3"}, {"hidden_size", 1024}}).own_head_dim, 128);
  EXPECT_EQ(read(Json{{"model_type", "llama"}, {"num_attention_heads", 16}}).n_kv_heads, 16);
}

TEST_F(CheckpointConfigTest, ANullIsPythonsNone) {
  const Json null;
  for (const char* type : kTypes) {
    EXPECT_EQ(read(file_of(type, {{"num_key_value_heads", null}})).n_kv_heads, 6) << type;
    const bool is_llama = std::string_view(type) == "llama";
    EXPECT_EQ(read(file_of(type, {{"sliding_window", null}, {"use_sliding_window", !is_llama}}))
                  .sliding_window,
              std::nullopt)
        << type;
    EXPECT_EQ(read(file_of(type, {{"rope_scaling", null},
                                  {"rope_parameters", null},
                                  {"tie_word_embeddings", null},
                                  {"mlp_bias", null},
                                  {"quantization_config", null},
                                  {"layer_types", null},
                                  {"num_experts", null}})),
              read(file_of(type)))
        << type;
    for (const char* key : {"hidden_size", "vocab_size", "num_hidden_layers", "intermediate_size",
                            "num_attention_heads", "rms_norm_eps", "rope_theta"}) {
      expect_refused(file_of(type, {{key, null}}).dump(), {key, " = null: must be a"});
    }
  }
  for (const char* type : {"llama", "mistral"})
    EXPECT_EQ(read(file_of(type, {{"head_dim", null}})).own_head_dim, std::nullopt);
  // their classes compute with it as it stands
  for (const char* type : {"qwen2", "qwen3"})
    expect_refused(file_of(type, {{"head_dim", null}}).dump(),
                   {"head_dim = null: must be an integer", "remove the key for its default"});
}

TEST_F(CheckpointConfigTest, FeaturesAreTheirTypes) {
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8},
                       {"low_freq_factor", 2.0},
                       {"high_freq_factor", 5.0},
                       {"original_max_position_embeddings", 64}};
  const RopeScaling scaled = {RopeScaling::Type::llama3, 8, 2, 5, 64};
  const Json windows = Json::array({"sliding_attention", "sliding_attention", "sliding_attention"});
  const Json full = Json::array({"full_attention", "full_attention", "full_attention"});
  using D = ModelDimensions;
  const struct {
    const char* type;
    Json keys;
    void (*change)(D&);
  } cases[] = {
      {"llama", {{"head_dim", 16}}, [](D& d) { d.own_head_dim = 16; }},
      {"llama", {{"attention_bias", true}}, [](D& d) { d.qkv_bias = d.o_bias = true; }},
      {"llama", {{"mlp_bias", true}}, [](D& d) { d.mlp_bias = true; }},
      {"llama", {{"tie_word_embeddings", true}}, [](D& d) { d.tied_embeddings = true; }},
      {"llama", {{"sliding_window", 5}, {"use_sliding_window", false}}, [](D&) {}},
      {"llama", {{"hidden_act", "swish"}, {"pretraining_tp", 2}, {"layer_types", full}}, [](D&) {}},
      {"mistral", {{"sliding_window", 5}}, [](D& d) { d.sliding_window = 5; }},
      {"mistral",
       {{"sliding_window", 5}, {"layer_types", windows}},
       [](D& d) { d.sliding_window = 5; }},
      {"mistral", {{"head_dim", 16}, {"layer_types", full}}, [](D& d) { d.own_head_dim = 16; }},
      {"qwen2", {{"sliding_window", 5}}, [](D& d) { d.qkv_bias = true; }},
      {"qwen2", {{"attention_bias", true}}, [](D& d) { d.qkv_bias = true; }},
      {"qwen2",
       {{"sliding_window", 5}, {"use_sliding_window", true}, {"max_window_layers", 3}},
       [](D& d) { d.qkv_bias = true; }},
      {"qwen2",
       {{"sliding_window", 5}, {"use_sliding_window", true}},  // layers from 28 on: none
       [](D& d) { d.qkv_bias = true; }},
      {"qwen2",
       {{"sliding_window", 5}, {"use_sliding_window", true}, {"max_window_layers", 0}},
       [](D& d) {
         d.qkv_bias = true;
         d.sliding_window = 5;
       }},
      {"qwen2",
       {{"sliding_window", 5}, {"use_sliding_window", true}, {"layer_types", windows}},
       [](D& d) {
         d.qkv_bias = true;
         d.sliding_window = 5;
       }},
      {"qwen3",
       {{"sliding_window", 5},
        {"use_sliding_window", true},
        {"max_window_layers", 0},
        {"layer_types", full}},
       [](D& d) { d.qk_norm = true; }},
      {"qwen3", {{"attention_bias", true}}, [](D& d) {
         d.qk_norm = d.qkv_bias = d.o_bias = true;
       }}};
  for (const auto& [type, keys, change] : cases)
    EXPECT_EQ(read(file_of(type, keys)), changed(change)) << type << keys;
  for (const char* type : kTypes) {
    const auto scaling = [&](const Json& keys) { return read(file_of(type, keys)).rope_scaling; };
    EXPECT_EQ(scaling({{"rope_scaling", llama3}}), scaled);
    EXPECT_EQ(scaling({{"rope_parameters", llama3}}), scaled);
    EXPECT_EQ(scaling({{"rope_parameters", llama3}, {"rope_scaling", llama3}}), scaled);
    const RopeScaling linear = {.type = RopeScaling::Type::linear, .factor = 2.5};
    EXPECT_EQ(scaling({{"rope_scaling", {{"type", "linear"}, {"factor", 2.5}}}}), linear);
    EXPECT_EQ(
        scaling({{"rope_scaling", {{"type", "linear"}, {"rope_type", "linear"}, {"factor", 2.5}}}}),
        linear);
    EXPECT_EQ(scaling({{"rope_scaling", {{"rope_type", "default"}, {"factor", nullptr}}}}),
              RopeScaling());
  }
}

TEST_F(CheckpointConfigTest, ReadsThetaWhereverItStands) {
  Json json = without(file_of("llama"), {"rope_theta"});
  EXPECT_EQ(read(json).rope_theta, 10000.0);
  json["rope_parameters"] = {{"rope_theta", 1000}, {"rope_type", "default"}};
  EXPECT_EQ(read(json).rope_theta, 1000.0);
  json["rope_theta"] = nullptr;
  EXPECT_EQ(read(json).rope_theta, 1000.0);
  json["rope_theta"] = 1000.0;
  EXPECT_EQ(read(json).rope_theta, 1000.0);
  json["rope_theta"] = 10000.0;
  expect_refused(json.dump(), {"rope_theta = 10000.0: must be rope_parameters.rope_theta = 1000"});
}

TEST_F(CheckpointConfigTest, ThePaddingTokenIsAsTorchReadsIt) {
  const auto with = [](const Json& token) { return file_of("llama", {{"pad_token_id", token}}); };
  EXPECT_EQ(read(with(nullptr)).padding_token, std::nullopt);
  EXPECT_EQ(read(with(0)).padding_token, 0);
  EXPECT_EQ(read(with(-1)).padding_token, 49);
  for (const int64_t beyond : {50, -51})
    expect_refused(with(beyond).dump(), {"pad_token_id", "must be from -50 to 49"});
}

// What published files hold beside the shapes.
TEST_F(CheckpointConfigTest, OtherKeysAreNobodysBusiness) {
  for (const char* type : kTypes) {
    EXPECT_EQ(read(file_of(type, {{"architectures", {"LLaMAForCausalLM"}},
                                  {"_name_or_path", "a/b"},
                                  {"bos_token_id", 1},
                                  {"eos_token_id", {1, 2}},
                                  {"torch_dtype", "float16"},
                                  {"dtype", "bfloat16"},
                                  {"initializer_range", 0.02},
                                  {"max_sequence_length", 2048},
                                  {"pretraining_tp", 2},
                                  {"transformers_version", "4.27.0.dev0"},
                                  {"attention_dropout", 0.0},
                                  {"num_local_experts", 0},
                                  {"partial_rotary_factor", 1.0},
                                  {"residual_multiplier", 1},
                                  {"no_rope_layers", Json::array()},
                                  {"use_cache", true}})),
              read(file_of(type)))
        << type;
  }
}

TEST_F(CheckpointConfigTest, RefusesOtherModels) {
  const struct {
    const char* type;
    const char* why;
  } cases[] = {{"mixtral", "a mixture of experts is not"},
               {"qwen2_moe", "a mixture of experts"},
               {"qwen3_moe", "a mixture of experts"},
               {"gpt_oss", "a mixture of experts"},
               {"deepseek_v2", "latent attention is not"},
               {"deepseek_v3", "latent attention"},
               {"gemma", "norms by 1 + w"},
               {"gemma2", "soft-capping"},
               {"gemma3", "GeGLU"},
               {"phi", "partial rotary embedding"},
               {"phi3", "merged projections"},
               {"glm", "merged projections"},
               {"nemotron", "other norms"},
               {"stablelm", "partial rotary"},
               {"granite", "multipliers are not"},
               {"olmo2", "other norms are not"},
               {"cohere", "other norms are not"},
               {"bert", "no other model is implemented"},
               {"llama mistral", "no other model is"},
               {"mixtral qwen2_moe", "no other model is"}};
  for (const auto& [type, why] : cases)
    expect_refused(file_of(type).dump(),
                   {std::string("model_type = \"") + type +
                        R"(": must be "llama", "mistral", "qwen2" or "qwen3": )",
                    why, "to measure the shapes alone, state them under one of these types"});
  Json json = file_of("llama");
  for (const Json& value : {Json(), Json(7), Json::array({"llama"})}) {
    json["model_type"] = value;
    expect_refused(json.dump(), {"model_type ", "must be \"llama\", \"mistral\""});
  }
  expect_refused(without(json, {"model_type"}).dump(),
                 {"model_type is missing: must be \"llama\""});
}

TEST_F(CheckpointConfigTest, RefusesWhatChangesTheComputation) {
  const struct {
    const char* key;
    Json value;
    const char* message;
  } cases[] = {
      {"num_experts", 8, "= 8: must be 0: a mixture of experts"},
      {"num_local_experts", 8, "= 8: must be 0: a mixture of experts"},
      {"n_routed_experts", 64, "= 64: must be 0: a mixture of experts"},
      {"kv_lora_rank", 512, "= 512: must be null: latent attention"},
      {"q_lora_rank", 1536, "= 1536: must be null: latent attention"},
      {"num_nextn_predict_layers", 1, "= 1: must be 0: layers that predict"},
      {"attn_logit_softcapping", 50.0, "= 50.0: must be null: soft-capping"},
      {"final_logit_softcapping", 30.0, "= 30.0: must be null: soft-capping"},
      {"query_pre_attn_scalar", 256, "= 256: must be null: scores are divided"},
      {"clip_qkv", 8.0, "= 8.0: must be null: q, k and v are not clipped"},
      {"dual_chunk_attention_config", 1, "= 1: must be null: attention in chunks"},
      {"attention_chunk_size", 8192, "= 8192: must be null: attention in chunks"},
      {"is_causal", false, "= false: must be true: attention is causal"},
      {"attention_dropout", 0.1, "= 0.1: must be 0: dropout"},
      {"partial_rotary_factor", 0.5, "= 0.5: must be 1: the rotary"},
      {"rotary_pct", 0.25, "= 0.25: must be 1: the rotary"},
      {"no_rope_layers", {1, 0, 1}, "= [1,0,1]: must be []: every layer has"},
      {"no_rope_layer_interval", 4, "= 4: must be null: every layer has"},
      {"alibi", true, "= true: must be false: positions are rotary"},
      {"quantization_config", {{"bits", 4}}, "= {\"bits\":4}: must be null: weights must be"},
      {"compression_config", {{"bits", 4}}, "= {\"bits\":4}: must be null: weights must be"},
      {"logits_scaling", 8.0, "= 8.0: must be 1: multipliers"},
      {"logit_scale", 0.06, "= 0.06: must be 1: multipliers"},
      {"embedding_multiplier", 12, "= 12: must be 1: multipliers"},
      {"residual_multiplier", 0.22, "= 0.22: must be 1: multipliers"},
      {"attention_multiplier", 0.01, "= 0.01: must be 1: multipliers"},
      {"scale_emb", 12, "= 12: must be 1: multipliers"},
      {"scale_depth", 1.4, "= 1.4: must be 1: multipliers"},
      {"bias", true, "= true: must be false: biases are stated by attention_bias"}};
  for (const char* type : kTypes) {
    for (const auto& [key, value, message] : cases)
      expect_refused(file_of(type, {{key, value}}).dump(),
                     {std::string(key) + " " + message, "; remove the key to measure the model"});
    for (const Json& act : {Json("gelu"), Json("relu2"), Json()})
      expect_refused(file_of(type, {{"hidden_act", act}}).dump(),
                     {"hidden_act = " + act.dump() + ": must be \"silu\": no other activation"});
  }
  // Keys of other types that this one's class would not read.
  const struct {
    const char* type;
    const char* key;
    Json value;
    const char* message;
  } unread[] = {
      {"mistral", "attention_bias", true, "= true: must be false: no projection of this"},
      {"mistral", "mlp_bias", true, "= true: must be false: no MLP of this"},
      {"qwen2", "mlp_bias", true, "= true: must be false: no MLP of this"},
      {"qwen3", "mlp_bias", true, "= true: must be false: no MLP of this"},
      {"llama", "use_qk_norm", true, "= true: must be false: this model_type has no norms of q"},
      {"mistral", "use_qk_norm", true, "= true: must be false: this model_type has no norms of q"},
      {"qwen2", "use_qk_norm", true, "= true: must be false: this model_type has no norms of q"},
      {"llama", "sliding_window", 5,
       "= 5: must be null: LlamaForCausalLM has no sliding window; remove the key, or state "
       "model_type \"mistral\""},
      {"llama", "use_sliding_window", true, "= true: must be false: LlamaForCausalLM has no"}};
  for (const auto& [type, key, value, message] : unread)
    expect_refused(file_of(type, {{key, value}}).dump(), {std::string(key) + " " + message});
}

TEST_F(CheckpointConfigTest, RefusesAModelWithAnotherHead) {
  const Json other = {"LlamaForSequenceClassification"};
  expect_refused(file_of("llama", {{"architectures", other}}).dump(),
                 {"architectures = [\"LlamaForSequenceClassification\"]", "ForCausalLM"});
  for (const char* name : {"LlamaForCausalLM", "LLaMAForCausalLM", "LlamaModel"})
    read(file_of("llama", {{"architectures", Json::array({name})}}).dump());
}

TEST_F(CheckpointConfigTest, RefusesLayersThatDiffer) {
  const std::string f = "full_attention";
  const std::string s = "sliding_attention";
  const Json window = {{"sliding_window", 5}, {"use_sliding_window", true}};
  const auto with = [&](Json keys, const char* key, const Json& value) {
    keys[key] = value;
    return keys;
  };
  const struct {
    const char* type;
    Json keys;
    const char* message;
  } cases[] = {
      {"qwen2", with(window, "max_window_layers", 1),
       "max_window_layers = 1: must be 0 or at least num_hidden_layers = 3: layers with and"},
      {"qwen3", with(window, "max_window_layers", 2), "max_window_layers = 2: must be 0 or at"},
      {"qwen3", with(window, "max_window_layers", nullptr), "= null: must be an integer"},
      {"qwen3", with(window, "layer_types", {f, s, s}),
       "layer_types = [\"full_attention\",\"sliding_attention\",\"sliding_attention\"]: must be "
       "all \"full_attention\" or all \"sliding_attention\""},
      {"qwen2", with(window, "layer_types", {f, f}), "must be an array of num_hidden_layers = 3"},
      {"qwen2", with(window, "layer_types", f), "must be an array of num_hidden_layers = 3"},
      {"llama", {{"layer_types", {f, "chunked_attention", f}}}, "alone, not \"chunked_attention\""},
      {"llama", {{"layer_types", {"linear_attention", f, f}}}, "alone, not \"linear_attention\""},
      {"llama", {{"layer_types", {1, 1, 1}}}, "alone, not 1"},
      {"llama", {{"layer_types", {s, s, s}}}, "keys give LlamaForCausalLM no sliding window"},
      {"qwen2", {{"sliding_window", 5}, {"layer_types", {s, s, s}}}, "give Qwen2ForCausalLM no"},
      {"mistral", {{"layer_types", {s, s, s}}}, "keys give MistralForCausalLM no sliding"},
      {"mistral",
       {{"sliding_window", 5}, {"layer_types", {f, f, f}}},
       "must be all \"sliding_attention\": MistralForCausalLM has a window in all layers; set "
       "sliding_window to null for none"},
      {"mistral",
       {{"sliding_window", 5}, {"use_sliding_window", false}},
       "use_sliding_window = false: must be true: MistralForCausalLM does not read it"},
      {"mistral", {{"sliding_window", "5"}}, "sliding_window = \"5\": must be an integer"},
      {"mistral", {{"sliding_window", 0}}, "sliding_window = 0: must be between 1 and"}};
  for (const auto& [type, keys, message] : cases)
    expect_refused(file_of(type, keys).dump(), {message});
}

TEST_F(CheckpointConfigTest, RefusesOtherRotaryEmbeddings) {
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 64}};
  for (const char* place : {"rope_scaling", "rope_parameters"}) {
    const auto expect = [&](const Json& rope, const std::string& message) {
      expect_refused(file_of("llama", {{place, rope}}).dump(), {std::string(place) + message});
    };
    for (const char* type : {"dynamic", "yarn", "longrope", "su", "mrope"}) {
      const auto rule = std::string(" = \"") + type +
                        "\": must be \"default\", \"linear\" or \"llama3\": no other scaled rotary "
                        "embedding is implemented here; set " +
                        place + " to null to measure";
      expect({{"rope_type", type}, {"factor", 2.0}}, ".rope_type" + rule);
      expect({{"type", type}, {"factor", 2.0}}, ".type" + rule);
    }
    for (const auto& [key, value] : llama3.items()) {
      if (key == "rope_type") continue;
      expect(without(llama3, {key.c_str()}),
             "." + key + " is missing: must be a number where rope_type is \"llama3\"");
      Json other = llama3;
      other[key] = "8";
      expect(other, "." + key + " = \"8\": must be a");
      other[key] = nullptr;
      expect(other, "." + key + " is missing");
      other[key] = -1;
      expect(other, "." + key + " = -1: must be ");
    }
    expect({{"type", "linear"}}, ".factor is missing: must be a number");
    expect({{"type", "linear"}, {"rope_type", "llama3"}, {"factor", 2}},
           ".type = \"linear\": must be rope_type = \"llama3\"");
    expect({{"rope_type", "default"}, {"factor", 2.0}},
           ".factor = 2.0: rope_type \"default\" has no such key; remove it");
    expect({{"rope_type", "linear"}, {"factor", 2.0}, {"beta_fast", 32}},
           ".beta_fast = 32: rope_type \"linear\" has no such key");
    expect({{"factor", 2.0}}, ".factor = 2.0: rope_type is missing");
    expect({{"full_attention", {{"rope_theta", 1e4}}}},
           ".full_attention = {\"rope_theta\":10000.0}");
    expect({{"partial_rotary_factor", 0.5}}, ".partial_rotary_factor = 0.5: must be 1");
    expect("linear", " = \"linear\": must be an object or null");
    expect({{"rope_type", 3}}, ".rope_type = 3: must be \"default\"");
    expect({{"rope_theta", "1"}}, ".rope_theta = \"1\": must be a number");
  }
  expect_refused(file_of("llama", {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}},
                                   {"rope_parameters", llama3}})
                     .dump(),
                 {"rope_scaling = {", "must be the same as rope_parameters = {"});
}

TEST_F(CheckpointConfigTest, RefusesValuesThatNoModelHas) {
  const struct {
    const char* key;
    Json value;
    const char* message;
  } cases[] = {{"hidden_size", "48", "= \"48\": must be an integer"},
               {"num_hidden_layers", 2.0, "= 2.0: must be an integer"},
               {"vocab_size", uint64_t{1} << 63, "= 9223372036854775808: must be"},
               {"num_key_value_heads", true, "= true: must be an integer"},
               {"rms_norm_eps", "1e-5", "= \"1e-5\": must be a number"},
               {"rms_norm_eps", 0, "= 0: must be positive"},
               {"rope_theta", Json::array({1}), "= [1]: must be a number"},
               {"rope_theta", -1, "= -1: must be positive"},
               {"head_dim", "8", "= \"8\": must be an integer"},
               {"head_dim", 7, "= 7: must be even"},
               {"head_dim", 0, "= 0: must be between 1 and"},
               {"attention_bias", 1, "= 1: must be true or false"},
               {"mlp_bias", "no", "= \"no\": must be true or false"},
               {"tie_word_embeddings", 0, "= 0: must be true or false"},
               {"use_sliding_window", 1, "= 1: must be true or false"},
               {"num_hidden_layers", 0, "= 0: must be between 1 and"},
               {"num_attention_heads", 0, "= 0: must be between 1 and"},
               {"num_key_value_heads", 4, "= 4: must divide num_attention_heads = 6"}};
  for (const auto& [key, value, message] : cases)
    expect_refused(file_of("llama", {{key, value}}).dump(), {std::string(key) + " " + message});
  expect_refused(without(file_of("llama", {{"num_attention_heads", 5}}), {"head_dim"}).dump(),
                 {"num_key_value_heads = 2: must divide num_attention_heads = 5"});
  expect_refused(without(file_of("llama", {{"num_attention_heads", 10}}), {"head_dim"}).dump(),
                 {"num_attention_heads = 10: must divide hidden_size = 48"});
  // A head_dim of its own needs no such rule.
  EXPECT_EQ(read(file_of("llama", {{"num_attention_heads", 10}})).own_head_dim, 8);
}

TEST_F(CheckpointConfigTest, IsReadInUtf16) {
  const std::string text = file_of("llama").dump();
  std::string little = "\xff\xfe";
  std::string big = "\xfe\xff";
  for (const char c : text) {
    little += {c, '\0'};
    big += {'\0', c};
  }
  for (const std::string& encoded : {little, big, "\xef\xbb\xbf" + text})
    EXPECT_EQ(read(encoded).dimensions(), kDimensions);
  expect_refused(little + '{', {"is not valid JSON"});
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

TEST(CheckpointConfigTextTest, SequencesBeyondTheModelsOwnAreToldOf) {
  const std::string text = checkpoint_config_text(ModelConfig(kDimensions), ScalarType::Float);
  EXPECT_EQ(longer_than_made_for(text, 2048), "");
  EXPECT_TRUE(longer_than_made_for(text, 2049)
                  .starts_with("sequences of 2049 tokens are longer than max_position_embeddings = "
                               "2048 of the model's config.json"));
  EXPECT_EQ(longer_than_made_for("{}", 2049), "");
  EXPECT_EQ(longer_than_made_for(R"({"max_position_embeddings": null})", 2049), "");
}

TEST(CheckpointConfigTextTest, WhatIsWrittenIsRead) {
  const RopeScaling scalings[] = {
      {}, {.type = RopeScaling::Type::linear, .factor = 2.5}, {RopeScaling::Type::llama3, 8, 2, 5}};
  const std::map<std::string, std::string> classes = {{"llama", "LlamaForCausalLM"},
                                                      {"mistral", "MistralForCausalLM"},
                                                      {"qwen2", "Qwen2ForCausalLM"},
                                                      {"qwen3", "Qwen3ForCausalLM"}};
  const auto expect_written = [&](const ModelDimensions& dimensions, const std::string& type) {
    const ModelConfig config(dimensions);
    const auto text = checkpoint_config_text(config, ScalarType::BFloat16);
    EXPECT_EQ(parse_checkpoint_config("file", text), config) << text;
    const Json json = Json::parse(text);
    EXPECT_EQ(json.at("model_type"), type);
    EXPECT_EQ(json.at("architectures").at(0), classes.at(type));
    EXPECT_EQ(json.at("dtype"), "bfloat16");
  };
  // every combination of features, as the class that has it
  size_t refused = 0;
  for (unsigned bits = 0; bits < 1U << 5; ++bits) {
    const auto has = [&](unsigned bit) { return (bits >> bit & 1U) != 0; };
    for (const RopeScaling& scaling : scalings) {
      ModelDimensions d = kDimensions;
      d.qkv_bias = has(0);
      d.o_bias = has(1);
      d.mlp_bias = has(2);
      d.qk_norm = has(3);
      if (has(4)) d.sliding_window = 7;
      d.rope_scaling = scaling;
      d.tied_embeddings = has(0) != has(4);
      if (has(3)) d.own_head_dim = 16;
      if (has(2)) d.padding_token = 3;
      const bool even_biases = d.qkv_bias == d.o_bias;
      const bool only_qkv = d.qkv_bias && !d.o_bias;
      const char* type = nullptr;
      if (d.qk_norm) {
        if (even_biases && !d.mlp_bias) type = "qwen3";
      } else if (only_qkv) {
        if (!d.mlp_bias) type = "qwen2";
      } else if (even_biases && d.sliding_window) {
        if (!d.qkv_bias && !d.mlp_bias) type = "mistral";
      } else if (even_biases) {
        type = "llama";
      }
      if (type != nullptr) {
        expect_written(d, type);
        continue;
      }
      ++refused;
      std::vector<std::string> parts = {"config.json: ", "model_type must be \"llama\""};
      if (d.qkv_bias) parts.emplace_back("qkv_bias");
      if (d.o_bias) parts.emplace_back("o_bias");
      if (d.mlp_bias) parts.emplace_back("mlp_bias");
      if (d.qk_norm) parts.emplace_back("qk_norm");
      if (d.sliding_window) parts.emplace_back("sliding_window");
      for (const std::string& part : parts)
        expect_error([&] { checkpoint_config_text(ModelConfig(d), ScalarType::Float); }, {part});
    }
  }
  EXPECT_EQ(refused, 3 * (32 - 11));  // llama states 4, mistral 1, qwen2 2, qwen3 4
  expect_written({}, "llama");
}

TEST(CheckpointConfigTextTest, AShareOfAModelIsNotWritten) {
  for (const auto& share : {changed([](auto& d) { d.whole_vocab = 100; }),
                            changed([](auto& d) { d.only_layers = true; })}) {
    expect_error([&] { checkpoint_config_text(ModelConfig(share), ScalarType::Float); },
                 {"config.json: ", "a share of a model"});
  }
}

// The original's keys, its type too, which a plain model could do without.
TEST(CheckpointConfigTextTest, TheOriginalsKeysAreKept) {
  const Json layers = Json::array({"full_attention", "full_attention", "full_attention"});
  for (const char* type : kTypes) {
    Json original = file_of(type, {{"eos_token_id", {7, 9}},
                                   {"torch_dtype", "float64"},
                                   {"layer_types", layers},
                                   {"rope_scaling", {{"type", "linear"}, {"factor", 2}}}});
    for (const char* absent : {"sliding_window", "num_key_value_heads", "head_dim"}) {
      if (std::string_view(absent) != "sliding_window" || type != std::string_view("mistral"))
        original.erase(absent);
    }
    original["num_key_value_heads"] = 6;
    const ModelConfig config = parse_checkpoint_config("file", original.dump());
    const auto text = checkpoint_config_text(config, ScalarType::Half, original.dump());
    EXPECT_EQ(parse_checkpoint_config("file", text), config);
    Json json = Json::parse(text);
    EXPECT_EQ(json.at("dtype"), "float16");
    EXPECT_FALSE(json.contains("torch_dtype"));
    original.erase("torch_dtype");
    for (const auto& [key, value] : original.items()) EXPECT_EQ(json.at(key), value) << key;
  }
  const ModelConfig other(changed([](auto& d) { d.n_layers = 2; }));
  expect_error([&] { checkpoint_config_text(other, ScalarType::Half, file_of("llama").dump()); },
               {"config.json: the original states another model than the one to be written"});
}

}  // namespace
}  // namespace tinyllama
