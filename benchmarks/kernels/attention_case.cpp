#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "benchmarks/kernels/kernel_cases.hpp"
#include "model/kernels/attention.hpp"

namespace tinyllama::kernel_benchmark {
namespace {

double scale_of(const at::Tensor& q) {
  return 1 / std::sqrt(static_cast<double>(q.size(-1)));
}

at::Tensor library_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return at::scaled_dot_product_attention(
             q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), /*attn_mask=*/{},
             /*dropout_p=*/0.0, /*is_causal=*/true, scale_of(q), /*enable_gqa=*/true)
      .transpose(1, 2)
      .contiguous();
}

// Products and softmax of the library with a score matrix between them, as model/attention_core.cpp
// has it; mask [heads of a KV head x S, S].
at::Tensor composed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& mask) {
  const int64_t batch = q.size(0), seq = q.size(1), heads = q.size(2), head_dim = q.size(3);
  const int64_t pairs = batch * k.size(2);
  const at::Tensor queries = (q * scale_of(q)).transpose(1, 2).reshape({pairs, -1, head_dim});
  const at::Tensor keys = k.permute({0, 2, 3, 1}).reshape({pairs, head_dim, seq});
  const at::Tensor values = v.transpose(1, 2).reshape({pairs, seq, head_dim});
  const at::Tensor scores = at::bmm(queries, keys).add_(mask);
  const at::Tensor shares = at::softmax(scores, -1, c10::ScalarType::Float).to(q.scalar_type());
  return at::bmm(shares, values).view({batch, heads, seq, head_dim}).transpose(1, 2).contiguous();
}

}  // namespace

std::vector<KernelCase> attention_cases(KernelCase about, const Shape& s, c10::ScalarType type) {
  about.kernel = "attention";
  const at::Tensor q = random({s.batch, s.seq, s.n_heads, s.head_dim()}, type);
  const at::Tensor k = random({s.batch, s.seq, s.n_kv_heads, s.head_dim()}, type);
  const at::Tensor mask = at::full({s.seq, s.seq}, -std::numeric_limits<float>::infinity())
                              .triu(1)
                              .to(type)
                              .repeat({s.n_heads / s.n_kv_heads, 1});
  const auto of_q = static_cast<int64_t>(q.nbytes()), of_k = static_cast<int64_t>(k.nbytes());
  return both_passes(
      about, 2 * (of_q + of_k), 4 * (of_q + of_k), {q, k, random(k.sizes(), type)},
      {random(q.sizes(), type)},
      {{"own",
        [](const Tensors& in) {
          return Tensors{kernels::causal_attention(in[0], in[1], in[2], scale_of(in[0]))};
        }},
       {"at::scaled_dot_product",
        [](const Tensors& in) { return Tensors{library_attention(in[0], in[1], in[2])}; }},
       {"composed", [mask](const Tensors& in) {
          return Tensors{composed_attention(in[0], in[1], in[2], mask)};
        }}});
}

}  // namespace tinyllama::kernel_benchmark
