#include "benchmarks/distributed/gradient_reducer.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <unordered_map>
#include <utility>

#include "benchmarks/distributed/make_reducer.hpp"

namespace tinyllama::distributed {
namespace {

int64_t first_bucket_bytes(int64_t bucket_bytes) {
  return std::min(int64_t{c10d::kDefaultFirstBucketBytes}, bucket_bytes);
}

}  // namespace

GradientBuckets plan_buckets(const NamedTensors& parameters, int64_t bucket_bytes) {
  if (bucket_bytes < 1)
    throw std::invalid_argument(
        fmt::format("bucket of {} bytes: must be at least 1", bucket_bytes));
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> indices(parameters.size());
  std::iota(indices.rbegin(), indices.rend(), int64_t{0});
  for (const int64_t index : indices)
    tensors.push_back(parameters[static_cast<size_t>(index)].second);
  const std::vector<size_t> limits = {static_cast<size_t>(first_bucket_bytes(bucket_bytes)),
                                      static_cast<size_t>(bucket_bytes)};
  return std::get<0>(c10d::compute_bucket_assignment_by_size(tensors, limits, {}, indices));
}

std::vector<int64_t> message_bytes(const NamedTensors& parameters, const BucketOptions& options) {
  std::vector<int64_t> bytes;
  for (const auto& bucket : plan_buckets(parameters, options.bucket_bytes)) {
    bytes.push_back(0);
    for (const size_t index : bucket) {
      const at::Tensor& parameter = parameters.at(index).second;
      const c10::ScalarType type = options.compress.value_or(parameter.scalar_type());
      bytes.back() += parameter.numel() * static_cast<int64_t>(c10::elementSize(type));
    }
  }
  return bytes;
}

ShardedAdamWBytes sharded_adamw_bytes(const NamedTensors& parameters, int ranks,
                                      int64_t bucket_bytes) {
  ShardedAdamWBytes bytes;
  std::vector<int64_t> wholes;
  for (const auto& bucket : plan_buckets(parameters, bucket_bytes)) {
    int64_t elements = 0;
    for (const size_t parameter : bucket) elements += parameters[parameter].second.numel();
    const auto size = static_cast<int64_t>(parameters[bucket.front()].second.element_size());
    const int64_t share = (elements + ranks - 1) / ranks * size;
    bytes.gradients += elements * size;
    bytes.share += share;
    wholes.push_back(share * ranks);
    bytes.flat += wholes.back();
  }
  std::ranges::sort(wholes, std::greater());
  bytes.largest = wholes.front();
  if (wholes.size() > 1) bytes.next = wholes[1];
  return bytes;
}

// What the Reducer calls with each bucket, in their order, and again for what has become of it.
// c10d's own hooks know no bf16, and none waits for the end of the backward. Sums, no means: each
// rank's loss is its share of the mean already.
class GradientReducer::Hook final : public c10d::CommHookInterface {
 public:
  Hook(Send send, const BucketOptions& options)
      : send_(std::move(send)),
        compress_(options.compress),
        overlap_(options.overlap),
        ended_(c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get())) {
    ended_->markCompleted();
  }

  // Not every operation of Gloo has a future; parseHookResult waits, and names a lost rank.
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    add(bucket);
    if (overlap_) start(messages_.size() - 1);
    return ended_;
  }

  at::Tensor parseHookResult(const c10::IValue&) override {
    Message& message = messages_.at(received_++);
    receive(message);
    return message.gradients;
  }

  void add(const c10d::GradBucket& bucket) {
    messages_.push_back({bucket.getBuffer(), at::Tensor(), Pending()});
  }

  void send_all() {
    const at::NoGradGuard no_grad;
    for (size_t bucket = 0; bucket < messages_.size(); ++bucket) start(bucket);
    for (Message& message : messages_) receive(message);
  }

  void clear() {
    messages_.clear();
    received_ = 0;
  }

  void set_overlap(bool overlap) { overlap_ = overlap; }
  bool overlap() const { return overlap_; }

 private:
  struct Message {
    at::Tensor gradients;  // the bucket
    at::Tensor sent;       // the same, or a compressed copy; undefined before it is sent
    Pending pending;
  };

  void start(size_t bucket) {
    Message& message = messages_[bucket];
    message.sent = compress_ ? message.gradients.to(*compress_) : message.gradients;
    message.pending = send_(bucket, message.sent);
  }

  static void receive(Message& message) {
    message.pending.wait();
    if (message.sent.defined() && !message.sent.is_same(message.gradients))
      message.gradients.copy_(message.sent);
  }

  Send send_;
  std::optional<c10::ScalarType> compress_;
  bool overlap_;
  c10::intrusive_ptr<c10::ivalue::Future> ended_;
  std::vector<Message> messages_;  // by bucket
  size_t received_ = 0;
};

GradientReducer::GradientReducer(ProcessGroup& group, const NamedTensors& parameters,
                                 const BucketOptions& options, Send send)
    : group_(group), may_rebuild_(!send && group.size() > 1) {
  if (!send) send = [&group](size_t, const at::Tensor& sums) { return group.all_reduce(sums); };
  std::vector<at::Tensor> tensors;
  std::unordered_map<size_t, std::string> names;
  for (const auto& [name, tensor] : parameters) {
    names[tensors.size()] = name;
    tensors.push_back(tensor);
  }
  reducer_ = make_reducer(tensors, plan_buckets(parameters, options.bucket_bytes),
                          group.for_reducer(), std::vector<bool>(tensors.size(), false),
                          options.bucket_bytes, /*find_unused_parameters=*/false,
                          /*gradient_as_bucket_view=*/true, names,
                          first_bucket_bytes(options.bucket_bytes),
                          /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false);
  auto hook = std::make_unique<Hook>(std::move(send), options);
  hook_ = hook.get();
  reducer_->register_comm_hook(std::move(hook));
}

GradientReducer::~GradientReducer() = default;

void GradientReducer::set_overlap(bool overlap) {
  hook_->set_overlap(overlap);
}

void GradientReducer::backward(const std::function<void()>& plain) {
  hook_->clear();
  if (may_rebuild_ && reducer_->should_rebuild_buckets())
    group_.attempt("cutting the buckets anew", [this] { reducer_->rebuild_buckets(); });
  reducer_->prepare_for_backward({});
  plain();
  reducer_->check_finalized();
  if (!hook_->overlap()) hook_->send_all();
  hook_->clear();
}

void GradientReducer::send_all() {
  for (const c10d::GradBucket& bucket : reducer_->get_grad_buckets(/*return_zero_tensors=*/false))
    hook_->add(bucket);
  hook_->send_all();
  hook_->clear();
}

ShardedAdamW::ShardedAdamW(ProcessGroup& group, const NamedTensors& parameters,
                           const Variant& variant, const AdamWOptions& options,
                           const BucketOptions& buckets)
    : group_(group),
      parameters_(parameters),
      places_(parameters.size()),
      reducer_(group, parameters, buckets, [this](size_t bucket, const at::Tensor& message) {
        return scatter(bucket, message);
      }) {
  const at::NoGradGuard no_grad;
  NamedTensors shares;
  for (const auto& bucket : plan_buckets(parameters, buckets.bucket_bytes)) {
    int64_t elements = 0;
    for (const size_t parameter : bucket) elements += parameters[parameter].second.numel();
    const int64_t share = (elements + group.size() - 1) / group.size();
    const auto kind = parameters[bucket.front()].second.options().requires_grad(false);
    // Zeros, so that what fills up the last share stays finite.
    const at::Tensor flat = at::zeros({share * group.size()}, kind);
    int64_t offset = 0;
    for (const size_t index : bucket) {
      const at::Tensor& parameter = parameters[index].second;
      places_[index] = flat.as_strided(parameter.sizes(), parameter.strides(), offset);
      places_[index].copy_(parameter);
      offset += parameter.numel();
    }
    flat_parameters_.push_back(flat);
    shares_.push_back(flat.narrow(0, group.rank() * share, share));
    shares_.back().mutable_grad() = at::empty({share}, kind);
    shares.emplace_back(fmt::format("share of bucket {}", shares.size()), shares_.back());
  }
  optimizer_.emplace(shares, variant, options);
}

Pending ShardedAdamW::scatter(size_t bucket, const at::Tensor& message) {
  const int64_t padding = flat_parameters_[bucket].numel() - message.numel();
  return group_.reduce_scatter(shares_[bucket].mutable_grad(),
                               padding == 0 ? message : at::constant_pad_nd(message, {0, padding}));
}

void ShardedAdamW::step() {
  const at::NoGradGuard no_grad;
  optimizer_->step();
  std::vector<Pending> gathered;
  for (size_t bucket = 0; bucket < flat_parameters_.size(); ++bucket)
    gathered.push_back(group_.all_gather(flat_parameters_[bucket], shares_[bucket]));
  // All of them before any parameter changes: a rank that is lost meanwhile leaves whole weights.
  for (Pending& one : gathered) one.wait();
  for (size_t index = 0; index < parameters_.size(); ++index)
    parameters_[index].second.copy_(places_[index]);
}

void ShardedAdamW::clear_gradients() {
  for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
}

}  // namespace tinyllama::distributed
