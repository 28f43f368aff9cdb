#include "benchmarks/distributed/tensor_parallel.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "model/loss.hpp"
#include "model/share.hpp"

namespace tinyllama::distributed {
namespace {

[[noreturn]] void refuse(const char* name, int64_t value, int ranks) {
  throw std::invalid_argument(
      fmt::format("{} {} over {} ranks (tensor): must be a multiple of the ranks; start as many as "
                  "divide it, or take another model",
                  name, value, ranks));
}

// The only dimension in which the share is smaller; nothing where each rank has all.
std::optional<int64_t> divided_dimension(const at::Tensor& whole, const at::Tensor& share) {
  for (int64_t dim = 0; dim < whole.dim(); ++dim) {
    if (whole.size(dim) != share.size(dim)) return dim;
  }
  return {};
}

}  // namespace

ModelConfig tensor_share(const ModelConfig& whole, int rank, int ranks) {
  if (ranks == 1) return whole;
  const std::pair<const char*, int64_t> divided[] = {
      {"n_heads", whole.n_heads()},
      {"n_kv_heads", whole.n_kv_heads()},
      {"intermediate_dim", whole.intermediate_dim()}};
  for (const auto& [name, value] : divided) {
    if (value % ranks != 0) refuse(name, value, ranks);
  }
  const std::pair<const char*, bool> features[] = {
      {"o_bias", whole.o_bias()}, {"mlp_bias", whole.mlp_bias()}, {"qk_norm", whole.qk_norm()}};
  for (const auto& [name, is_there] : features) {
    if (!is_there) continue;
    throw std::invalid_argument(
        fmt::format("{} over {} ranks (tensor): each rank would have it whole and a share of its "
                    "gradients, which is not supported; take another model, or ddp, zero1 or zero3",
                    name, ranks));
  }
  ModelDimensions share = share_of(whole, {.tensor = ranks}).dimensions();
  if ((ranks - 1) * share.vocab_size >= whole.vocab_size()) {
    throw std::invalid_argument(
        fmt::format("vocab_size {} over {} ranks (tensor): leaves the last rank none, since shares "
                    "are rounded up to {}; start fewer ranks or take another model",
                    whole.vocab_size(), ranks, share.vocab_size));
  }
  share.padding_token.reset();
  if (whole.padding_token()) {
    const int64_t row = *whole.padding_token() - rank * share.vocab_size;
    if (row >= 0 && row < share.vocab_size) share.padding_token = row;
  }
  return ModelConfig(share);
}

void refuse_tensor_parallel(Dtype dtype) {
  if (dtype != Dtype::amp_f16) return;
  throw std::invalid_argument(
      "dtype amp_f16 with tensor parallelism: whether a step is skipped is decided on all "
      "gradients, and a rank has a share of them only; take amp_bf16");
}

void copy_share(const NamedTensors& whole, const NamedTensors& share, int rank) {
  const at::NoGradGuard no_grad;
  if (whole.size() != share.size())
    throw std::logic_error("a share has other parameters than the whole model");
  for (size_t i = 0; i < share.size(); ++i) {
    const at::Tensor& from = whole[i].second;
    const at::Tensor& to = share[i].second;
    const auto dim = divided_dimension(from, to);
    if (!dim) {
      to.copy_(from);
      continue;
    }
    const int64_t first = rank * to.size(*dim);
    const int64_t count = std::min(to.size(*dim), from.size(*dim) - first);
    to.zero_();
    to.narrow(*dim, 0, count).copy_(from.narrow(*dim, first, count));
  }
}

std::vector<at::Tensor> join_shares(ProcessGroup& group, const NamedTensors& whole,
                                    const std::vector<at::Tensor>& shares) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> joined;
  for (size_t i = 0; i < whole.size(); ++i) {
    const at::Tensor& like = whole[i].second;
    const at::Tensor mine = shares.at(i).contiguous();
    const auto dim = divided_dimension(like, mine);
    joined.push_back(at::empty(like.sizes(), mine.options().requires_grad(false)));
    if (!dim) {
      joined.back().copy_(mine);
      continue;
    }
    const at::Tensor all = at::empty({group.size(), mine.numel()}, joined.back().options());
    group.all_gather(all.view(-1), mine.view(-1)).wait();
    const int64_t size = mine.size(*dim);
    for (int rank = 0; rank < group.size(); ++rank) {
      const int64_t first = rank * size;
      const int64_t count = std::min(size, like.size(*dim) - first);
      joined.back()
          .narrow(*dim, first, count)
          .copy_(all[rank].view(mine.sizes()).narrow(*dim, 0, count));
    }
  }
  return joined;
}

TensorParallel::TensorParallel(ProcessGroup& group, const ModelConfig& whole)
    : group_(group),
      share_rows_((whole.vocab_size() + group.size() - 1) / group.size()),
      first_row_(group.rank() * share_rows_),
      own_rows_(std::min(share_rows_, whole.vocab_size() - first_row_)) {}

int64_t TensorParallel::bytes() const {
  int64_t sum = 0;
  for (const Message& message : sent_)
    sum += message.elements * static_cast<int64_t>(message.kind.dtype().itemsize());
  return sum;
}

void TensorParallel::all_reduce(const at::Tensor& values, Reduction reduction) {
  if (!is_connected_) return;
  sent_.push_back({values.numel(), values.options().requires_grad(false), reduction});
  const at::Tensor dense = dense_values(values.detach());
  (reduction == Reduction::sum ? group_.all_reduce(dense) : group_.all_reduce_largest(dense))
      .wait();
}

void TensorParallel::communicate() {
  for (const auto& [elements, kind, reduction] : sent_) {
    const at::Tensor values = at::zeros({elements}, kind);
    (reduction == Reduction::sum ? group_.all_reduce(values) : group_.all_reduce_largest(values))
        .wait();
  }
}

at::Tensor TensorParallel::to_shares(const at::Tensor& x) {
  if (!x.requires_grad()) return x;
  // Of its own, so that the gradient is of what the shares alone read.
  at::Tensor read = at::alias(x);
  read.register_hook([this](const at::Tensor& gradient) {
    const at::NoGradGuard no_grad;
    at::Tensor sum = gradient.clone(c10::MemoryFormat::Contiguous);
    all_reduce(sum, Reduction::sum);
    return sum;
  });
  return read;
}

// In place: who computed it does not read it again, and its gradient is that of the sum.
at::Tensor TensorParallel::from_shares(const at::Tensor& x) {
  all_reduce(x, Reduction::sum);
  return x;
}

at::Tensor TensorParallel::own_rows(const at::Tensor& tokens) {
  const at::Tensor rows = tokens - first_row_;
  return at::where(rows.lt(0), share_rows_, rows);
}

// log(sum of exp(logits)) - the target's logit, both relative to the largest logit of the token.
at::Tensor TensorParallel::loss(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor own = logits.reshape({-1, share_rows_})
                             .narrow(-1, 0, own_rows_)
                             .to(at_least_float(logits.scalar_type()));
  const at::Tensor flat = targets.reshape(-1);  // [T]
  const at::Tensor largest = own.detach().amax(-1);
  all_reduce(largest, Reduction::largest);
  const at::Tensor relative = own - largest.unsqueeze(-1);
  const at::Tensor exponentials = from_shares(relative.exp().sum(-1));
  const at::Tensor rows = flat - first_row_;
  const at::Tensor is_others = rows.lt(0).logical_or(rows.ge(own_rows_));
  const at::Tensor scores =
      from_shares(relative.gather(1, rows.masked_fill(is_others, 0).unsqueeze(1))
                      .squeeze(1)
                      .masked_fill(is_others, 0));
  const at::Tensor losses = (exponentials.log() - scores).masked_fill(flat.eq(kIgnoredTarget), 0);
  return losses.sum() / flat.ne(kIgnoredTarget).sum().to(losses.scalar_type());
}

}  // namespace tinyllama::distributed
