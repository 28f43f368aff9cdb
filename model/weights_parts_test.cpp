// Parameters that are not a stored tensor each: one table for embedding and LM head, and the part
// of a tensor that is one rank's.
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "model/checkpoint_testing.hpp"
#include "model/testing.hpp"
#include "model/weights.hpp"

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

ModelConfig tied(const ModelConfig& config) {
  ModelDimensions dimensions = config.dimensions();
  dimensions.tied_embeddings = true;
  return ModelConfig(dimensions);
}

ModelConfig one_of_three(const ModelConfig& whole) {
  ModelDimensions share = whole.dimensions();
  share.own_head_dim = whole.head_dim();
  share.n_heads /= 3;
  share.n_kv_heads /= 3;
  share.intermediate_dim = 3;
  share.whole_vocab = share.vocab_size;
  share.vocab_size = 4;
  return ModelConfig(share);
}

void erase(NamedTensors& tensors, const std::string& name) {
  std::erase_if(tensors, [&](const auto& entry) { return entry.first == name; });
}

// --- one table for the embedding and the LM head ---

class TiedTest : public CheckpointTest {
 protected:
  // The table is read from either name, and is this.
  void expect_table(const at::Tensor& table, const std::string& not_read) const {
    const Weights weights(folder_);
    EXPECT_TRUE(weights.config().tied_embeddings());
    for (const std::string& name : {kTable, kHead}) {
      const at::Tensor parameter = at::zeros_like(table);
      weights.copy_to({{name, parameter}});
      EXPECT_TRUE(at::equal(parameter, table)) << name;
    }
    EXPECT_EQ(weights.read_all().size(), 20);
    if (not_read.empty())
      EXPECT_EQ(weights.not_read(), "");
    else
      EXPECT_CONTAINS(weights.not_read(), not_read);
  }

  const ModelConfig config_ = tied(kConfig);
  NamedTensors tensors_ = counted_parameters(kConfig);
  const at::Tensor table_ = named(tensors_, kTable);
  const at::Tensor head_ = named(tensors_, kHead);
};

TEST_F(TiedTest, TheTableIsStoredUnderEitherNameOrBoth) {
  ASSERT_FALSE(at::equal(table_, head_));
  put(config_, tensors_);
  expect_table(table_, "a tensor that the model does not have is not read: 'lm_head.weight'");
  erase(tensors_, kHead);
  put(config_, tensors_);
  expect_table(table_, "");
  const std::string fingerprint = Weights(folder_).fingerprint();
  erase(tensors_, kTable);
  tensors_.emplace_back(kHead, table_);
  put(config_, tensors_);
  expect_table(table_, "");
  EXPECT_EQ(Weights(folder_).fingerprint(), fingerprint);
  erase(tensors_, kHead);
  tensors_.emplace_back("embed_tokens.weight", table_);  // LlamaModel's
  put(config_, tensors_);
  expect_table(table_, "");
}

TEST_F(TiedTest, AHeadOfAnotherShapeIsNoTable) {
  erase(tensors_, kHead);
  tensors_.emplace_back(kHead, at::zeros({13, 12}));
  put(config_, tensors_);
  expect_refused(
      {"tensor 'lm_head.weight' has shape [13, 12]: must have [11, 12], for it is tied "
       "to model.embed_tokens.weight"});
  erase(tensors_, kTable);
  put(config_, tensors_);
  expect_refused({"tensor 'lm_head.weight' has shape [13, 12]: must have [11, 12]"});
  erase(tensors_, kHead);
  put(config_, tensors_);
  expect_refused({"tensor 'model.embed_tokens.weight' of shape [11, 12] is missing"});
}

TEST_F(TiedTest, AShareOfTheHeadIsOneOfTheTable) {
  put(config_, tensors_);
  const ModelConfig share = one_of_three(config_);
  const at::Tensor part = at::zeros({4, 12});
  Weights(folder_).copy_to({{kHead, part}}, std::nullopt, &share);
  EXPECT_TRUE(at::equal(part, table_.narrow(0, 0, 4)));
}

TEST_F(TiedTest, AModelThatIsNotTiedNeedsItsHead) {
  erase(tensors_, kHead);
  put(kConfig, tensors_);
  expect_refused({"tensor 'lm_head.weight' of shape [11, 12] is missing"});
}

// --- one rank's part ---

class ShareTest : public CheckpointTest {};

TEST_F(ShareTest, ARanksShareTakesTheFirstRowsOrColumns) {
  const NamedTensors tensors = counted_parameters(kConfig);
  put(kConfig, tensors);
  const Weights weights(folder_);
  const ModelConfig share = one_of_three(kConfig);
  const struct {
    std::string name;
    std::vector<int64_t> shape;
  } parts[] = {{kTable, {4, 12}},
               {kHead, {4, 12}},
               {"model.layers.1.self_attn.q_proj.weight", {4, 12}},
               {"model.layers.1.self_attn.k_proj.weight", {2, 12}},
               {"model.layers.1.self_attn.v_proj.weight", {2, 12}},
               {"model.layers.1.self_attn.o_proj.weight", {12, 4}},
               {"model.layers.1.mlp.gate_proj.weight", {3, 12}},
               {"model.layers.1.mlp.up_proj.weight", {3, 12}},
               {"model.layers.1.mlp.down_proj.weight", {12, 3}},
               {"model.layers.1.input_layernorm.weight", {12}}};
  for (const auto& [name, shape] : parts) {
    const at::Tensor parameter = at::zeros(shape, ScalarType::Double).requires_grad_(true);
    weights.copy_to({{name, parameter}}, std::nullopt, &share);
    at::Tensor expected = named(tensors, name);
    for (size_t i = 0; i < shape.size(); ++i)
      expected = expected.narrow(static_cast<int64_t>(i), 0, shape[i]);
    EXPECT_TRUE(at::equal(parameter.detach(), expected.to(ScalarType::Double))) << name;
    // what the whole model's parameter takes has not changed
    const at::Tensor whole = at::zeros_like(named(tensors, name));
    weights.copy_to({{name, whole}});
    EXPECT_TRUE(at::equal(whole, named(tensors, name))) << name;
  }
}

// Biases of the columns' matrices are added once, by the first rank; norms of heads are all alike.
TEST_F(ShareTest, BiasesAreDividedAsTheRowsAre) {
  ModelDimensions biases = kConfig.dimensions();
  biases.qkv_bias = biases.o_bias = biases.mlp_bias = true;
  ModelDimensions norms = kConfig.dimensions();
  norms.qk_norm = true;
  for (const ModelDimensions& dimensions : {biases, norms}) {
    const ModelConfig config(dimensions);
    const NamedTensors tensors = counted_parameters(config);
    put(config, tensors);
    const Weights weights(folder_);
    const ModelConfig share = one_of_three(config);
    for (const auto& [name, shape] : parameter_shapes(share)) {
      const at::Tensor parameter = at::zeros(shape);
      weights.copy_to({{name, parameter}}, std::nullopt, &share);
      at::Tensor expected = named(tensors, name);
      for (size_t i = 0; i < shape.size(); ++i)
        expected = expected.narrow(static_cast<int64_t>(i), 0, shape[i]);
      EXPECT_TRUE(at::equal(parameter, expected)) << name;
    }
  }
}

TEST_F(ShareTest, AShareIsWhatItsConfigSaysAndNothingElse) {
  put(kConfig, counted_parameters(kConfig));
  const Weights weights(folder_);
  const ModelConfig share = one_of_three(kConfig);
  const auto refused = [&](const std::string& name, at::IntArrayRef shape, const ModelConfig* with,
                           const std::string& rest) {
    const std::string found = "tensor '" + name + "' has shape ";
    expect_error(
        [&] {
          weights.copy_to({{name, at::empty(shape)}}, std::nullopt, with);
        },
        {file_.string(), found, ", but the parameter has " + to_text(shape) + rest});
  };
  const std::string q = "model.layers.0.self_attn.q_proj.weight";
  refused(q, {4, 12}, nullptr, "");
  refused(q, {6, 12}, &share, "; a rank's share of it has [4, 12]");
  refused(q, {4, 6}, &share, "; a rank's share of it has [4, 12]");
  refused("model.layers.0.mlp.down_proj.weight", {3, 12}, &share, "; a rank's share of it has");
  refused("model.norm.weight", {4}, &share, "; a rank's share of it has [12]");
  // A narrower model is no share: its norms are no part of the stored ones.
  ModelDimensions narrow = kConfig.dimensions();
  narrow.hidden_dim = 6;
  narrow.own_head_dim = kConfig.head_dim();
  const ModelConfig narrower(narrow);
  refused("model.norm.weight", {6}, &narrower, "; a rank's share of it has [6]");
  refused(q, {12, 6}, &narrower, "; a rank's share of it has [12, 6]");
  ModelDimensions other = share.dimensions();
  other.hidden_dim = 24;
  const ModelConfig other_width(other);
  refused(q, {4, 12}, &other_width, "; a rank's share of it has [4, 24]");
  ModelDimensions wide = kConfig.dimensions();
  wide.intermediate_dim = 8;
  const ModelConfig wider(wide);
  refused("model.layers.0.mlp.up_proj.weight", {8, 12}, &wider, "; a rank's share of it has");
  ModelDimensions few = kConfig.dimensions();
  few.n_layers = 1;
  const ModelConfig stage(few);
  refused("model.layers.1.mlp.up_proj.weight", {3, 12}, &stage,
          "; a rank's share of the model has none");
  EXPECT_EQ(weights.fault(), "") << "the caller's fault, not the file's";
}

}  // namespace
}  // namespace tinyllama
