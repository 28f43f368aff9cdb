#include "benchmarks/distributed/tensor_parallel.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <stdexcept>

namespace tinyllama::distributed {
namespace {

// The only dimension in which the share is smaller; nothing where each rank has all.
std::optional<int64_t> divided_dimension(const at::Tensor& whole, const at::Tensor& share) {
  for (int64_t dim = 0; dim < whole.dim(); ++dim) {
    if (whole.size(dim) != share.size(dim)) return dim;
  }
  return {};
}

}  // namespace

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
    : ShareHooks(group.rank(), group.size(), whole.vocab_size()), group_(group) {}

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

}  // namespace tinyllama::distributed
