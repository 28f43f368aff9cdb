#include "benchmarks/distributed/gradient_buckets.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace tinyllama::distributed {
namespace {

bool is_alike(const at::Tensor& one, const at::Tensor& other) {
  return one.scalar_type() == other.scalar_type() && one.device() == other.device();
}

}  // namespace

GradientBuckets plan_buckets(const NamedTensors& parameters, int64_t bucket_bytes) {
  if (bucket_bytes < 1)
    throw std::invalid_argument(
        fmt::format("bucket of {} bytes: must be at least 1", bucket_bytes));
  GradientBuckets buckets;
  int64_t filled = 0;
  for (size_t index = parameters.size(); index-- > 0;) {
    const at::Tensor& parameter = parameters[index].second;
    const auto bytes = static_cast<int64_t>(parameter.nbytes());
    const int64_t limit =
        buckets.size() <= 1 ? std::min(kFirstBucketBytes, bucket_bytes) : bucket_bytes;
    const bool fits = !buckets.empty() && filled + bytes <= limit &&
                      is_alike(parameters[buckets.back().back()].second, parameter);
    if (!fits) {
      buckets.emplace_back();
      filled = 0;
    }
    buckets.back().push_back(index);
    filled += bytes;
  }
  return buckets;
}

std::vector<int64_t> bucket_bytes(const NamedTensors& parameters, const GradientBuckets& buckets) {
  std::vector<int64_t> bytes;
  for (const auto& bucket : buckets) {
    int64_t sum = 0;
    for (const size_t index : bucket)
      sum += static_cast<int64_t>(parameters.at(index).second.nbytes());
    bytes.push_back(sum);
  }
  return bytes;
}

BucketQueue::BucketQueue(const GradientBuckets& buckets) : buckets_(buckets) {
  size_t count = 0;
  for (const auto& bucket : buckets_) count += bucket.size();
  bucket_of_.resize(count);
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (const size_t parameter : buckets_[bucket]) bucket_of_.at(parameter) = bucket;
  }
  begin();
}

void BucketQueue::begin() {
  is_ready_.assign(bucket_of_.size(), false);
  left_.clear();
  for (const auto& bucket : buckets_) left_.push_back(bucket.size());
  next_ = 0;
}

std::pair<size_t, size_t> BucketQueue::complete(size_t parameter) {
  if (is_ready_.at(parameter))
    throw std::logic_error(fmt::format("gradient {} was ready twice in one backward", parameter));
  is_ready_[parameter] = true;
  --left_[bucket_of_[parameter]];
  const size_t first = next_;
  while (next_ < left_.size() && left_[next_] == 0) ++next_;
  return {first, next_};
}

std::vector<size_t> BucketQueue::missing() const {
  std::vector<size_t> found;
  for (size_t index = 0; index < is_ready_.size(); ++index) {
    if (!is_ready_[index]) found.push_back(index);
  }
  return found;
}

}  // namespace tinyllama::distributed
