#include "benchmarks/distributed/gradient_reducer.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <stdexcept>

namespace tinyllama::distributed {

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
    const auto is_alike = [&](const at::Tensor& other) {
      return other.scalar_type() == parameter.scalar_type() && other.device() == parameter.device();
    };
    const bool fits = !buckets.empty() && filled + bytes <= limit &&
                      is_alike(parameters[buckets.back().back()].second);
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
    bytes.push_back(0);
    for (const size_t index : bucket)
      bytes.back() += static_cast<int64_t>(parameters.at(index).second.nbytes());
  }
  return bytes;
}

class BucketedBackward::Hook final : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(BucketedBackward& backward, size_t parameter) : backward_(backward), parameter_(parameter) {}
  void operator()(const at::Tensor&) override { backward_.on_gradient(parameter_); }

 private:
  BucketedBackward& backward_;  // detaches its hooks before it goes
  size_t parameter_;
};

BucketedBackward::BucketedBackward(const NamedTensors& parameters, const BucketOptions& options)
    : parameters_(parameters),
      bucket_of_(parameters.size()),
      buckets_(plan_buckets(parameters, options.bucket_bytes)),
      overlap_(options.overlap),
      elements_(buckets_.size()),
      offset_(parameters.size()),
      pending_(buckets_.size()) {
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    for (const size_t parameter : buckets_[bucket]) {
      bucket_of_[parameter] = bucket;
      offset_[parameter] = elements_[bucket];
      elements_[bucket] += parameters_[parameter].second.numel();
    }
  }
  begin();
}

void BucketedBackward::attach() {
  for (size_t index = 0; index < parameters_.size(); ++index) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_[index].second,
                                                   std::make_unique<Hook>(*this, index));
  }
  is_attached_ = true;
}

void BucketedBackward::detach() {
  if (!is_attached_) return;
  for (const auto& [name, parameter] : parameters_)
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  is_attached_ = false;
}

void BucketedBackward::begin() {
  is_ready_.assign(parameters_.size(), false);
  missing_.clear();
  for (const auto& bucket : buckets_) missing_.push_back(bucket.size());
  next_ = 0;
}

void BucketedBackward::on_gradient(size_t parameter) {
  if (is_ready_.at(parameter)) {
    throw std::logic_error(fmt::format("gradient {} was ready twice in one backward", parameter));
  }
  const at::NoGradGuard no_grad;
  keep(parameter);
  is_ready_[parameter] = true;
  --missing_[bucket_of_[parameter]];
  for (; overlap_ && next_ < buckets_.size() && missing_[next_] == 0; ++next_)
    pending_[next_] = send(next_);
}

void BucketedBackward::finish() {
  const auto missing = std::find(is_ready_.begin(), is_ready_.end(), false);
  if (missing != is_ready_.end()) {
    const auto& name = parameters_[static_cast<size_t>(missing - is_ready_.begin())].first;
    throw std::logic_error(
        fmt::format("{} got no gradient in this backward, so its bucket cannot be summed", name));
  }
  if (overlap_) return wait();
  send_all();
}

void BucketedBackward::send_all() {
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) pending_[bucket] = send(bucket);
  wait();
}

void BucketedBackward::wait() {
  for (Pending& pending : pending_) pending.wait();
}

at::Tensor BucketedBackward::place_in(const std::vector<at::Tensor>& messages, size_t parameter,
                                      const at::Tensor& like) const {
  return messages[bucket_of_[parameter]].as_strided(like.sizes(), like.strides(),
                                                    offset_[parameter]);
}

at::TensorOptions BucketedBackward::kind(size_t bucket) const {
  return parameters_[buckets_[bucket].front()].second.options().requires_grad(false);
}

GradientReducer::GradientReducer(ProcessGroup& group, const NamedTensors& parameters,
                                 const BucketOptions& options)
    : BucketedBackward(parameters, options), group_(group), messages_(buckets().size()) {
  for (size_t bucket = 0; group_.size() > 1 && bucket < messages_.size(); ++bucket) {
    if (buckets()[bucket].size() > 1)
      messages_[bucket] = at::zeros({elements(bucket)}, kind(bucket));
  }
}

void GradientReducer::keep(size_t parameter) {
  if (!messages_[bucket_of_[parameter]].defined()) return;
  const at::Tensor place = place_in(messages_, parameter, gradient(parameter));
  place.copy_(gradient(parameter));
  gradient(parameter) = place;
}

Pending GradientReducer::send(size_t bucket) {
  if (group_.size() == 1) return {};
  const at::Tensor& message = messages_[bucket];
  return group_.all_reduce(message.defined() ? message
                                             : dense_values(gradient(buckets()[bucket].front())));
}

ShardedAdamW::ShardedAdamW(ProcessGroup& group, const NamedTensors& parameters,
                           const Variant& variant, const AdamWOptions& options,
                           const BucketOptions& bucket_options)
    : BucketedBackward(parameters, bucket_options), group_(group) {
  const at::NoGradGuard no_grad;
  NamedTensors shares;
  for (size_t bucket = 0; bucket < buckets().size(); ++bucket) {
    const int64_t share = (elements(bucket) + group_.size() - 1) / group_.size();
    // Zeros, so that what fills up the last share stays finite.
    const at::Tensor flat = at::zeros({share * group_.size()}, kind(bucket));
    flat_gradients_.push_back(at::zeros_like(flat));
    flat_parameters_.push_back(flat);
    for (const size_t parameter : buckets()[bucket])
      place_of(parameter, flat_parameters_).copy_(parameters_[parameter].second);
    gradient_shares_.push_back(at::empty({share}, kind(bucket)));
    shares_.push_back(flat.narrow(0, group_.rank() * share, share));
    shares_.back().mutable_grad() = gradient_shares_.back();
    shares.emplace_back(fmt::format("share of bucket {}", bucket), shares_.back());
  }
  optimizer_.emplace(shares, variant, options);
}

void ShardedAdamW::keep(size_t parameter) {
  const at::Tensor place = place_of(parameter, flat_gradients_);
  place.copy_(gradient(parameter));
  gradient(parameter) = place;
}

void ShardedAdamW::step() {
  const at::NoGradGuard no_grad;
  optimizer_->step();
  std::vector<Pending> gathered;
  for (size_t bucket = 0; bucket < flat_parameters_.size(); ++bucket)
    gathered.push_back(group_.all_gather(flat_parameters_[bucket], shares_[bucket]));
  // All of them before any parameter changes: a rank that is lost meanwhile leaves whole weights.
  for (Pending& one : gathered) one.wait();
  for (size_t bucket = 0; bucket < flat_parameters_.size(); ++bucket) {
    for (const size_t parameter : buckets()[bucket])
      parameters_[parameter].second.copy_(place_of(parameter, flat_parameters_));
  }
}

void ShardedAdamW::clear_gradients() {
  for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
}

}  // namespace tinyllama::distributed
