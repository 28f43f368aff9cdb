#include "benchmarks/distributed/bucketed_backward.hpp"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <stdexcept>
#include <utility>

namespace tinyllama::distributed {

BucketedBackward::BucketedBackward(const NamedTensors& parameters, const BucketOptions& options,
                                   std::function<void(size_t)> keep,
                                   std::function<Pending(size_t)> send)
    : parameters_(parameters),
      buckets_(plan_buckets(parameters, options.bucket_bytes)),
      queue_(buckets_),
      overlap_(options.overlap),
      keep_(std::move(keep)),
      send_(std::move(send)),
      elements_(buckets_.size()),
      offset_(parameters.size()),
      pending_(buckets_.size()),
      hooks_(parameters, [this](size_t parameter) { on_gradient(parameter); }) {
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (const size_t parameter : buckets_[bucket]) {
      offset_[parameter] = elements_[bucket];
      elements_[bucket] += parameters_[parameter].second.numel();
    }
  }
}

at::Tensor BucketedBackward::place_in(const std::vector<at::Tensor>& messages, size_t parameter,
                                      const at::Tensor& like) const {
  return messages[queue_.bucket_of(parameter)].as_strided(like.sizes(), like.strides(),
                                                          offset_[parameter]);
}

void BucketedBackward::on_gradient(size_t parameter) {
  const at::NoGradGuard no_grad;
  keep_(parameter);
  const auto [first, last] = queue_.complete(parameter);
  if (!overlap_) return;
  for (size_t bucket = first; bucket < last; ++bucket) pending_[bucket] = send_(bucket);
}

void BucketedBackward::finish() {
  const std::vector<size_t> missing = queue_.missing();
  if (!missing.empty()) {
    throw std::logic_error(
        fmt::format("{} got no gradient in this backward, so its bucket cannot be summed",
                    parameters_[missing.front()].first));
  }
  if (overlap_) return wait();
  send_all();
}

void BucketedBackward::send_all() {
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) pending_[bucket] = send_(bucket);
  wait();
}

void BucketedBackward::wait() {
  for (Pending& pending : pending_) pending.wait();
}

}  // namespace tinyllama::distributed
