// Data-parallel gradients: each rank's become the sum over all ranks, bucket by bucket, while the
// backward still runs.
#pragma once

#include <vector>

#include "benchmarks/distributed/bucketed_backward.hpp"
#include "benchmarks/distributed/process_group.hpp"

namespace tinyllama::distributed {

class GradientReducer {
 public:
  /// `parameters` in the model's order. Holds a reference to the group. A bucket of one parameter
  /// is summed where autograd put it; the others are copied into one message, which their gradients
  /// are views of afterwards. A world of one has nothing to sum: it counts the gradients and leaves
  /// them where they are.
  GradientReducer(ProcessGroup& group, const NamedTensors& parameters,
                  const BucketOptions& options);

  /// Whether backwards that follow are watched.
  void attach() { backward_.attach(); }
  void detach() { backward_.detach(); }
  void set_overlap(bool overlap) { backward_.set_overlap(overlap); }

  /// Before the backward whose gradients are to be summed, with the gradients of micro-batches
  /// before it, if any, in place.
  void begin() { backward_.begin(); }
  /// After it: waits until every gradient is the sum over all ranks. Throws RankLostError, and
  /// std::logic_error naming a parameter without a gradient.
  void finish() { backward_.finish(); }

  /// Sums what the messages hold, without a backward: what communication costs alone.
  void reduce_alone() { backward_.send_all(); }

  const GradientBuckets& buckets() const { return backward_.buckets(); }
  std::vector<int64_t> bytes() const {
    return bucket_bytes(backward_.parameters(), backward_.buckets());
  }

 private:
  void keep(size_t parameter);
  Pending send(size_t bucket);

  ProcessGroup& group_;
  NamedTensors parameters_;
  BucketedBackward backward_;
  std::vector<at::Tensor> messages_;  // a bucket; [elements], none where it is one gradient
};

}  // namespace tinyllama::distributed
