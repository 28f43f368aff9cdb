#include "model/loss.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <stdexcept>

#include "model/component_range.hpp"
#include "model/kernels/kernels.hpp"
#include "model/meta_device.hpp"

namespace tinyllama {

at::Tensor next_token_targets(const at::Tensor& tokens) {
  const int64_t seq = tokens.size(1);
  if (seq < 2) {
    throw std::invalid_argument(
        fmt::format("seq = {}: the next-token loss needs at least 2 tokens a sample", seq));
  }
  return at::constant_pad_nd(tokens.narrow(1, 1, seq - 1), {0, 1}, kIgnoredTarget);
}

at::Tensor next_token_loss(const at::Tensor& logits, const at::Tensor& targets) {
  const auto wide_type = at_least_float(logits.scalar_type());
  return at::cross_entropy_loss(logits.view({-1, logits.size(-1)}).to(wide_type), targets.view(-1),
                                /*weight=*/{}, at::Reduction::Mean, kIgnoredTarget);
}

LmHead::LmHead(const ModelConfig& config, const Variant& variant, TensorInitializer& initializer)
    : LmHead(config.tied_embeddings()
                 ? Linear(initializer.normal_parameter({config.vocab_size(), config.hidden_dim()}),
                          variant)
                 : Linear(config.hidden_dim(), config.vocab_size(), variant, initializer),
             config, variant) {}

LmHead::LmHead(const at::Tensor& weight, const ModelConfig& config, const Variant& variant)
    : LmHead(Linear(weight, variant), config, variant) {}

LmHead::LmHead(Linear projection, const ModelConfig& config, const Variant& variant)
    : projection_(std::move(projection)),
      is_share_(config.has_vocabulary_share()),
      gemm_(variant),
      fused_loss_(variant.has(Switch::fused_loss)),
      operator_(copy_of(variant.filling(Slot::linear_cross_entropy))) {}

at::Tensor LmHead::forward(const at::Tensor& hidden_states) const {
  const ComponentRange range("loss/lm_head");
  return projection_.forward(hidden_states);
}

at::Tensor LmHead::loss(const at::Tensor& hidden_states, const at::Tensor& all_targets) const {
  const at::Tensor targets = is_share_
                                 ? all_targets.remainder(projection_.weight().size(0))
                                       .masked_fill(all_targets.eq(kIgnoredTarget), kIgnoredTarget)
                                 : all_targets;
  if (fused_loss_) {
    const ComponentRange range("loss/fused");
    return fused_loss(hidden_states, projection_.weight(), targets, gemm_);
  }
  if (operator_) {
    const ComponentRange range("loss/fused");
    const auto type = gemm_type(hidden_states);
    return (*operator_)({hidden_states.reshape({-1, hidden_states.size(-1)}).to(type),
                         projection_.weight().to(type), targets.reshape(-1), kIgnoredTarget})
        .front();
  }
  const at::Tensor logits = forward(hidden_states);
  const ComponentRange range("loss/cross_entropy");
  return next_token_loss(logits, targets);
}

NamedTensors LmHead::parameters(const std::string& prefix) const {
  return {{prefix + "weight", projection_.weight()}};
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The chunks of one batch: each adds its losses, and its part of the gradients where they are
// wanted. Gradients are those of the sum of the losses, of order 1, so that narrow types hold them.
class ChunkedLoss {
 public:
  ChunkedLoss(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
              const Gemm& gemm, bool with_gradients)
      : x_(x), weight_(weight), targets_(targets), gemm_(gemm) {
    const auto options = weight.options().dtype(at_least_float(weight.scalar_type()));
    loss_sum = at::zeros({}, options);
    if (with_gradients) {
      input_gradient = at::empty_like(x);
      // In the weight's own order, so that it need not be copied when it is stored.
      weight_gradient = at::zeros_like(weight, options, c10::MemoryFormat::Preserve);
    }
  }

  void run() {
    const int64_t tokens = x_.size(0);
    const auto device = is_on_gpu(x_) ? c10::DeviceType::CUDA : c10::DeviceType::CPU;
    const int64_t chunk = fused_loss_chunk(tokens, weight_.size(0), device);
    for (int64_t first = 0; first < tokens; first += chunk)
      add(first, std::min(chunk, tokens - first));
  }

  at::Tensor loss_sum;
  at::Tensor input_gradient;   // [T, D]
  at::Tensor weight_gradient;  // [V, D], at least float32

 private:
  void add(int64_t first, int64_t count) {
    const at::Tensor x = x_.narrow(0, first, count);
    const at::Tensor targets = targets_.narrow(0, first, count);
    at::Tensor logits = gemm_.forward(x, weight_);
    if (!input_gradient.defined()) {
      loss_sum.add_(kernels::cross_entropy_losses(logits, targets, kIgnoredTarget).sum());
      return;
    }
    loss_sum.add_(kernels::cross_entropy_rows_(logits, targets, kIgnoredTarget).sum());
    input_gradient.narrow(0, first, count).copy_(gemm_.input_gradient(logits, weight_));
    gemm_.add_weight_gradient(weight_gradient, logits, x);
  }

  at::Tensor x_;
  at::Tensor weight_;
  at::Tensor targets_;
  Gemm gemm_;
};

class FusedLoss : public torch::autograd::Function<FusedLoss> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden_states,
                            const at::Tensor& weight, const at::Tensor& targets, const Gemm& gemm,
                            bool with_gradients) {
    const auto type = gemm_type(hidden_states);
    const WithoutAutocast as_they_are;
    const at::Tensor flat = hidden_states.reshape({-1, hidden_states.size(-1)}).to(type);
    const at::Tensor flat_targets = targets.reshape(-1);
    ChunkedLoss chunks(flat, weight.to(type), flat_targets, gemm, with_gradients);
    chunks.run();
    const at::Tensor scored =
        flat_targets.ne(kIgnoredTarget).sum().to(chunks.loss_sum.scalar_type());
    if (with_gradients) {
      context->save_for_backward({chunks.input_gradient, chunks.weight_gradient, scored});
      context->saved_data["x_sizes"] = hidden_states.sizes();
      context->saved_data["x_type"] = hidden_states.scalar_type();
      context->saved_data["weight_type"] = weight.scalar_type();
    }
    return chunks.loss_sum / scored;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor scale = gradients[0] / saved[2];
    // A GPU would round the scale to a narrow operand's type first; a CPU multiplies in float32.
    const at::Tensor input_gradient =
        is_on_gpu(saved[0]) ? saved[0].to(at_least_float(saved[0].scalar_type())) : saved[0];
    return {(input_gradient * scale)
                .to(context->saved_data["x_type"].toScalarType())
                .view(context->saved_data["x_sizes"].toIntVector()),
            (saved[1] * scale).to(context->saved_data["weight_type"].toScalarType()), at::Tensor(),
            at::Tensor(), at::Tensor()};
  }
};

}  // namespace

// A GPU, counted in tiles of 128x128 of a GEMM's result and in blocks of the cross-entropy, one a
// row. An MI300X has 304 compute units, an H100 132 multiprocessors, each with room for 2048
// threads. The CPU's 512 tokens of 1000 classes are 32 tiles and 512 blocks of 128 threads, a tenth
// and a quarter of the tiles that occupy these GPUs once, a tenth and a quarter of the threads; and
// at 8 launches a chunk the 8192 tokens of medium and above cost 128. With 2^23 logits they are one
// chunk: 512 tiles, 8192 blocks, 8 launches. Of larger vocabularies 1024 tokens have 8 tiles by
// D / 128 in the gradient of the hidden states, 256 with D = 4096, where 256 tokens had 64. The
// logits of a chunk take 16 MiB at 1000 classes and 250 MiB at 128256 in bfloat16 (1 and 63 MiB
// before), those of 8192 tokens at once 16 MiB and 2 GiB, and float32 twice as much.
int64_t fused_loss_chunk(int64_t tokens, int64_t vocab_size, c10::DeviceType device) {
  const bool on_cpu = device == c10::DeviceType::CPU;
  const int64_t logits = int64_t{1} << (on_cpu ? 19 : 23);
  const int64_t fewest = on_cpu ? 256 : 1024;
  return std::min(tokens, std::max(fewest, logits / vocab_size / 64 * 64));
}

at::Tensor fused_loss(const at::Tensor& hidden_states, const at::Tensor& weight,
                      const at::Tensor& targets, const Gemm& gemm) {
  const bool recording =
      at::GradMode::is_enabled() && (hidden_states.requires_grad() || weight.requires_grad());
  return FusedLoss::apply(hidden_states, weight, targets, gemm, recording);
}

Cost loss_cost(const Workload& workload, Pass pass) {
  const int64_t D = workload.config.hidden_dim();
  const int64_t V = workload.config.vocab_size();
  const int64_t T = workload.tokens();
  const int64_t e = storage_bytes(workload.dtype);
  const int64_t scored = workload.batch * (workload.seq - 1) * V;
  Cost forward_gemms = gemm_cost(2 * T * D * V);
  Cost backward_gemms = 2 * forward_gemms;
  if (workload.variant.has(Switch::fused_loss)) {
    // Gradients are computed while a chunk's logits are at hand.
    forward_gemms.hardware_flops *= 3;
    backward_gemms.hardware_flops = 0;
  }
  if (workload.config.has_vocabulary_share()) {
    // Of every row the maximum, the sum of exponentials and the target's logit, by chunks where
    // the loss is computed so; then the gradient of the hidden states.
    const int64_t chunk =
        workload.variant.has(Switch::fused_loss) ? fused_loss_chunk(T, V, workload.device) : T;
    const int64_t chunks = (T + chunk - 1) / chunk;
    forward_gemms += {.comm_calls = 3 * chunks, .comm_bytes = 3 * T * kStatisticBytes};
    backward_gemms += comm_cost(1, T * D * storage_bytes(workload.dtype));
  }
  const int64_t inputs = T * D * e + V * D * e + T * (kTokenBytes + kStatisticBytes);
  // Maximum, difference, exp, sum, logarithm's difference; backward: exp, difference, product.
  return select_halves(pass, V * D,
                       {with_traffic(forward_gemms, 5 * scored, inputs + kStatisticBytes),
                        with_traffic(backward_gemms, 3 * scored, inputs + T * D * e + V * D * e)});
}

}  // namespace tinyllama
