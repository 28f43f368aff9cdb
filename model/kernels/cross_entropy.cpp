#include "model/kernels/kernels.hpp"

#include "model/kernels/launch.hpp"

namespace tinyllama::kernels {
namespace {

void check(const at::Tensor& logits, const at::Tensor& targets, int64_t ignored_target) {
  check_device(logits, "logits");
  check_device(targets, "targets");
  check_same_device(targets, "targets", logits, "logits");
  TORCH_CHECK_VALUE(logits.dim() == 2, "logits has shape ", logits.sizes(), ": it must be [n, V]");
  TORCH_CHECK_VALUE(targets.dim() == 1 && targets.size(0) == logits.size(0), "targets has shape ",
                    targets.sizes(), ": it must be [", logits.size(0), "], one for each row");
  TORCH_CHECK_VALUE(targets.scalar_type() == c10::ScalarType::Long, "targets are ",
                    c10::toString(targets.scalar_type()), ": they must be int64");
  // To look at them would be to wait for the device.
  if (!targets.is_cpu()) return;
  const int64_t classes = logits.size(1);
  const auto* values = const_data<int64_t>(targets);
  for (int64_t i = 0; i < targets.numel(); ++i) {
    TORCH_CHECK_INDEX((values[i] >= 0 && values[i] < classes) || values[i] == ignored_target,
                      "target ", values[i], " of row ", i, ": it must be in [0, ", classes,
                      ") or the ignored target ", ignored_target);
  }
}

at::Tensor run(const at::Tensor& logits, const at::Tensor& targets, int64_t ignored_target,
               bool with_gradient) {
  const int64_t rows = logits.size(0);
  const int64_t classes = logits.size(1);
  const auto compute_type = at_least_float(logits.scalar_type());
  at::Tensor losses = uninitialized({rows}, compute_type, logits.device());
  const int64_t parts = is_on_gpu(logits) ? 0 : part_count(rows, classes);
  const at::Tensor scratch =
      uninitialized({with_gradient ? parts : 0, classes}, compute_type,
                    logits.is_cuda() ? c10::Device(c10::kCPU) : logits.device());
  if (logits.is_meta()) return losses;
  with_range_kernels(logits.scalar_type(), [&]<class T>(const RangeKernelsOf<T>& kernels) {
    const CrossEntropyRows<T> all{const_data<T>(logits),
                                  const_data<int64_t>(targets),
                                  ignored_target,
                                  with_gradient ? data<T>(logits) : nullptr,
                                  data<ComputeType<T>>(losses),
                                  data<ComputeType<T>>(scratch),
                                  classes};
    if (logits.is_cuda()) {
      return launch_on_gpu<GpuKernelsOf<T>>(
          logits, [&](const auto& gpu, GpuStream stream) { gpu.cross_entropy(all, rows, stream); });
    }
    for_parts(parts, rows, [&](int64_t part, int64_t begin, int64_t end) {
      auto of_part = all;
      if (with_gradient) of_part.scratch += part * classes;
      kernels.cross_entropy(of_part, begin, end);
    });
  });
  return losses;
}

}  // namespace

at::Tensor cross_entropy_rows_(at::Tensor& logits, const at::Tensor& targets,
                               int64_t ignored_target) {
  TINYLLAMA_RECORD_KERNEL("cross_entropy_rows_");
  const at::Tensor target_row = targets.contiguous();
  check(logits, target_row, ignored_target);
  TORCH_CHECK_VALUE(logits.is_contiguous(), "logits has strides ", logits.strides(),
                    ": it must be contiguous to be overwritten");
  at::Tensor losses = run(logits, target_row, ignored_target, /*with_gradient=*/true);
  // Autograd must notice that a logit it may have kept is gone.
  logits.unsafeGetTensorImpl()->bump_version();
  return losses;
}

at::Tensor cross_entropy_losses(const at::Tensor& logits, const at::Tensor& targets,
                                int64_t ignored_target) {
  TINYLLAMA_RECORD_KERNEL("cross_entropy_losses");
  const at::Tensor target_row = targets.contiguous();
  check(logits, target_row, ignored_target);
  return run(logits.contiguous(), target_row, ignored_target, /*with_gradient=*/false);
}

}  // namespace tinyllama::kernels
