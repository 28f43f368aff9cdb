#include "benchmarks/distributed/gradient_reducer.hpp"

#include <ATen/ops/zeros.h>

namespace tinyllama::distributed {

GradientReducer::GradientReducer(ProcessGroup& group, const NamedTensors& parameters,
                                 const BucketOptions& options)
    : group_(group),
      parameters_(parameters),
      backward_(
          parameters, options, [this](size_t parameter) { keep(parameter); },
          [this](size_t bucket) { return send(bucket); }),
      messages_(backward_.buckets().size()) {
  if (group_.size() == 1) return;
  for (size_t bucket = 0; bucket < messages_.size(); ++bucket) {
    const std::vector<size_t>& members = backward_.buckets()[bucket];
    if (members.size() == 1) continue;
    const at::Tensor& like = parameters_[members.front()].second;
    messages_[bucket] =
        at::zeros({backward_.elements(bucket)}, like.options().requires_grad(false));
  }
}

void GradientReducer::keep(size_t parameter) {
  if (!messages_[backward_.bucket_of(parameter)].defined()) return;
  at::Tensor& gradient = parameters_[parameter].second.mutable_grad();
  const at::Tensor place = backward_.place_in(messages_, parameter, gradient);
  place.copy_(gradient);
  gradient = place;
}

Pending GradientReducer::send(size_t bucket) {
  if (group_.size() == 1) return {};
  const at::Tensor& message = messages_[bucket];
  if (message.defined()) return group_.all_reduce(message);
  const size_t only = backward_.buckets()[bucket].front();
  return group_.all_reduce(dense_values(parameters_[only].second.grad()));
}

}  // namespace tinyllama::distributed
