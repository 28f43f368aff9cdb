#include "model/share_hooks.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "model/loss.hpp"
#include "model/share.hpp"

namespace tinyllama {
namespace {

[[noreturn]] void refuse(const char* name, int64_t value, int64_t ranks) {
  throw std::invalid_argument(
      fmt::format("{} {} over {} ranks (tensor): must be a multiple of the ranks; start as many as "
                  "divide it, or take another model",
                  name, value, ranks));
}

}  // namespace

ModelConfig tensor_share(const ModelConfig& whole, int64_t rank, int64_t ranks) {
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

ShareHooks::ShareHooks(int64_t rank, int64_t ranks, int64_t vocab_size)
    : share_rows_((vocab_size + ranks - 1) / ranks),
      first_row_(rank * share_rows_),
      own_rows_(std::min(share_rows_, vocab_size - first_row_)) {}

at::Tensor ShareHooks::to_shares(const at::Tensor& x) {
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
at::Tensor ShareHooks::from_shares(const at::Tensor& x) {
  all_reduce(x, Reduction::sum);
  return x;
}

at::Tensor ShareHooks::own_rows(const at::Tensor& tokens) {
  const at::Tensor rows = tokens - first_row_;
  return rows.masked_fill(rows.lt(0), share_rows_);
}

// log(sum of exp(logits)) - the target's logit, both relative to the largest logit of the token.
at::Tensor ShareHooks::loss(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor own = logits.reshape({-1, share_rows_})
                             .narrow(-1, 0, own_rows_)
                             .to(at_least_float(logits.scalar_type()));
  const at::Tensor flat = targets.reshape(-1);  // [T]
  const at::Tensor largest = own.detach().amax(-1);
  all_reduce(largest, Reduction::largest);
  const at::Tensor relative = own - largest.unsqueeze(-1);
  const at::Tensor exponentials = from_shares(relative.exp().sum(-1));
  const at::Tensor rows = flat - first_row_;
  const at::Tensor is_others = rows.lt(0).bitwise_or(rows.ge(own_rows_));
  const at::Tensor scores =
      from_shares(relative.gather(1, rows.masked_fill(is_others, 0).unsqueeze(1))
                      .squeeze(1)
                      .masked_fill(is_others, 0));
  const at::Tensor losses = (exponentials.log() - scores).masked_fill(flat.eq(kIgnoredTarget), 0);
  return losses.sum() / flat.ne(kIgnoredTarget).sum().to(losses.scalar_type());
}

}  // namespace tinyllama
