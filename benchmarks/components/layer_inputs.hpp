// Inputs that several components share.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/harness/case.hpp"
#include "model/loss.hpp"
#include "model/parameters.hpp"

namespace tinyllama::components {

/// Passes of a layer between hidden states.
inline const std::vector<Pass> kLayerPasses = {Pass::forward, Pass::backward,
                                               Pass::forward_backward};

/// The parts of components that contain others.
inline constexpr Parts kAttentionParts = Part::attention | Part::rotary | Part::linear;
inline constexpr Parts kFeedForwardParts = Part::ffn | Part::linear;
inline constexpr Parts kBlockParts =
    kAttentionParts | kFeedForwardParts | Part::norm | Part::residual_norm | Part::block;
inline constexpr Parts kLossParts = Part::loss | Part::linear;
inline constexpr Parts kModelParts = kBlockParts | kLossParts;

/// What LlamaForCausalLM calls its first layer, whose weights components of one layer take.
inline const std::string kFirstLayer = "model.layers.0.";

/// Overwrites parameters, under LlamaForCausalLM's names for them, by the weights that the request
/// gives, of which a rank's share of a model takes the first rank's part; does nothing where it
/// gives none. A case, its reference and the reference with new inputs each read them: once they
/// were read, the system keeps files in memory that nobody else wants, and 470 MB from there take
/// a few tenths of a second, checks included. Kept by the program, they would count as memory of
/// the case.
void load_weights(const harness::BuildRequest& request, const NamedTensors& parameters);

/// hidden_states [B, S, D] from N(0, 1), requiring gradients.
at::Tensor hidden_states(const Workload& workload, TensorInitializer& initializer);

/// The work of a layer with one output [B, S, D]: a backward starts from a gradient of it in
/// `type`, which is drawn last.
std::unique_ptr<harness::WorkItem> layer_work(const harness::BuildRequest& request,
                                              const NamedTensors& inputs,
                                              const NamedTensors& parameters, c10::ScalarType type,
                                              TensorInitializer& initializer,
                                              const std::function<at::Tensor()>& forward,
                                              const harness::TokenInputs& tokens = {});

/// Why what needs embedding and loss is missing in a stage of a pipeline; empty elsewhere.
std::string missing_in_stages(const ModelConfig& config);

/// Refuses sequences of one token for passes that need the loss, and a backward alone of a loss
/// whose forward has done it already.
std::string refuse_loss(const Workload& workload, Pass pass);

}  // namespace tinyllama::components
