// AdamW whose moments are cut over the ranks: each keeps and updates one share of every bucket
// (Rajbhandari and others, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
// stage 1 with reduce-scattered gradients).
#pragma once

#include <optional>
#include <vector>

#include "benchmarks/distributed/gradient_reducer.hpp"
#include "model/adamw.hpp"

namespace tinyllama::distributed {

/// After finish() this rank has the sum of its share of every gradient.
class ShardedAdamW final : public BucketedBackward {
 public:
  /// Takes the parameters' values as they are now. Messages have memory of their own, padded to
  /// equal shares: layers may hold further views of their weights, so the parameters stay where
  /// they are and what was gathered is copied to them. Holds a reference to the group. The update
  /// is element by element, so that its results are those of AdamW over whole parameters.
  ShardedAdamW(ProcessGroup& group, const NamedTensors& parameters, const Variant& variant,
               const AdamWOptions& options, const BucketOptions& buckets);

  /// Updates this rank's share and gathers everyone's; then all ranks have all parameters.
  void step();
  /// Gradients of the parameters to none.
  void clear_gradients();

  /// The optimizer of this rank's shares, a flat tensor a bucket.
  AdamW& of_shares() { return *optimizer_; }
  /// Elements of the moments on this rank, both together.
  int64_t moment_elements() const;

 private:
  void keep(size_t parameter) override;
  Pending send(size_t bucket) override {
    return group_.reduce_scatter(gradient_shares_[bucket], flat_gradients_[bucket]);
  }
  /// The part of a bucket's message that is this parameter's, in its own order of elements.
  at::Tensor place_of(size_t parameter, const std::vector<at::Tensor>& messages) const {
    return place_in(messages, parameter, parameters_[parameter].second);
  }

  ProcessGroup& group_;
  std::vector<at::Tensor> flat_parameters_;  // a bucket: [share x ranks]
  std::vector<at::Tensor> flat_gradients_;   // the same
  std::vector<at::Tensor> shares_;           // views: this rank's part of flat_parameters_
  std::vector<at::Tensor> gradient_shares_;  // a bucket: [share]
  std::optional<AdamW> optimizer_;           // over the shares
};

}  // namespace tinyllama::distributed
