// Training whose parameters, gradients and moments are all cut over the ranks: each part of the
// model is whole only while it computes (Rajbhandari and others, "ZeRO: Memory Optimizations Toward
// Training Trillion Parameter Models", stage 3; Zhao and others, "PyTorch FSDP", 2023).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "benchmarks/distributed/process_group.hpp"
#include "model/adamw.hpp"
#include "model/model_hooks.hpp"
#include "model/tiny_llama.hpp"

namespace tinyllama::distributed {

/// Bytes of a rank whose parameters are cut over `ranks`. Parts are TinyLlama::parts(); each has
/// one message of its parameters in memory, where each begins at a multiple of 64 bytes, filled up
/// to equal shares of such multiples.
struct ShardedBytes {
  int64_t share = 0;  ///< of all parts' parameters
  /// Between a backward and its update: shares of parameters, gradients and both moments.
  int64_t held() const { return 4 * share; }
  /// On top of those, at most, while a part's backward runs: its parameters and those of the part
  /// before it, its gradients and those of the part behind it, as messages, and one gradient that
  /// is not in its message yet.
  int64_t in_flight = 0;
  /// What Gloo has of those on top, at most: copies of three parts' messages.
  int64_t copied = 0;
  int64_t in_flight_over(c10::DeviceType device) const {
    return in_flight + (device == c10::DeviceType::CPU ? copied : 0);
  }
  /// Of the collectives of a step, each counted as a whole: a forward gathers every part, a
  /// backward all but the embedding, which it does not read, and the last, which is still there;
  /// and all gradients are reduce-scattered.
  int64_t sent = 0;
};
ShardedBytes sharded_bytes(const std::vector<NamedTensors>& parts, int ranks);

/// Throws std::invalid_argument that names what a model has that cannot be trained this way: tied
/// embeddings, a dtype with autocast, whose narrow copies of the weights would stay.
void refuse_sharded_parameters(const ModelConfig& config, Dtype dtype);

/// AdamW over shares, and the hooks that make a model's parameters whole where they are read.
/// Parameters keep their tensors and lose their memory: only while a part is gathered may they be
/// read.
class ShardedParameters final : public ModelHooks {
 public:
  /// Cuts the model's parameters as they are now, the same on all ranks. Holds references to both;
  /// the model has no parameters any more when this is gone. `overlap`: the part that comes next is
  /// gathered, and gradients are summed, while others compute. Throws what
  /// refuse_sharded_parameters throws.
  ShardedParameters(ProcessGroup& group, TinyLlama& model, const Variant& variant,
                    const AdamWOptions& options, bool overlap);
  ~ShardedParameters() override;

  void set_overlap(bool overlap) { overlap_ = overlap; }

  /// Runs `plain`, the backward of a forward before, whose gradients are added to those of
  /// backwards before it. Then this rank has the sum of its share of every gradient. Throws
  /// RankLostError, std::logic_error naming a part without a gradient, and what `plain` throws.
  void backward(const std::function<void()>& plain);
  /// Updates this rank's shares.
  void step();
  void clear_gradients();
  /// What a step sends, one after the other and without computing: what communication costs alone.
  void communicate();

  /// All parameters, or their gradients, whole on every rank, for proofs and files: parameters
  /// until they are released, or the next forward or step; gradients until they are cleared.
  void gather_parameters();
  void release_parameters();
  void gather_gradients();

  /// ShardedBytes::sent of everything until now.
  int64_t sent_bytes() const { return sent_bytes_; }

  /// The optimizer of this rank's shares, a flat tensor a part.
  AdamW& of_shares() { return *optimizer_; }

 private:
  class Hook;
  struct Part;

  void before_part(size_t part) override;
  void after_part(size_t part, const at::Tensor& output) override;
  void before_backward(size_t part);
  void on_gradient(size_t part, size_t parameter);
  void begin();
  void finish();
  /// Memory for a message of the whole part, which is counted as sent.
  at::Tensor message_of(const Part& part);
  /// Whether a backward reads the part's parameters, and has to gather them.
  bool is_gathered_again(size_t part) const;
  void start_gather(Part& part);
  void gather(Part& part);
  void release(Part& part);
  void reduce(Part& part);
  void settle(Part& part);

  ProcessGroup& group_;
  TinyLlama& model_;
  bool overlap_;
  std::vector<Part> parts_;
  int64_t sent_bytes_ = 0;
  Part* reducing_ = nullptr;  // the part whose gradients were sent last
  std::optional<AdamW> optimizer_;
};

}  // namespace tinyllama::distributed
