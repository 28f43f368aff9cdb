// What config.json files of the transformers package mean: the classes of models that this one can
// be, and the types and keys that state another computation. Tables for checkpoint_config.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tinyllama::checkpoint {

// What all four classes take where a key is left out.
inline constexpr int64_t kDefaultHiddenSize = 4096;
inline constexpr int64_t kDefaultLayers = 32;
inline constexpr int64_t kDefaultHeads = 32;
inline constexpr double kDefaultNormEps = 1e-6;
inline constexpr double kDefaultRopeTheta = 10000.0;
inline constexpr int64_t kDefaultWindow = 4096;
inline constexpr int64_t kDefaultMaxWindowLayers = 28;

enum class AttentionBias : uint8_t { none, qkv, by_key };
// by_flag: where use_sliding_window is true, from layer max_window_layers on.
enum class Window : uint8_t { none, all_layers, by_flag };

// A class of models of the transformers package, by its configuration_*.py and modeling_*.py in
// version 4.57.1: what it takes where a key is left out, and what it can compute.
struct Family {
  std::string_view model_type;
  const char* architecture;
  int64_t vocab_size;
  int64_t intermediate_size;
  std::optional<int64_t> kv_heads;  // none: as many as heads
  std::optional<int64_t> head_dim;  // none: hidden_size / num_attention_heads
  bool head_dim_may_be_null;        // where the class divides for itself; the others fail on it
  AttentionBias attention_bias;
  bool mlp_bias;
  bool qk_norm;
  Window window;
};
inline constexpr std::optional<int64_t> kDerived{};
// The first that can state a model's features is written.
inline constexpr Family kFamilies[] = {
    {"llama", "LlamaForCausalLM", 32000, 11008, kDerived, kDerived, true, AttentionBias::by_key,
     true, false, Window::none},
    {"mistral", "MistralForCausalLM", 32000, 14336, 8, kDerived, true, AttentionBias::none, false,
     false, Window::all_layers},
    {"qwen2", "Qwen2ForCausalLM", 151936, 22016, 32, kDerived, false, AttentionBias::qkv, false,
     false, Window::by_flag},
    {"qwen3", "Qwen3ForCausalLM", 151936, 22016, 32, 128, false, AttentionBias::by_key, false, true,
     Window::by_flag}};

inline constexpr const char* kOurTypes = "\"llama\", \"mistral\", \"qwen2\" or \"qwen3\"";

// Why well-known models of other types are not these.
struct OtherType {
  std::string_view model_types;  // separated by blanks
  const char* why;
};
inline constexpr const char* kExperts = "a mixture of experts is not implemented here";
inline constexpr OtherType kOtherTypes[] = {
    {"mixtral qwen2_moe qwen3_moe qwen3_next gpt_oss olmoe phimoe granitemoe dbrx jamba minimax",
     kExperts},
    {"deepseek_v2 deepseek_v3 kimi_k2 minicpm3", "latent attention is not implemented here"},
    {"gemma gemma2 gemma3 gemma3_text",
     "its norms by 1 + w, GeGLU and soft-capping are not implemented here"},
    {"phi phi3 glm glm4 nemotron stablelm gpt_neox persimmon",
     "its partial rotary embedding, merged projections or other norms are not implemented here"},
    {"granite minicpm", "its multipliers are not implemented here"},
    {"olmo olmo2 olmo3 cohere cohere2", "its other norms are not implemented here"},
    {"smollm3", "layers without a rotary embedding are not implemented here"},
    {"gpt2 opt bloom falcon mpt starcoder2", "it is no LLaMA: other norms, positions and MLP"},
    {"mamba mamba2 rwkv recurrent_gemma", "its layers hold no attention"},
    {"llama4 mllama mistral3 llava qwen2_vl qwen2_5_vl qwen3_vl",
     "it holds a model of images beside that of text"}};

// Keys by which a file states a computation that is none of ours: which value (or null) does not.
struct RefusedKey {
  const char* key;
  const char* neutral;
  const char* why;
  std::string_view model_types = {};  // whose class does not read the key; none: all
};
inline constexpr const char* kMultiplier = "multipliers are not implemented here";
inline constexpr const char* kWholeHeads = "the rotary embedding rotates whole heads here";
inline constexpr const char* kEveryLayerRotates = "every layer has a rotary embedding here";
inline constexpr const char* kFloats = "weights must be stored as floating-point numbers";
inline constexpr RefusedKey kRefusedKeys[] = {
    {"num_experts", "0", kExperts},
    {"num_local_experts", "0", kExperts},
    {"n_routed_experts", "0", kExperts},
    {"kv_lora_rank", "null", "latent attention is not implemented here"},
    {"q_lora_rank", "null", "latent attention is not implemented here"},
    {"num_nextn_predict_layers", "0",
     "layers that predict further tokens are not implemented here"},
    {"attn_logit_softcapping", "null", "soft-capping is not implemented here"},
    {"final_logit_softcapping", "null", "soft-capping is not implemented here"},
    {"query_pre_attn_scalar", "null", "scores are divided by the root of head_dim here"},
    {"clip_qkv", "null", "q, k and v are not clipped here"},
    {"attention_chunk_size", "null", "attention in chunks is not implemented here"},
    {"dual_chunk_attention_config", "null", "attention in chunks is not implemented here"},
    {"is_causal", "true", "attention is causal here"},
    {"attention_dropout", "0", "dropout is not implemented here"},
    {"partial_rotary_factor", "1", kWholeHeads},
    {"rotary_pct", "1", kWholeHeads},
    {"no_rope_layers", "[]", kEveryLayerRotates},
    {"no_rope_layer_interval", "null", kEveryLayerRotates},
    {"alibi", "false", "positions are rotary here"},
    {"quantization_config", "null", kFloats},
    {"compression_config", "null", kFloats},
    {"logits_scaling", "1", kMultiplier},
    {"logit_scale", "1", kMultiplier},
    {"embedding_multiplier", "1", kMultiplier},
    {"residual_multiplier", "1", kMultiplier},
    {"attention_multiplier", "1", kMultiplier},
    {"scale_emb", "1", kMultiplier},
    {"scale_depth", "1", kMultiplier},
    {"bias", "false", "biases are stated by attention_bias and mlp_bias"},
    {"attention_bias", "false", "no projection of this model_type has a bias", "mistral"},
    {"mlp_bias", "false", "no MLP of this model_type has biases", "mistral qwen2 qwen3"},
    {"use_qk_norm", "false", "this model_type has no norms of q and k", "llama mistral qwen2"}};

}  // namespace tinyllama::checkpoint
