#include "model/kernels/kernels.hpp"
#include "model/kernels/launch.hpp"

namespace tinyllama::kernels {
namespace {

void check(const at::Tensor& a, const at::Tensor& b) {
  check_on_cpu(a, "a");
  TORCH_CHECK_VALUE(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(1), "gemm: a ", a.sizes(),
                    ", b ", b.sizes(), ": must be [m, k] and [n, k] of one k");
  check_type(b, "b", a, "a");
}

/// Itself where the elements of a row or of a column follow each other.
at::Tensor in_either_order(const at::Tensor& x) {
  return x.stride(1) == 1 || x.stride(0) == 1 ? x : x.contiguous();
}

template <class T>
GemmOperand<T> operand(const at::Tensor& x) {
  const bool has_depth_in_rows = x.stride(1) == 1;
  return {const_data<T>(x), x.stride(has_depth_in_rows ? 0 : 1), has_depth_in_rows, x.size(0)};
}

/// Into `out`, or added to `sum` where that is defined.
void multiply_slice(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out,
                    const at::Tensor& sum) {
  with_range_kernels(a.scalar_type(), [&]<class T>(const RangeKernelsOf<T>& kernels) {
    const int64_t threads = part_count(a.size(0), b.size(0) * a.size(1) / 16);
    GemmTask<T> task{operand<T>(a),
                     operand<T>(b),
                     a.size(1),
                     out.defined() ? data<T>(out) : nullptr,
                     sum.defined() ? data<ComputeType<T>>(sum) : nullptr,
                     threads,
                     nullptr};
    const GemmSizes sizes = kernels.gemm_sizes(task);
    // From the tensors' allocator, so that peak memory tells the truth about scratch as well.
    const at::Tensor scratch = uninitialized({sizes.right_bytes + threads * sizes.left_bytes},
                                             c10::ScalarType::Byte, a.device());
    if (a.is_meta()) return;
    task.packed_right = data<char>(scratch);
    char* const of_threads = data<char>(scratch) + sizes.right_bytes;
    for_parts(threads, sizes.pack_units, [&](int64_t /*thread*/, int64_t begin, int64_t end) {
      kernels.gemm_pack(task, begin, end);
    });
    for_parts(threads, sizes.units, [&](int64_t thread, int64_t begin, int64_t end) {
      kernels.gemm(task, of_threads + thread * sizes.left_bytes, begin, end);
    });
  });
}

/// A packed panel of up to kWholeDepth steps stays in a second cache; a greater depth, as that of
/// an LM head's input gradient, is divided.
constexpr int64_t kWholeDepth = 4096;
constexpr int64_t kSliceDepth = 2048;

/// As multiply_slice(), of any depth, and recorded as one operator.
void multiply(const at::Tensor& given_a, const at::Tensor& given_b, const at::Tensor& out,
              const at::Tensor& sum) {
  RECORD_FUNCTION("tinyllama::gemm", (std::vector<c10::IValue>{given_a, given_b}));
  const at::Tensor a = in_either_order(given_a), b = in_either_order(given_b);
  const int64_t depth = a.size(1);
  if (depth <= kWholeDepth) return multiply_slice(a, b, out, sum);
  at::Tensor total = sum;
  if (!sum.defined()) {
    const auto type = at_least_float(a.scalar_type());
    total = out.scalar_type() == type ? out : uninitialized(out.sizes(), type, out.device());
    total.zero_();
  }
  for (int64_t begin = 0; begin < depth; begin += kSliceDepth) {
    const int64_t length = std::min(kSliceDepth, depth - begin);
    multiply_slice(a.narrow(1, begin, length), b.narrow(1, begin, length), {}, total);
  }
  if (!sum.defined() && !total.is_same(out)) out.copy_(total);
}

}  // namespace

at::Tensor gemm(const at::Tensor& a, const at::Tensor& b) {
  check(a, b);
  const at::Tensor out = uninitialized({a.size(0), b.size(0)}, a.scalar_type(), a.device());
  multiply(a, b, out, {});
  return out;
}

void add_gemm_(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  check(a, b);
  TORCH_CHECK_VALUE(sum.sizes() == at::IntArrayRef({a.size(0), b.size(0)}) &&
                        sum.scalar_type() == at_least_float(a.scalar_type()) && sum.is_contiguous(),
                    "gemm: sum ", sum.toString(), " ", sum.sizes(), " of strides ", sum.strides(),
                    ": must be contiguous [", a.size(0), ", ", b.size(0), "] of ",
                    c10::toString(at_least_float(a.scalar_type())));
  check_same_device(sum, "sum", a, "a");
  multiply(a, b, {}, sum);
}

}  // namespace tinyllama::kernels
