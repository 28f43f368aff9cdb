#include "benchmarks/kernels/kernel_cases.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>

#include "model/kernels/kernels.hpp"
#include "model/rotary.hpp"

namespace tinyllama::kernel_benchmark {
namespace {

constexpr double kEps = 1e-5;

struct Work {
  Tensors leaves, output_gradients, outputs, gradients;
  std::function<Tensors(const Tensors&)> forward;

  void clear() {
    outputs.clear();
    gradients.clear();
  }
  // Not backward(): a gradient that two leaves share would be copied into each.
  void backward() { gradients = torch::autograd::grad(outputs, leaves, output_gradients); }
};

}  // namespace

at::Tensor random(at::IntArrayRef shape, Dtype dtype) {
  return at::randn(shape, at::TensorOptions().dtype(c10::ScalarType::Float))
      .to(storage_type(dtype));
}

std::vector<KernelCase> both_passes(const KernelCase& about, int64_t forward_bytes,
                                    int64_t backward_bytes, const Tensors& values,
                                    const Tensors& output_gradients,
                                    const std::vector<Function>& functions) {
  KernelCase forward = about, backward = about;
  forward.pass = "forward";
  forward.bytes = forward_bytes;
  backward.pass = "backward";
  backward.bytes = backward_bytes;
  for (const Function& function : functions) {
    const auto work = std::make_shared<Work>(Work{{}, output_gradients, {}, {}, function.forward});
    for (const at::Tensor& value : values) work->leaves.push_back(value.detach().requires_grad_());
    const auto run_forward = [work] { work->outputs = work->forward(work->leaves); };
    forward.contenders.push_back({function.name, [work] { work->clear(); }, run_forward});
    backward.contenders.push_back({function.name,
                                   [work, run_forward] {
                                     work->clear();
                                     run_forward();
                                   },
                                   [work] { work->backward(); }});
  }
  return {forward, backward};
}

namespace {

// model/rms_norm.cpp's baseline.
at::Tensor composed_norm(const at::Tensor& hidden, const at::Tensor& weight) {
  const at::Tensor x = hidden.to(c10::ScalarType::Float);
  const at::Tensor normalized = x * at::rsqrt(x.pow(2).mean(-1, true) + kEps);
  return weight * normalized.to(hidden.scalar_type());
}

std::vector<KernelCase> norm_cases(KernelCase about, const ProblemSize& size, Dtype dtype) {
  about.kernel = "rms_norm";
  const at::Tensor x = random({size.batch, size.seq, size.config.hidden_dim()}, dtype);
  const at::Tensor weight = at::ones({size.config.hidden_dim()}, storage_type(dtype));
  const auto bytes = static_cast<int64_t>(x.nbytes());
  const at::Tensor gradient = random(x.sizes(), dtype);
  return both_passes(
      about, 2 * bytes, 3 * bytes, {x, weight}, {gradient},
      {{"own", [](const Tensors& in) { return Tensors{kernels::rms_norm(in[0], in[1], kEps)}; }},
       {"at::rms_norm",
        [](const Tensors& in) { return Tensors{at::rms_norm(in[0], in[1].sizes(), in[1], kEps)}; }},
       {"composed", [](const Tensors& in) { return Tensors{composed_norm(in[0], in[1])}; }}});
}

std::vector<KernelCase> add_norm_cases(KernelCase about, const ProblemSize& size, Dtype dtype) {
  about.kernel = "add_rms_norm";
  const at::Tensor x = random({size.batch, size.seq, size.config.hidden_dim()}, dtype);
  const at::Tensor weight = at::ones({size.config.hidden_dim()}, storage_type(dtype));
  const auto bytes = static_cast<int64_t>(x.nbytes());
  const Tensors gradients = {random(x.sizes(), dtype), random(x.sizes(), dtype)};
  return both_passes(about, 4 * bytes, 4 * bytes, {x, random(x.sizes(), dtype), weight}, gradients,
                     {{"own",
                       [](const Tensors& in) {
                         const auto [sum, norm] = kernels::add_rms_norm(in[0], in[1], in[2], kEps);
                         return Tensors{sum, norm};
                       }},
                      {"+, at::rms_norm",
                       [](const Tensors& in) {
                         const at::Tensor sum = in[0] + in[1];
                         return Tensors{sum, at::rms_norm(sum, in[2].sizes(), in[2], kEps)};
                       }},
                      {"composed", [](const Tensors& in) {
                         const at::Tensor sum = in[0] + in[1];
                         return Tensors{sum, composed_norm(sum, in[2])};
                       }}});
}

std::vector<KernelCase> rotary_cases(KernelCase about, const ProblemSize& size, Dtype dtype) {
  about.kernel = "rotate";
  const ModelConfig& config = size.config;
  const at::Tensor x = random({size.batch, size.seq, config.n_heads(), config.head_dim()}, dtype);
  const auto bytes = static_cast<int64_t>(2 * x.nbytes());
  const auto rotation = [&](const Variant& variant) {
    const RotaryTable table(config, variant, size.seq, dtype, c10::kCPU);
    return [table](const Tensors& in) { return Tensors{table.rotate(in[0])}; };
  };
  return both_passes(
      about, bytes, bytes, {x}, {random(x.sizes(), dtype)},
      {{"own", rotation(Variant({Switch::fused_rotary}))}, {"composed", rotation(Variant())}});
}

std::vector<KernelCase> swiglu_cases(KernelCase about, const ProblemSize& size, Dtype dtype) {
  about.kernel = "swiglu";
  const at::Tensor gate = random({size.batch * size.seq, size.config.intermediate_dim()}, dtype);
  const at::Tensor up = random(gate.sizes(), dtype);
  const auto bytes = static_cast<int64_t>(gate.nbytes());
  const at::Tensor gradient = random(gate.sizes(), dtype);
  return both_passes(
      about, 3 * bytes, 5 * bytes, {gate, up}, {gradient},
      {{"own", [](const Tensors& in) { return Tensors{kernels::swiglu(in[0], in[1])}; }},
       {"at::silu *", [](const Tensors& in) { return Tensors{at::silu(in[0]) * in[1]}; }}});
}

std::vector<KernelCase> merged_swiglu_cases(KernelCase about, const ProblemSize& size,
                                            Dtype dtype) {
  about.kernel = "swiglu_merged";
  const at::Tensor gate_up =
      random({size.batch * size.seq, 2 * size.config.intermediate_dim()}, dtype);
  const at::Tensor gradient =
      random({size.batch * size.seq, size.config.intermediate_dim()}, dtype);
  const auto bytes = static_cast<int64_t>(gradient.nbytes());
  return both_passes(
      about, 3 * bytes, 5 * bytes, {gate_up}, {gradient},
      {{"own", [](const Tensors& in) { return Tensors{kernels::swiglu_merged(in[0])}; }},
       {"chunk, at::silu *", [](const Tensors& in) {
          const auto halves = in[0].chunk(2, -1);
          return Tensors{at::silu(halves[0]) * halves[1]};
        }}});
}

/// Loss and gradient together, as training needs them.
KernelCase cross_entropy_case(KernelCase about, const ProblemSize& size, Dtype dtype) {
  about.kernel = "cross_entropy";
  about.pass = "forward_backward";
  const int64_t tokens = size.batch * size.seq, vocab_size = size.config.vocab_size();
  const at::Tensor logits = random({tokens, vocab_size}, dtype);
  const at::Tensor targets = at::randint(vocab_size, {tokens}, at::kLong);
  about.bytes = static_cast<int64_t>(2 * logits.nbytes());
  const at::Tensor overwritten = logits.clone();
  about.contenders.push_back({"own", [=] { overwritten.copy_(logits); },
                              [overwritten, targets] {
                                at::Tensor in_place = overwritten;
                                kernels::cross_entropy_rows_(in_place, targets, -100);
                              }});
  const at::Tensor leaf = logits.detach().requires_grad_();
  about.contenders.push_back(
      {"at::cross_entropy_loss", [leaf] { leaf.mutable_grad().reset(); },
       [leaf, targets] {
         at::cross_entropy_loss(leaf.to(c10::ScalarType::Float), targets).backward();
       }});
  return about;
}

}  // namespace

std::vector<KernelCase> cases_of(const ProblemSize& size, Dtype dtype) {
  KernelCase about;
  about.size = size.name;
  about.dtype = to_string(dtype);
  std::vector<KernelCase> all;
  for (const auto& make : {norm_cases, add_norm_cases, rotary_cases, attention_cases, swiglu_cases,
                           merged_swiglu_cases}) {
    for (KernelCase& one : make(about, size, dtype)) all.push_back(std::move(one));
  }
  all.push_back(cross_entropy_case(about, size, dtype));
  all.push_back(adamw_case(about, size, dtype));
  return all;
}

}  // namespace tinyllama::kernel_benchmark
