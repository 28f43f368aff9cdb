#include "benchmarks/distributed/sharded_adamw.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <stdexcept>

namespace tinyllama::distributed {

ShardedAdamW::ShardedAdamW(ProcessGroup& group, const NamedTensors& parameters,
                           const Variant& variant, const AdamWOptions& options,
                           const BucketOptions& buckets)
    : group_(group),
      parameters_(parameters),
      buckets_(plan_buckets(parameters, buckets.bucket_bytes)),
      queue_(buckets_),
      overlap_(buckets.overlap),
      offset_(parameters.size()),
      pending_(buckets_.size()),
      hooks_(parameters, [this](size_t parameter) { on_gradient(parameter); }) {
  const at::NoGradGuard no_grad;
  NamedTensors shares;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    int64_t elements = 0;
    for (const size_t parameter : buckets_[bucket]) {
      offset_[parameter] = elements;
      elements += parameters_[parameter].second.numel();
    }
    const int64_t share = (elements + group_.size() - 1) / group_.size();
    const at::TensorOptions kind =
        parameters_[buckets_[bucket].front()].second.options().requires_grad(false);
    // Zeros, so that what fills up the last share stays finite.
    const at::Tensor flat = at::zeros({share * group_.size()}, kind);
    flat_gradients_.push_back(at::zeros_like(flat));
    flat_parameters_.push_back(flat);
    for (const size_t parameter : buckets_[bucket])
      place_of(parameter, flat_parameters_).copy_(parameters_[parameter].second);
    gradient_shares_.push_back(at::empty({share}, kind));
    shares_.push_back(flat.narrow(0, group_.rank() * share, share));
    shares_.back().mutable_grad() = gradient_shares_.back();
    shares.emplace_back(fmt::format("share of bucket {}", bucket), shares_.back());
  }
  optimizer_.emplace(shares, variant, options);
}

at::Tensor ShardedAdamW::place_of(size_t parameter, const std::vector<at::Tensor>& messages) const {
  const at::Tensor& tensor = parameters_[parameter].second;
  return messages[queue_.bucket_of(parameter)].as_strided(tensor.sizes(), tensor.strides(),
                                                          offset_[parameter]);
}

void ShardedAdamW::begin() {
  queue_.begin();
}

void ShardedAdamW::on_gradient(size_t parameter) {
  const at::NoGradGuard no_grad;
  at::Tensor& gradient = parameters_[parameter].second.mutable_grad();
  const at::Tensor place = place_of(parameter, flat_gradients_);
  place.copy_(gradient);
  gradient = place;
  const auto [first, last] = queue_.complete(parameter);
  if (!overlap_) return;
  for (size_t bucket = first; bucket < last; ++bucket) start(bucket);
}

void ShardedAdamW::start(size_t bucket) {
  pending_[bucket] = group_.reduce_scatter(gradient_shares_[bucket], flat_gradients_[bucket]);
}

void ShardedAdamW::finish() {
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

void ShardedAdamW::step() {
  const at::NoGradGuard no_grad;
  optimizer_->step();
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket)
    pending_[bucket] = group_.all_gather(flat_parameters_[bucket], shares_[bucket]);
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    pending_[bucket].wait();
    for (const size_t parameter : buckets_[bucket])
      parameters_[parameter].second.copy_(place_of(parameter, flat_parameters_));
  }
}

void ShardedAdamW::clear_gradients() {
  for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
}

int64_t ShardedAdamW::moment_elements() const {
  int64_t elements = 0;
  for (const auto& [name, moment] : optimizer_->first_moments()) elements += 2 * moment.numel();
  return elements;
}

}  // namespace tinyllama::distributed
