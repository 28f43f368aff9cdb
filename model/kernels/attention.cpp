#include "model/kernels/kernels.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include "model/kernels/launch.hpp"

namespace tinyllama::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  check_on_cpu(q, "q");
  TORCH_CHECK_VALUE(q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes() &&
                        q.size(0) == k.size(0) && q.size(1) == k.size(1) && q.size(3) == k.size(3),
                    "causal_attention: q ", q.sizes(), ", k ", k.sizes(), ", v ", v.sizes(),
                    ": must be [B, S, heads, head_dim] of one B, S and head_dim");
  TORCH_CHECK_VALUE(k.size(2) > 0 && q.size(2) % k.size(2) == 0, "causal_attention: ", q.size(2),
                    " query heads: must be a multiple of the ", k.size(2), " KV heads");
  check_type(k, "k", q, "q");
  check_type(v, "v", q, "q");
}

at::Tensor with_dense_heads(const at::Tensor& x) {
  return x.stride(-1) == 1 ? x : x.contiguous();
}

template <class T>
HeadsView<const T> const_view(const at::Tensor& x) {
  return {const_data<T>(x), x.stride(0), x.stride(1), x.stride(2)};
}
template <class T>
HeadsView<T> view(const at::Tensor& x) {
  return {data<T>(x), x.stride(0), x.stride(1), x.stride(2)};
}

// Units of (B, KV head, ...) over all threads, each with its scratch memory.
template <class T, class Task>
void run_units(int64_t units, int64_t scratch_elements, c10::ScalarType type, c10::Device device,
               void (*kernel)(const Task&, ComputeType<T>*, int64_t, int64_t), const Task& task) {
  // From the tensors' allocator, so that peak memory tells the truth about scratch as well.
  const int64_t threads = std::min<int64_t>(units, at::get_num_threads());
  const at::Tensor scratch =
      uninitialized({threads, scratch_elements}, at_least_float(type), device);
  if (device.is_meta()) return;
  auto* elements = data<ComputeType<T>>(scratch);
  at::parallel_for(0, units, 1, [&](int64_t begin, int64_t end) {
    kernel(task, elements + at::get_thread_num() * scratch_elements, begin, end);
  });
}

struct CausalAttention : torch::autograd::Function<CausalAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& given_q,
                            const at::Tensor& given_k, const at::Tensor& given_v, double scale,
                            int64_t window) {
    const at::Tensor q = with_dense_heads(given_q);
    const at::Tensor k = with_dense_heads(given_k);
    const at::Tensor v = with_dense_heads(given_v);
    RECORD_FUNCTION("tinyllama::causal_attention",
                    (std::vector<c10::IValue>{q, k, v, scale, window}));
    const int64_t batch = q.size(0), seq = q.size(1), heads = q.size(2), head_dim = q.size(3);
    const auto type = q.scalar_type();
    at::Tensor out = uninitialized({batch, seq, heads, head_dim}, type, q.device());
    const at::Tensor log_sum_exp =
        uninitialized({batch, heads, seq}, at_least_float(type), q.device());
    with_range_kernels(type, [&]<class T>(const RangeKernelsOf<T>& kernels) {
      const AttentionRows<T> task{const_view<T>(q),
                                  const_view<T>(k),
                                  const_view<T>(v),
                                  data<T>(out),
                                  data<ComputeType<T>>(log_sum_exp),
                                  seq,
                                  heads,
                                  k.size(2),
                                  head_dim,
                                  window,
                                  scale};
      run_units<T>(batch * k.size(2) * attention_query_parts(seq), kernels.attention_scratch(task),
                   type, q.device(), kernels.attention, task);
    });
    context->save_for_backward({q, k, v, out, log_sum_exp});
    context->saved_data["scale"] = scale;
    context->saved_data["window"] = window;
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    RECORD_FUNCTION("tinyllama::causal_attention_backward",
                    (std::vector<c10::IValue>{q, k, v, context->saved_data["scale"],
                                              context->saved_data["window"]}));
    const at::Tensor gradient = gradients[0].contiguous();
    variable_list results{uninitialized_as(q), uninitialized_as(k), uninitialized_as(v), {}, {}};
    with_range_kernels(q.scalar_type(), [&]<class T>(const RangeKernelsOf<T>& kernels) {
      const AttentionGradientRows<T> task{const_view<T>(q),
                                          const_view<T>(k),
                                          const_view<T>(v),
                                          const_data<T>(saved[3]),
                                          const_data<T>(gradient),
                                          const_data<ComputeType<T>>(saved[4]),
                                          view<T>(results[0]),
                                          view<T>(results[1]),
                                          view<T>(results[2]),
                                          q.size(1),
                                          q.size(2),
                                          k.size(2),
                                          q.size(3),
                                          context->saved_data["window"].toInt(),
                                          context->saved_data["scale"].toDouble()};
      run_units<T>(q.size(0) * k.size(2), kernels.attention_gradient_scratch(task), q.scalar_type(),
                   q.device(), kernels.attention_gradient, task);
    });
    return results;
  }
};

}  // namespace

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            double scale, int64_t window) {
  check(q, k, v);
  TORCH_CHECK_VALUE(window > 0, "causal_attention: a window of ", window,
                    " positions: must be at least 1");
  return CausalAttention::apply(q, k, v, scale, window);
}

int64_t causal_attention_scores(int64_t seq, int64_t window) {
  int64_t scores = 0;
  for (int64_t first = 0; first < seq; first += kAttentionQueryTile) {
    const int64_t rows = std::min(kAttentionQueryTile, seq - first);
    scores += rows * (first + rows - std::max<int64_t>(0, first + 1 - window));
  }
  return scores;
}

}  // namespace tinyllama::kernels
