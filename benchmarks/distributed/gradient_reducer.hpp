// Data-parallel gradients: each rank's become the sum over all ranks, bucket by bucket, while the
// backward still runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "benchmarks/distributed/process_group.hpp"
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

  /// Whether backwards that follow are watched: without its hooks a backward is a plain one, to the
  /// instruction. Attaching replaces whatever hook of this kind a parameter had. What a hook throws
  /// leaves the backward.
  void attach();
  void detach();
  void set_overlap(bool overlap) { overlap_ = overlap; }

  /// Before the backward whose gradients are to be sent, with the gradients of micro-batches before
  /// it, if any, in place.
  void begin();
  /// After it: waits for every bucket. Throws RankLostError, and std::logic_error naming a
  /// parameter without a gradient.
  void finish();
  /// Sends what the messages hold, without a backward, and waits: what communication costs alone.
  void send_all();

  const GradientBuckets& buckets() const { return buckets_; }

 protected:
  /// A gradient is ready: puts it where its bucket is sent from.
  virtual void keep(size_t parameter) = 0;
  /// Starts a bucket of which all gradients are kept.
  virtual Pending send(size_t bucket) = 0;

  at::Tensor& gradient(size_t parameter) { return parameters_[parameter].second.mutable_grad(); }
  /// A parameter's part of its bucket's message, as a view with the sizes and strides of `like`.
  /// `messages`: a flat tensor a bucket.
  at::Tensor place_in(const std::vector<at::Tensor>& messages, size_t parameter,
                      const at::Tensor& like) const;
  /// Elements of a bucket, and how its tensors are made.
  int64_t elements(size_t bucket) const { return elements_.at(bucket); }
  at::TensorOptions kind(size_t bucket) const;

  NamedTensors parameters_;
  std::vector<size_t> bucket_of_;  // a parameter

 private:
  class Hook;
  void on_gradient(size_t parameter);
  void wait();

  GradientBuckets buckets_;
  bool overlap_;
  std::vector<int64_t> elements_;  // of a bucket
  std::vector<int64_t> offset_;    // of a parameter in its bucket
  std::vector<bool> is_ready_;     // a parameter's gradient, in this backward
  std::vector<size_t> missing_;    // gradients of a bucket
  size_t next_ = 0;                // bucket to start
  std::vector<Pending> pending_;   // a bucket
  bool is_attached_ = false;
};

/// Sums them where they are. A bucket of one parameter is summed where autograd put it; the others
/// are copied into one message, which their gradients are views of afterwards. A world of one has
/// nothing to sum: it counts the gradients and leaves them where they are.
class GradientReducer final : public BucketedBackward {
 public:
  /// Holds a reference to the group.
  GradientReducer(ProcessGroup& group, const NamedTensors& parameters,
                  const BucketOptions& options);

 private:
  void keep(size_t parameter) override;
  Pending send(size_t bucket) override;

  ProcessGroup& group_;
  std::vector<at::Tensor> messages_;  // a bucket; [elements], none where it is one gradient
};

}  // namespace tinyllama::distributed
