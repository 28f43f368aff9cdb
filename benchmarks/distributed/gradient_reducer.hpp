// Data-parallel gradients: each rank's become the sum over all ranks, bucket by bucket, while the
// backward still runs.
#pragma once

#include <vector>

#include "benchmarks/distributed/gradient_buckets.hpp"
#include "benchmarks/distributed/gradient_hooks.hpp"
#include "benchmarks/distributed/process_group.hpp"

namespace tinyllama::distributed {

struct BucketOptions {
  int64_t bucket_bytes = int64_t{25} << 20;
  /// Start a bucket as soon as its gradients are ready; else all after the backward.
  bool overlap = true;
};

class GradientReducer {
 public:
  /// `parameters` in the model's order. Holds a reference to the group. A bucket of one parameter
  /// is summed where autograd put it; the others are copied into one message, which their gradients
  /// are views of afterwards. A world of one has nothing to sum: it counts the gradients and leaves
  /// them where they are.
  GradientReducer(ProcessGroup& group, const NamedTensors& parameters,
                  const BucketOptions& options);

  /// Whether backwards that follow are watched.
  void attach() { hooks_.attach(); }
  void detach() { hooks_.detach(); }
  void set_overlap(bool overlap) { overlap_ = overlap; }

  /// Before the backward whose gradients are to be summed, with the gradients of micro-batches
  /// before it, if any, in place.
  void begin();
  /// After it: waits until every gradient is the sum over all ranks. Throws RankLostError, and
  /// std::logic_error naming a parameter without a gradient.
  void finish();

  /// Sums what the messages hold, without a backward: what communication costs alone.
  void reduce_alone();

  const GradientBuckets& buckets() const { return buckets_; }
  std::vector<int64_t> bytes() const { return bucket_bytes(parameters_, buckets_); }

 private:
  void on_gradient(size_t parameter);
  void start(size_t bucket);
  at::Tensor view_in_message(size_t parameter, const at::Tensor& like) const;

  ProcessGroup& group_;
  NamedTensors parameters_;
  GradientBuckets buckets_;
  BucketQueue queue_;
  bool overlap_;
  std::vector<at::Tensor> messages_;  // a bucket; [elements], made anew where it is undefined
  std::vector<int64_t> offset_;       // of a parameter in its bucket's message
  std::vector<Pending> pending_;      // a bucket
  GradientHooks hooks_;
};

}  // namespace tinyllama::distributed
