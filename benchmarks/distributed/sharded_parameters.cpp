#include "benchmarks/distributed/sharded_parameters.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StorageImpl.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <utility>

namespace tinyllama::distributed {
namespace {

// What allocators align tensors to, so that no kernel sees a difference.
constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// A block of memory of parameters: of one, or of several that layers multiply as one.
struct MemoryBlock {
  c10::Storage storage;
  int64_t bytes;
  int64_t offset;  // bytes, in the message
};

struct MessageLayout {
  std::vector<MemoryBlock> blocks;
  std::vector<size_t> block_of;  // by parameter
  int64_t share_bytes = 0;
};

MessageLayout layout_of(const NamedTensors& parameters, int ranks) {
  MessageLayout layout;
  int64_t filled = 0;
  for (const auto& [name, parameter] : parameters) {
    const c10::Storage& storage = parameter.storage();
    auto known = std::ranges::find_if(layout.blocks, [&](const MemoryBlock& block) {
      return block.storage.is_alias_of(storage);
    });
    if (known == layout.blocks.end()) {
      const auto bytes = static_cast<int64_t>(storage.nbytes());
      known = layout.blocks.insert(known, {storage, bytes, filled});
      filled += aligned(bytes);
    }
    layout.block_of.push_back(static_cast<size_t>(known - layout.blocks.begin()));
  }
  layout.share_bytes = aligned((filled + ranks - 1) / ranks);
  return layout;
}

// From now on `storage` is `bytes` of somebody else's memory, or none.
void point(const c10::Storage& storage, void* memory, int64_t bytes) {
  c10::StorageImpl* const impl = storage.unsafeGetStorageImpl();
  impl->set_data_ptr_noswap(c10::DataPtr(memory, impl->device()));
  impl->set_nbytes(static_cast<size_t>(bytes));
}

int64_t largest_parameter(const NamedTensors& part) {
  int64_t largest = 0;
  for (const auto& [name, parameter] : part)
    largest = std::max(largest, static_cast<int64_t>(parameter.nbytes()));
  return largest;
}

}  // namespace

ShardedBytes sharded_bytes(const std::vector<NamedTensors>& parts, int ranks) {
  std::vector<int64_t> wholes;
  ShardedBytes bytes;
  for (const NamedTensors& part : parts) {
    const int64_t share = layout_of(part, ranks).share_bytes;
    wholes.push_back(share * ranks);
    bytes.share += share;
    bytes.sent += 2 * wholes.back();
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool is_again = i > 0 && i + 1 < parts.size();
    if (is_again) bytes.sent += wholes[i];
    const int64_t before = i > 1 ? wholes[i - 1] : 0;
    const int64_t behind = i + 1 < parts.size() ? wholes[i + 1] : 0;
    const int64_t own = i > 0 ? 2 * wholes[i] : wholes[i];
    bytes.in_flight =
        std::max(bytes.in_flight, before + own + behind + largest_parameter(parts[i]));
    if (ranks > 1) bytes.copied = std::max(bytes.copied, before + wholes[i] + behind);
  }
  return bytes;
}

void refuse_sharded_parameters(const ModelConfig& config, Dtype dtype) {
  if (config.tied_embeddings()) {
    throw std::invalid_argument(
        "sharded parameters (zero3) with tied embeddings: the table would have to stay whole from "
        "the first part of the model to the last; take ddp or zero1, or another model");
  }
  if (uses_autocast(dtype)) {
    throw std::invalid_argument(fmt::format(
        "sharded parameters (zero3) with dtype {}: autocast keeps narrow copies of all weights "
        "from the forward to the backward, which would not be freed; take f32, bf16 or f16",
        to_string(dtype)));
  }
}

struct ShardedParameters::Part {
  NamedTensors parameters;
  MessageLayout layout;
  at::TensorOptions kind;
  int64_t share_elements = 0;
  at::Tensor share;    // [share]
  at::Tensor whole;    // [share x ranks] while it is gathered, or comes
  at::Tensor message;  // [share x ranks]: gradients, until they are summed
  at::Tensor sum;      // [share]: of this backward, likewise
  Pending gathering;
  Pending reduction;
  bool is_in_place = false;  // parameters are views of `whole`
  std::vector<bool> is_ready;
  size_t missing = 0;

  // A parameter's place in a message of the whole part, in its own order of elements.
  at::Tensor place_in(const at::Tensor& flat, size_t index) const {
    const at::Tensor& parameter = parameters[index].second;
    const int64_t offset = layout.blocks[layout.block_of[index]].offset;
    return flat.as_strided(
        parameter.sizes(), parameter.strides(),
        offset / static_cast<int64_t>(kind.dtype().itemsize()) + parameter.storage_offset());
  }
};

class ShardedParameters::Hook final : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(ShardedParameters& owner, size_t part, size_t parameter)
      : owner_(owner), part_(part), parameter_(parameter) {}
  void operator()(const at::Tensor&) override { owner_.on_gradient(part_, parameter_); }

 private:
  ShardedParameters& owner_;  // removes its hooks before it goes
  size_t part_;
  size_t parameter_;
};

ShardedParameters::ShardedParameters(ProcessGroup& group, TinyLlama& model, const Variant& variant,
                                     const AdamWOptions& options, bool overlap)
    : group_(group), model_(model), overlap_(overlap) {
  refuse_sharded_parameters(model.config(), model.dtype());
  const at::NoGradGuard no_grad;
  NamedTensors shares;
  for (NamedTensors& parameters : model.parts()) {
    Part part;
    part.parameters = std::move(parameters);
    part.layout = layout_of(part.parameters, group.size());
    part.kind = part.parameters.front().second.options().requires_grad(false);
    part.share_elements =
        part.layout.share_bytes / static_cast<int64_t>(part.kind.dtype().itemsize());
    // Zeros, so that what fills up the shares stays finite.
    const at::Tensor whole = at::zeros({part.share_elements * group.size()}, part.kind);
    for (size_t i = 0; i < part.parameters.size(); ++i)
      part.place_in(whole, i).copy_(part.parameters[i].second);
    part.share = whole.narrow(0, group.rank() * part.share_elements, part.share_elements).clone();
    for (const MemoryBlock& block : part.layout.blocks) point(block.storage, nullptr, 0);
    shares.emplace_back(fmt::format("share of part {}", parts_.size()), part.share);
    for (size_t i = 0; i < part.parameters.size(); ++i) {
      torch::autograd::impl::set_post_acc_grad_hooks(
          part.parameters[i].second, std::make_unique<Hook>(*this, parts_.size(), i));
    }
    parts_.push_back(std::move(part));
  }
  optimizer_.emplace(shares, variant, options);
  model.set_hooks(this);
}

ShardedParameters::~ShardedParameters() {
  model_.set_hooks(nullptr);
  for (Part& part : parts_) {
    for (const auto& [name, parameter] : part.parameters)
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
    for (const MemoryBlock& block : part.layout.blocks) point(block.storage, nullptr, 0);
  }
}

at::Tensor ShardedParameters::message_of(const Part& part) {
  at::Tensor message = at::empty({part.share_elements * group_.size()}, part.kind);
  sent_bytes_ += static_cast<int64_t>(message.nbytes());
  return message;
}

void ShardedParameters::start_gather(Part& part) {
  if (part.whole.defined()) return;
  part.whole = message_of(part);
  part.gathering = group_.all_gather(part.whole, part.share);
}

void ShardedParameters::gather(Part& part) {
  const at::NoGradGuard no_grad;
  start_gather(part);
  if (part.is_in_place) return;
  part.gathering.wait();
  auto* const memory = static_cast<char*>(part.whole.mutable_data_ptr());
  for (const MemoryBlock& block : part.layout.blocks)
    point(block.storage, memory + block.offset, block.bytes);
  part.is_in_place = true;
}

void ShardedParameters::release(Part& part) {
  part.gathering.wait();
  if (part.is_in_place) {
    for (const MemoryBlock& block : part.layout.blocks) point(block.storage, nullptr, 0);
    part.is_in_place = false;
  }
  part.whole.reset();
}

void ShardedParameters::release_parameters() {
  for (Part& part : parts_) release(part);
}

void ShardedParameters::before_part(size_t part) {
  gather(parts_.at(part));
  const at::NoGradGuard no_grad;
  if (overlap_ && part + 1 < parts_.size()) start_gather(parts_[part + 1]);
}

void ShardedParameters::after_part(size_t part, const at::Tensor& output) {
  const bool has_backward = at::GradMode::is_enabled() && output.requires_grad();
  // The last one is what the backward begins with.
  const bool stays = has_backward && part + 1 == parts_.size();
  if (!stays) release(parts_.at(part));
  if (!has_backward || part == 0) return;
  output.register_hook([this, part](const at::Tensor&) { before_backward(part); });
}

bool ShardedParameters::is_gathered_again(size_t part) const {
  return part > 0 && part + 1 < parts_.size();
}

void ShardedParameters::before_backward(size_t part) {
  gather(parts_[part]);
  const at::NoGradGuard no_grad;
  if (overlap_ && is_gathered_again(part - 1)) start_gather(parts_[part - 1]);
}

void ShardedParameters::begin() {
  for (Part& part : parts_) {
    part.is_ready.assign(part.parameters.size(), false);
    part.missing = part.parameters.size();
    part.message.reset();
    part.sum.reset();
  }
  reducing_ = nullptr;
}

void ShardedParameters::on_gradient(size_t index, size_t parameter) {
  Part& part = parts_[index];
  const auto& [name, tensor] = part.parameters[parameter];
  if (part.is_ready.at(parameter))
    throw std::logic_error(fmt::format("gradient {} was ready twice in one backward", name));
  const at::NoGradGuard no_grad;
  // Zeros where nothing comes.
  if (!part.message.defined()) part.message = message_of(part).zero_();
  part.place_in(part.message, parameter).copy_(tensor.grad());
  tensor.mutable_grad().reset();
  part.is_ready[parameter] = true;
  if (--part.missing == 0) reduce(part);
}

// All gradients of a part are there, so all that read its parameters has run.
void ShardedParameters::reduce(Part& part) {
  release(part);
  if (reducing_ != nullptr) settle(*reducing_);
  part.sum = at::empty({part.share_elements}, part.kind);
  part.reduction = group_.reduce_scatter(part.sum, part.message);
  reducing_ = &part;
  if (!overlap_) settle(part);
}

void ShardedParameters::settle(Part& part) {
  const at::NoGradGuard no_grad;
  part.reduction.wait();
  part.message.reset();
  if (!part.sum.defined()) return;
  at::Tensor& gradient = part.share.mutable_grad();
  if (gradient.defined()) {
    gradient.add_(part.sum);
    part.sum.reset();
  } else {
    gradient = std::move(part.sum);
  }
}

void ShardedParameters::finish() {
  for (const Part& part : parts_) {
    if (part.missing == 0) continue;
    throw std::logic_error(fmt::format(
        "{} of {} gradients of the part that begins with {} are missing after this backward, so "
        "they cannot be summed",
        part.missing, part.parameters.size(), part.parameters.front().first));
  }
  if (reducing_ != nullptr) settle(*reducing_);
  reducing_ = nullptr;
}

void ShardedParameters::backward(const std::function<void()>& plain) {
  begin();
  plain();
  finish();
}

void ShardedParameters::step() {
  release_parameters();
  optimizer_->step();
}

void ShardedParameters::clear_gradients() {
  optimizer_->clear_gradients();
  for (Part& part : parts_) {
    for (auto& [name, parameter] : part.parameters) parameter.mutable_grad().reset();
  }
}

void ShardedParameters::communicate() {
  release_parameters();
  for (Part& part : parts_) {
    gather(part);
    release(part);
  }
  for (size_t i = parts_.size(); i-- > 0;) {
    Part& part = parts_[i];
    if (is_gathered_again(i)) gather(part);
    release(part);
    group_.reduce_scatter(at::empty({part.share_elements}, part.kind), message_of(part).zero_())
        .wait();
  }
}

void ShardedParameters::gather_parameters() {
  for (Part& part : parts_) gather(part);
}

void ShardedParameters::gather_gradients() {
  const at::NoGradGuard no_grad;
  for (Part& part : parts_) {
    const at::Tensor whole = at::empty({part.share_elements * group_.size()}, part.kind);
    group_.all_gather(whole, part.share.grad()).wait();
    for (size_t i = 0; i < part.parameters.size(); ++i)
      part.parameters[i].second.mutable_grad() = part.place_in(whole, i).clone();
  }
}

}  // namespace tinyllama::distributed
