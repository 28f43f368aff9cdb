#include <ATen/ATen.h>

#include <cmath>

#include "benchmarks/kernels/kernel_cases.hpp"
#include "model/attention.hpp"

namespace tinyllama::kernel_benchmark {
namespace {

// As materialized_attention(), which scales its q in place: autograd forbids that of a leaf.
at::Tensor composed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& mask) {
  const int64_t batch = q.size(0), seq = q.size(1), heads = q.size(2), head_dim = q.size(3);
  const int64_t pairs = batch * k.size(2);
  const at::Tensor queries =
      (q / std::sqrt(static_cast<double>(head_dim))).transpose(1, 2).reshape({pairs, -1, head_dim});
  const at::Tensor keys = k.permute({0, 2, 3, 1}).reshape({pairs, head_dim, seq});
  const at::Tensor values = v.transpose(1, 2).reshape({pairs, seq, head_dim});
  const at::Tensor scores = at::bmm(queries, keys).add_(mask);
  const at::Tensor shares = at::softmax(scores, -1, c10::ScalarType::Float).to(q.scalar_type());
  return at::bmm(shares, values)
      .view({batch, heads, seq, head_dim})
      .transpose(1, 2)
      .reshape({batch, seq, -1});
}

}  // namespace

std::vector<KernelCase> attention_cases(KernelCase about, const ProblemSize& size, Dtype dtype) {
  about.kernel = "attention";
  const ModelConfig& config = size.config;
  const at::Tensor q = random({size.batch, size.seq, config.n_heads(), config.head_dim()}, dtype);
  const at::Tensor k =
      random({size.batch, size.seq, config.n_kv_heads(), config.head_dim()}, dtype);
  const at::Tensor mask = attention_mask(config, Variant(), size.seq, dtype, c10::kCPU);
  const auto of_q = static_cast<int64_t>(q.nbytes()), of_k = static_cast<int64_t>(k.nbytes());
  const auto contender = [mask](auto core) {
    return [mask, core](const Tensors& in) { return Tensors{core(in[0], in[1], in[2], mask)}; };
  };
  return both_passes(about, 2 * (of_q + of_k), 4 * (of_q + of_k), {q, k, random(k.sizes(), dtype)},
                     {random({size.batch, size.seq, config.hidden_dim()}, dtype)},
                     {{"own", contender(fused_attention)},
                      {"at::scaled_dot_product", contender(library_attention)},
                      {"composed", contender(composed_attention)}});
}

}  // namespace tinyllama::kernel_benchmark
