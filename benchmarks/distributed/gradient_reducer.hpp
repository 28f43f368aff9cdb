// Data-parallel training on c10d::Reducer, the engine of PyTorch's DistributedDataParallel: it sums
// gradients over all ranks, bucket by bucket, while the backward still runs. And an optimizer whose
// state is sharded over the ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "benchmarks/distributed/process_group.hpp"
#include "model/adamw.hpp"
#include "model/parameters.hpp"

namespace c10d {
class Reducer;
}

namespace tinyllama::distributed {

/// Indices of parameters, in the order in which their gradients get ready.
using GradientBuckets = std::vector<std::vector<size_t>>;

/// c10d's cut of the parameters in the reverse of their order in the model, which is nearly that of
/// a backward: a bucket ends with the parameter that makes it `bucket_bytes` or more (the first:
/// 1 MiB, so that there is something to send early). All of a bucket have one type and device.
/// Throws std::invalid_argument where bucket_bytes is below 1.
GradientBuckets plan_buckets(const NamedTensors& parameters, int64_t bucket_bytes);

struct BucketOptions {
  int64_t bucket_bytes = int64_t{25} << 20;
  /// Start a bucket as soon as its gradients are ready; else all after the backward.
  bool overlap = true;
  /// The type that gradients travel and are summed in, where it is not their own.
  std::optional<c10::ScalarType> compress = std::nullopt;
};

/// Bytes of each bucket's message.
std::vector<int64_t> message_bytes(const NamedTensors& parameters, const BucketOptions& options);

/// Bytes of a rank whose optimizer is cut over `ranks`, a ShardedAdamW.
struct ShardedAdamWBytes {
  int64_t gradients = 0;  ///< of all buckets, in which they lie
  int64_t flat = 0;       ///< all parameters, each bucket filled up to equal shares
  int64_t share = 0;      ///< of those
  /// As long as it lives: flat parameters, buckets, and shares of gradients and both moments.
  int64_t held() const { return flat + gradients + 3 * share; }
  int64_t largest = 0;  ///< of the messages
  int64_t next = 0;     ///< of the largest of the others
  /// Gloo's two threads let go of a message's copy a moment after the message has arrived, which
  /// may last until the next backward where processors are busy.
  int64_t kept_over(c10::DeviceType device) const {
    return device == c10::DeviceType::CPU ? largest + next : 0;
  }
  /// Between two steps, on top: AdamW's denominators, or what Gloo has gathered before it is
  /// copied.
  int64_t update_over(c10::DeviceType device) const {
    return device == c10::DeviceType::CPU ? std::max(share, largest) : share;
  }
};
ShardedAdamWBytes sharded_adamw_bytes(const NamedTensors& parameters, int ranks,
                                      int64_t bucket_bytes);

/// Sums gradients over the ranks; they are views of the buckets afterwards.
class GradientReducer {
 public:
  /// Starts what is to become of a bucket's message.
  using Send = std::function<Pending(size_t bucket, const at::Tensor& message)>;

  /// `parameters` in the model's order. Holds a reference to the group. Unless `send` is given,
  /// messages are summed, and c10d cuts the buckets anew after the first backward, by the order in
  /// which its gradients were ready.
  GradientReducer(ProcessGroup& group, const NamedTensors& parameters, const BucketOptions& options,
                  Send send = {});
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  void set_overlap(bool overlap);

  /// Runs `plain`, a backward, and sends its gradients; those of earlier micro-batches may be there
  /// already: the backward adds to them. Other backwards run as without a reducer. Throws
  /// RankLostError, c10::Error naming the parameters without a gradient, and what `plain` throws.
  void backward(const std::function<void()>& plain);
  /// Sends what the buckets hold, without a backward, and waits: what communication costs alone.
  void send_all();

 private:
  class Hook;

  ProcessGroup& group_;
  std::unique_ptr<c10d::Reducer> reducer_;
  Hook* hook_;  // the reducer's
  bool may_rebuild_;
};

/// AdamW whose moments are cut over the ranks: each keeps and updates one share of every bucket
/// (Rajbhandari and others, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
/// stage 1 with reduce-scattered gradients).
class ShardedAdamW {
 public:
  /// Takes the parameters' values as they are now. Buckets are padded to equal shares: layers may
  /// hold further views of their weights, so the parameters stay where they are and what was
  /// gathered is copied to them. Holds a reference to the group. The update is element by element,
  /// so that its results are those of AdamW over whole parameters.
  ShardedAdamW(ProcessGroup& group, const NamedTensors& parameters, const Variant& variant,
               const AdamWOptions& options, const BucketOptions& buckets);

  /// GradientReducer::backward, after which this rank has the sum of its share of every gradient.
  void backward(const std::function<void()>& plain) { reducer_.backward(plain); }
  /// Updates this rank's share and gathers everyone's; then all ranks have all parameters.
  void step();
  /// Gradients of the parameters to none.
  void clear_gradients();

  /// The optimizer of this rank's shares, a flat tensor a bucket.
  AdamW& of_shares() { return *optimizer_; }

 private:
  Pending scatter(size_t bucket, const at::Tensor& message);

  ProcessGroup& group_;
  NamedTensors parameters_;
  std::vector<at::Tensor> flat_parameters_;  // by bucket: [share x ranks]
  std::vector<at::Tensor> places_;           // by parameter: its part of them
  std::vector<at::Tensor> shares_;           // views: this rank's part of flat_parameters_
  std::optional<AdamW> optimizer_;           // over the shares, whose gradients are [share]
  GradientReducer reducer_;
};

}  // namespace tinyllama::distributed
