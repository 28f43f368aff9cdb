// Fused kernels of a training step, as functions on tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace tinyllama::kernels {

// Matrix multiplication in register tiles, from operands that are packed as they are read.

/// a [m, k], b [n, k] of one type (f32, f64, bf16, f16) -> a b^T [m, n], contiguous; narrow types
/// are summed in float32 and rounded once (where the processor multiplies bf16 in pairs, it takes
/// subnormal numbers for 0). Either may be a transposed view, which is read as it lies; other
/// strides cost a copy. No autograd. Throws c10::ValueError.
at::Tensor gemm(const at::Tensor& a, const at::Tensor& b);

/// Adds a b^T to `sum` [m, n], contiguous, float32 (float64 for float64); otherwise as gemm().
void add_gemm_(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

// Causal grouped-query attention without a score matrix.

/// Longer than any sequence.
inline constexpr int64_t kNoWindow = int64_t{1} << 40;

/// q [B, S, H, head_dim], k and v [B, S, KV, head_dim], H a multiple of KV, of one type and with
/// any strides but 1 in the last dimension -> softmax(scale q k^T, causal) v, contiguous [B, S, H,
/// head_dim]. A query sees `window` positions, its own and those before it. Scores live in tiles
/// only: memory grows linearly with S. Saves q, k, v, the result and one log-sum-exp a row; the
/// backward computes the scores again. Narrow types are computed in float32 and rounded once.
/// Throws c10::ValueError for other shapes.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            double scale, int64_t window = kNoWindow);

/// Scores that the kernel computes for one head: those of each tile of queries, from the first to
/// the last key that any of them sees.
int64_t causal_attention_scores(int64_t seq, int64_t window = kNoWindow);

// RMSNorm (Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019) in one pass over
// memory, alone and with the residual addition before it.

/// x [..., D], weight [D], one type (f32, f64, bf16, f16) -> weight * x / sqrt(mean(x^2) + eps),
/// shape and type of x. Normalised in at least float32 and rounded to x's type before the scale, as
/// LlamaRMSNorm does. Differentiable in x and weight; keeps x, weight and one value a row.
/// Gradients are bit-identical in each run with the same number of threads. Throws c10::ValueError.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

/// residual, branch [..., D], weight [D] -> {sum = residual + branch, rms_norm(sum, weight, eps)},
/// both in residual's type, which weight has too; branch has it, or is bf16 or f16 beside a float32
/// residual (autocast). Differentiable in all three; keeps sum, weight and one value a row. The
/// gradient of residual is that of sum, and that of branch is the same in branch's type.
std::pair<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& residual, const at::Tensor& branch,
                                               const at::Tensor& weight, double eps);

// Rotary position embedding (Su et al., "RoFormer", 2021), rotate-half convention, in one pass.

/// x [B, S, heads, head_dim], head_dim even, cos and sin [>= S, 1, head_dim] of x's type, both
/// halves of a row alike -> x * cos + rotate_half(x) * sin, contiguous, x's shape and type; narrow
/// types are computed in float32 and rounded once. x may have any strides; only its last dimension
/// being contiguous saves a copy. Differentiable in x (the rotation by the negative angles); keeps
/// the tables alone. Throws c10::ValueError.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

// SwiGLU's gate (Shazeer, "GLU Variants Improve Transformer", 2020) in one pass.

/// gate, up [..., F] of one type -> silu(gate) * up, contiguous; narrow types are computed in
/// float32 and rounded once. Both are read in place where rows are contiguous and evenly spaced
/// (such as halves of a [..., 2F] buffer), else copied. Differentiable in both; keeps the inputs
/// alone. Throws c10::ValueError.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

/// gate_up [..., 2F], gate first -> silu(gate) * up [..., F], contiguous. The gradient is one [...,
/// 2F] tensor. Otherwise as swiglu.
at::Tensor swiglu_merged(const at::Tensor& gate_up);

// Cross-entropy of rows of logits, with the gradient written where the logits were. No autograd: a
// caller that holds the logits (a chunk of them) composes these with the matrix multiplications
// around them.

/// logits [n, V] contiguous (f32, f64, bf16, f16), targets [n] int64 -> each row's loss
/// log(sum(exp(logits))) - logits[target], [n], float32 (float64 for float64); 0 where the target
/// is `ignored_target`. The logits become the gradient of each row's loss, softmax(logits) -
/// onehot(target), zeros for ignored rows, computed in float32 and rounded once. Throws
/// c10::IndexError for a target outside [0, V) that is not ignored, c10::ValueError for wrong
/// shapes or types; the logits are then as they were. On a GPU nobody looks at targets before they
/// are used: one outside [0, V) makes loss and gradient of its row NaN.
at::Tensor cross_entropy_rows_(at::Tensor& logits, const at::Tensor& targets,
                               int64_t ignored_target);

/// The losses alone; the logits stay as they are, and may have any strides.
at::Tensor cross_entropy_losses(const at::Tensor& logits, const at::Tensor& targets,
                                int64_t ignored_target);

// AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", algorithm 2) over all
// parameters in one pass over memory.

/// Defaults as in torch.optim.AdamW, but for the learning rate, which is the workshop's.
struct AdamWOptions {
  double learning_rate = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
};

/// For each i, with g = gradients[i], t = step, which is counted from 1:
///   p *= 1 - learning_rate weight_decay;  m += (1 - beta1) (g - m);  v = beta2 v + (1 - beta2)
///   g^2; p -= learning_rate / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps).
/// Parameters are all of one type (f32, f64, bf16, f16), dense in memory in any order of
/// dimensions; moments have the parameter's type, shape and strides, gradients its type and shape
/// (other strides cost a copy). Narrow types are computed in float32 and rounded once a tensor. A
/// parameter whose gradient is undefined is left alone. `corrections`, float64 [2] beside the
/// parameters, holds 1 / sqrt(1 - beta2^t) and learning_rate / (1 - beta1^t), and is read when the
/// update runs, which a captured update does again and again; undefined: they come from `options`.
/// Throws c10::ValueError, and then nothing was changed.
void adamw_(at::TensorList parameters, at::TensorList gradients, at::TensorList first_moments,
            at::TensorList second_moments, const AdamWOptions& options, int64_t step,
            const at::Tensor& corrections = {});

}  // namespace tinyllama::kernels
