// Which gradients travel together, and when a bucket of them may start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

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

/// Counts the gradients of one backward. Buckets start in their order on every rank, whatever the
/// order in which they are complete: c10d matches operations by their order.
class BucketQueue {
 public:
  explicit BucketQueue(const GradientBuckets& buckets);

  void begin();
  /// A gradient is ready. Returns the buckets that may start now, first and last + 1. Throws
  /// std::logic_error where this parameter was ready already.
  std::pair<size_t, size_t> complete(size_t parameter);
  /// Parameters whose gradient never came.
  std::vector<size_t> missing() const;
  size_t bucket_of(size_t parameter) const { return bucket_of_.at(parameter); }

 private:
  GradientBuckets buckets_;
  std::vector<size_t> bucket_of_;
  std::vector<bool> is_ready_;
  std::vector<size_t> left_;
  size_t next_ = 0;
};

}  // namespace tinyllama::distributed
