#include "model/kernels/kernels.hpp"

#include <ATen/ops/empty_strided.h>

#include <cmath>
#include <vector>

#include "model/kernels/launch.hpp"

namespace tinyllama::kernels {
namespace {

/// Equal offsets mean equal elements in both; strides of dimensions of size 1 do not matter.
bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return false;
  for (int64_t i = 0; i < a.dim(); ++i) {
    if (a.size(i) > 1 && a.stride(i) != b.stride(i)) return false;
  }
  return true;
}

void check_moment(const at::Tensor& moment, const at::Tensor& parameter, size_t i) {
  check_device(moment, "a moment");
  check_type(moment, "a moment", parameter, "its parameter");
  TORCH_CHECK_VALUE(same_layout(moment, parameter), "moment ", i, " has shape ", moment.sizes(),
                    " and strides ", moment.strides(), ": its parameter has ", parameter.sizes(),
                    " and ", parameter.strides(), ", and they must be alike");
}

void check_parameter(const at::Tensor& parameter, const at::Tensor& first, size_t i) {
  check_device(parameter, "a parameter");
  check_type(parameter, "a parameter", first, "the first one");
  TORCH_CHECK_VALUE(parameter.is_non_overlapping_and_dense(), "parameter ", i, " has shape ",
                    parameter.sizes(), " and strides ", parameter.strides(),
                    ": it must be dense in memory");
}

at::Tensor laid_out_as(const at::Tensor& parameter, const at::Tensor& gradient, size_t i) {
  check_device(gradient, "a gradient");
  check_type(gradient, "a gradient", parameter, "its parameter");
  TORCH_CHECK_VALUE(gradient.sizes() == parameter.sizes(), "gradient ", i, " has shape ",
                    gradient.sizes(), ": its parameter has ", parameter.sizes());
  if (same_layout(gradient, parameter)) return gradient;
  return at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options())
      .copy_(gradient);
}

void check_corrections(const at::Tensor& corrections, const at::Tensor& parameter) {
  check_same_device(corrections, "corrections", parameter, "the first parameter");
  TORCH_CHECK_VALUE(corrections.scalar_type() == c10::ScalarType::Double &&
                        corrections.is_contiguous() && corrections.sizes() == at::IntArrayRef({2}),
                    "corrections is ", c10::toString(corrections.scalar_type()), " of shape ",
                    corrections.sizes(), ": it must be float64 of shape [2], contiguous");
}

/// What one update works on, and where in the elements of all tensors each tensor begins.
struct Work {
  std::vector<at::Tensor> parameters, gradients, first_moments, second_moments;
  std::vector<int64_t> begins{0};
};

Work work_of(at::TensorList parameters, at::TensorList gradients, at::TensorList first_moments,
             at::TensorList second_moments) {
  Work work;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!gradients[i].defined() || parameters[i].numel() == 0) continue;
    check_parameter(parameters[i], parameters[0], i);
    check_moment(first_moments[i], parameters[i], i);
    check_moment(second_moments[i], parameters[i], i);
    work.gradients.push_back(laid_out_as(parameters[i], gradients[i], i));
    work.parameters.push_back(parameters[i]);
    work.first_moments.push_back(first_moments[i]);
    work.second_moments.push_back(second_moments[i]);
    work.begins.push_back(work.begins.back() + parameters[i].numel());
  }
  return work;
}

template <class T>
std::vector<AdamWElements<T>> elements_of(const Work& work, const AdamWOptions& o, int64_t step,
                                          const at::Tensor& corrections) {
  using Compute = ComputeType<T>;
  const auto t = static_cast<double>(step);
  std::vector<AdamWElements<T>> elements;
  for (size_t i = 0; i < work.parameters.size(); ++i) {
    elements.push_back(
        {.parameter = data<T>(work.parameters[i]),
         .gradient = const_data<T>(work.gradients[i]),
         .first_moment = data<T>(work.first_moments[i]),
         .second_moment = data<T>(work.second_moments[i]),
         .decay = static_cast<Compute>(1.0 - o.learning_rate * o.weight_decay),
         .first_weight = static_cast<Compute>(1.0 - o.beta1),
         .second_decay = static_cast<Compute>(o.beta2),
         .second_weight = static_cast<Compute>(1.0 - o.beta2),
         .second_scale = static_cast<Compute>(1.0 / std::sqrt(1.0 - std::pow(o.beta2, t))),
         .step_size = static_cast<Compute>(o.learning_rate / (1.0 - std::pow(o.beta1, t))),
         .eps = static_cast<Compute>(o.eps),
         .corrections = corrections.defined() ? const_data<double>(corrections) : nullptr});
  }
  return elements;
}

template <class T>
void run_on_gpu(const Work& work, const std::vector<AdamWElements<T>>& elements) {
  std::vector<int64_t> counts;
  for (const at::Tensor& parameter : work.parameters) counts.push_back(parameter.numel());
  launch_on_gpu<GpuKernelsOf<T>>(work.parameters[0], [&](const auto& gpu, GpuStream stream) {
    gpu.adamw(elements.data(), counts.data(), static_cast<int64_t>(counts.size()), stream);
  });
}

}  // namespace

void adamw_(at::TensorList parameters, at::TensorList gradients, at::TensorList first_moments,
            at::TensorList second_moments, const AdamWOptions& options, int64_t step,
            const at::Tensor& corrections) {
  TINYLLAMA_RECORD_KERNEL("adamw_");
  const size_t count = parameters.size();
  TORCH_CHECK_VALUE(
      gradients.size() == count && first_moments.size() == count && second_moments.size() == count,
      count, " parameters, ", gradients.size(), " gradients, ", first_moments.size(), " first and ",
      second_moments.size(), " second moments: there must be one of each for each parameter");
  TORCH_CHECK_VALUE(step >= 1, "step ", step, ": updates are counted from 1");
  const Work work = work_of(parameters, gradients, first_moments, second_moments);
  if (work.parameters.empty()) return;
  if (corrections.defined()) check_corrections(corrections, work.parameters[0]);
  if (parameters[0].is_meta()) return;
  with_range_kernels(parameters[0].scalar_type(), [&]<class T>(const RangeKernelsOf<T>& kernels) {
    const std::vector<AdamWElements<T>> elements = elements_of<T>(work, options, step, corrections);
    if (work.parameters[0].is_cuda()) return run_on_gpu(work, elements);
    at::parallel_for(0, work.begins.back(), kElementsPerThread, [&](int64_t begin, int64_t end) {
      const auto after = std::ranges::upper_bound(work.begins, begin);
      for (auto i = static_cast<size_t>(after - work.begins.begin()) - 1; begin < end; ++i) {
        const int64_t last = std::min(end, work.begins[i + 1]);
        kernels.adamw(elements[i], begin - work.begins[i], last - work.begins[i]);
        begin = last;
      }
    });
  });
  for (const auto* changed : {&work.parameters, &work.first_moments, &work.second_moments}) {
    for (const at::Tensor& tensor : *changed) tensor.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace tinyllama::kernels
