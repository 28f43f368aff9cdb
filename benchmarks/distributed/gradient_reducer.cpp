#include "benchmarks/distributed/gradient_reducer.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <stdexcept>

namespace tinyllama::distributed {

GradientReducer::GradientReducer(ProcessGroup& group, const NamedTensors& parameters,
                                 const BucketOptions& options)
    : group_(group),
      parameters_(parameters),
      buckets_(plan_buckets(parameters, options.bucket_bytes)),
      queue_(buckets_),
      overlap_(options.overlap),
      messages_(buckets_.size()),
      offset_(parameters.size()),
      pending_(buckets_.size()),
      hooks_(parameters, [this](size_t parameter) { on_gradient(parameter); }) {
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    int64_t elements = 0;
    for (const size_t parameter : buckets_[bucket]) {
      offset_[parameter] = elements;
      elements += parameters_[parameter].second.numel();
    }
    if (buckets_[bucket].size() == 1 || group_.size() == 1) continue;
    const at::Tensor& like = parameters_[buckets_[bucket].front()].second;
    messages_[bucket] = at::zeros({elements}, like.options().requires_grad(false));
  }
}

at::Tensor GradientReducer::view_in_message(size_t parameter, const at::Tensor& like) const {
  return messages_[queue_.bucket_of(parameter)].as_strided(like.sizes(), like.strides(),
                                                           offset_[parameter]);
}

void GradientReducer::begin() {
  queue_.begin();
}

void GradientReducer::on_gradient(size_t parameter) {
  const at::NoGradGuard no_grad;
  const at::Tensor& message = messages_[queue_.bucket_of(parameter)];
  if (message.defined()) {
    at::Tensor& gradient = parameters_[parameter].second.mutable_grad();
    const at::Tensor place = view_in_message(parameter, gradient);
    place.copy_(gradient);
    gradient = place;
  }
  const auto [first, last] = queue_.complete(parameter);
  if (!overlap_) return;
  for (size_t bucket = first; bucket < last; ++bucket) start(bucket);
}

void GradientReducer::start(size_t bucket) {
  if (group_.size() == 1) return;
  const at::Tensor& message = messages_[bucket];
  pending_[bucket] = group_.all_reduce(
      message.defined() ? message
                        : dense_values(parameters_[buckets_[bucket].front()].second.grad()));
}

void GradientReducer::finish() {
  const std::vector<size_t> missing = queue_.missing();
  if (!missing.empty()) {
    throw std::logic_error(
        fmt::format("{} got no gradient in this backward, so its bucket cannot "
                    "be summed",
                    parameters_[missing.front()].first));
  }
  if (!overlap_) {
    for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) start(bucket);
  }
  for (Pending& pending : pending_) pending.wait();
}

void GradientReducer::reduce_alone() {
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) start(bucket);
  for (Pending& pending : pending_) pending.wait();
}

}  // namespace tinyllama::distributed
