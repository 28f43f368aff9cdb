// Data-parallel training: gradients are summed over all ranks, bucket by bucket, while the backward
// still runs; and an optimizer whose state is sharded over the ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "benchmarks/distributed/process_group.hpp"
#include "model/adamw.hpp"
#include "model/parameters.hpp"

namespace tinyllama::distributed {

/// Indices of parameters, in the order in which their gradients get ready.
using GradientBuckets = std::vector<std::vector<size_t>>;

/// The first bucket is small, so that there is something to send early in the backward
/// (torch.nn.parallel.DistributedDataParallel does the same, with the same size).
inline constexpr int64_t kFirstBucketBytes = int64_t{1} << 20;

/// Parameters in the reverse of their order in the model, which is that of a backward, cut where
/// the next one would make a bucket larger than `bucket_bytes` (the first: than kFirstBucketBytes).
/// A larger parameter has a bucket of its own. All of a bucket have one type and device. Throws
/// std::invalid_argument where bucket_bytes is below 1.
GradientBuckets plan_buckets(const NamedTensors& parameters, int64_t bucket_bytes);

/// Bytes of each bucket's gradients.
std::vector<int64_t> bucket_bytes(const NamedTensors& parameters, const GradientBuckets& buckets);

struct BucketOptions {
  int64_t bucket_bytes = int64_t{25} << 20;
  /// Start a bucket as soon as its gradients are ready; else all after the backward.
  bool overlap = true;
};

/// Bytes that a rank needs on top of a plain step with these weights. Without sharding: its
/// messages, as large as the gradients. With a sharded optimizer the flat parameters and gradients
/// take the room of a plain step's two moments, and on top come this rank's shares of the gradients
/// and of both moments.
constexpr int64_t bytes_beside_step(int64_t weight_bytes, int ranks, bool shard_optimizer) {
  return shard_optimizer ? 3 * weight_bytes / ranks : weight_bytes;
}

/// A backward whose gradients are sent bucket by bucket, each as soon as it is complete. Buckets
/// start in their order on every rank, whatever the order in which they are complete: c10d matches
/// operations by their order.
class BucketedBackward {
 public:
  /// `parameters` in the model's order.
  BucketedBackward(const NamedTensors& parameters, const BucketOptions& options);
  virtual ~BucketedBackward() { detach(); }
  BucketedBackward(const BucketedBackward&) = delete;
  BucketedBackward& operator=(const BucketedBackward&) = delete;

  /// Installs or removes the hooks that see gradients in the backwards that follow. Without them a
  /// backward runs exactly as a plain one does. attach() replaces an earlier hook of this kind. An
  /// exception of a hook ends the backward and reaches its caller.
  void attach();
  void detach();
  void set_overlap(bool overlap) { overlap_ = overlap; }

  /// Call it before the backward whose gradients are to be sent. Gradients of earlier micro-batches
  /// may be there already: the backward adds to them.
  void begin();
  /// Call it after that backward: waits for every bucket. Throws RankLostError, and
  /// std::logic_error naming a parameter without a gradient.
  void finish();
  /// Sends what the messages hold, without a backward, and waits: what communication costs alone.
  void send_all();

  const GradientBuckets& buckets() const { return buckets_; }

 protected:
  /// Called when a gradient is ready: puts it where its bucket is sent from.
  virtual void keep(size_t parameter) = 0;
  /// Starts to send a bucket; keep() was called for all of its gradients.
  virtual Pending send(size_t bucket) = 0;

  at::Tensor& gradient(size_t parameter) { return parameters_[parameter].second.mutable_grad(); }
  /// A parameter's part of its bucket's message, as a view with the sizes and strides of `like`.
  /// `messages`: a flat tensor a bucket.
  at::Tensor place_in(const std::vector<at::Tensor>& messages, size_t parameter,
                      const at::Tensor& like) const;
  /// Number of elements of a bucket; type and device of its tensors.
  int64_t elements(size_t bucket) const { return elements_.at(bucket); }
  at::TensorOptions kind(size_t bucket) const;

  NamedTensors parameters_;
  std::vector<size_t> bucket_of_;  // by parameter

 private:
  class Hook;
  void on_gradient(size_t parameter);
  void wait();

  GradientBuckets buckets_;
  bool overlap_;
  std::vector<int64_t> elements_;  // by bucket
  std::vector<int64_t> offset_;    // by parameter, in its bucket
  std::vector<bool> is_ready_;     // by parameter: its gradient, in this backward
  std::vector<size_t> missing_;    // by bucket: gradients that are not ready
  size_t next_ = 0;                // the bucket to send next
  std::vector<Pending> pending_;   // by bucket
  bool is_attached_ = false;
};

/// Sums gradients over the ranks. The gradient of a bucket with one parameter is summed in place;
/// those of larger buckets are copied into one message and are views of it afterwards. In a world
/// of one there is nothing to sum: it only checks that every gradient is there.
class GradientReducer final : public BucketedBackward {
 public:
  /// Holds a reference to the group.
  GradientReducer(ProcessGroup& group, const NamedTensors& parameters,
                  const BucketOptions& options);

 private:
  void keep(size_t parameter) override;
  Pending send(size_t bucket) override;

  ProcessGroup& group_;
  std::vector<at::Tensor> messages_;  // by bucket: [elements]; undefined for a single gradient
};

/// AdamW whose moments are cut over the ranks: each keeps and updates one share of every bucket
/// (Rajbhandari and others, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
/// stage 1 with reduce-scattered gradients).
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
  std::vector<at::Tensor> flat_parameters_;  // by bucket: [share x ranks]
  std::vector<at::Tensor> flat_gradients_;   // the same
  std::vector<at::Tensor> shares_;           // views: this rank's part of flat_parameters_
  std::vector<at::Tensor> gradient_shares_;  // by bucket: [share]
  std::optional<AdamW> optimizer_;           // over the shares
};

}  // namespace tinyllama::distributed
