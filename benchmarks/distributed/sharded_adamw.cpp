#include "benchmarks/distributed/sharded_adamw.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

namespace tinyllama::distributed {

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

int64_t ShardedAdamW::moment_elements() const {
  int64_t elements = 0;
  for (const auto& [name, moment] : optimizer_->first_moments()) elements += 2 * moment.numel();
  return elements;
}

}  // namespace tinyllama::distributed
