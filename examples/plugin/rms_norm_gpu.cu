// The operators of rms_norm.cpp for GPUs: one source for CUDA and, as CMake's language HIP, for AMD.
// A block of threads computes a row.
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>
#ifdef __HIP_PLATFORM_AMD__
#include <hip/hip_runtime.h>
using GpuStream = hipStream_t;
#else
#include <cuda_runtime.h>
using GpuStream = cudaStream_t;
#endif

#include <tuple>

namespace {

// A power of two, and a multiple of 64, the lanes of a wavefront.
constexpr int kThreads = 256;

// The stream of libtorch, on which work is in order with what comes before and after.
GpuStream stream_of(const at::Tensor& x) {
  const c10::Device device = x.device();
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  return static_cast<GpuStream>(stream.native_handle());
}

// The sum over the block's threads, for each of them.
template <class Wide>
__device__ Wide sum_of_block(Wide value) {
  __shared__ Wide sums[kThreads];
  __syncthreads();  // those of an earlier call have been read
  sums[threadIdx.x] = value;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  __syncthreads();
  return sums[0];
}

template <class T, class Wide>
__global__ void forward(const T* x, const T* weight, T* output, int64_t columns, Wide eps) {
  x += blockIdx.x * columns;
  output += blockIdx.x * columns;
  Wide squares = 0;
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) squares += Wide(x[i]) * Wide(x[i]);
  const Wide inverse = 1 / sqrt(sum_of_block(squares) / Wide(columns) + eps);
  for (int64_t i = threadIdx.x; i < columns; i += kThreads)
    output[i] = T(Wide(weight[i]) * Wide(T(Wide(x[i]) * inverse)));
}

// `normalized` [rows, columns] becomes what the weight's gradient is summed from: summing with
// atomics would give other bits in each run.
template <class T, class Wide>
__global__ void backward(const T* gradient, const T* x, const T* weight, T* x_gradient,
                         Wide* products, int64_t columns, Wide eps) {
  const int64_t row = blockIdx.x * columns;
  Wide squares = 0;
  Wide dot = 0;
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) {
    const Wide value = Wide(x[row + i]);
    squares += value * value;
    dot += Wide(gradient[row + i]) * Wide(weight[i]) * value;
  }
  const Wide inverse = 1 / sqrt(sum_of_block(squares) / Wide(columns) + eps);
  const Wide correction = sum_of_block(dot) * inverse * inverse * inverse / Wide(columns);
  for (int64_t i = threadIdx.x; i < columns; i += kThreads) {
    const Wide value = Wide(x[row + i]);
    const Wide given = Wide(gradient[row + i]);
    x_gradient[row + i] = T(given * Wide(weight[i]) * inverse - value * correction);
    products[row + i] = given * Wide(T(value * inverse));
  }
}

at::Tensor rms_norm(const at::Tensor& x_, const at::Tensor& weight_, double eps) {
  const c10::DeviceGuard on_device(x_.device());
  const at::Tensor x = x_.contiguous();
  const at::Tensor weight = weight_.contiguous();
  const int64_t columns = x.size(-1);
  const auto rows = static_cast<unsigned>(x.numel() / columns);
  at::Tensor output = at::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "rms_norm", [&] {
    using Wide = at::opmath_type<scalar_t>;
    forward<scalar_t, Wide><<<rows, kThreads, 0, stream_of(x)>>>(
        x.const_data_ptr<scalar_t>(), weight.const_data_ptr<scalar_t>(),
        output.mutable_data_ptr<scalar_t>(), columns, Wide(eps));
  });
  return output;
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& gradient_,
                                                     const at::Tensor& x_,
                                                     const at::Tensor& weight_, double eps) {
  const c10::DeviceGuard on_device(x_.device());
  const at::Tensor gradient = gradient_.contiguous();
  const at::Tensor x = x_.contiguous();
  const at::Tensor weight = weight_.contiguous();
  const int64_t columns = x.size(-1);
  const int64_t rows = x.numel() / columns;
  at::Tensor x_gradient = at::empty_like(x);
  at::Tensor products =
      at::empty({rows, columns}, x.options().dtype(at::toOpMathType(x.scalar_type())));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "rms_norm", [&] {
    using Wide = at::opmath_type<scalar_t>;
    backward<scalar_t, Wide><<<static_cast<unsigned>(rows), kThreads, 0, stream_of(x)>>>(
        gradient.const_data_ptr<scalar_t>(), x.const_data_ptr<scalar_t>(),
        weight.const_data_ptr<scalar_t>(), x_gradient.mutable_data_ptr<scalar_t>(),
        products.mutable_data_ptr<Wide>(), columns, Wide(eps));
  });
  return {x_gradient, products.sum(0).to(weight.scalar_type())};
}

}  // namespace

// libtorch's name for AMD's GPUs as well.
TORCH_LIBRARY_IMPL(my, CUDA, library) {
  library.impl("rms_norm", rms_norm);
  library.impl("rms_norm_backward", rms_norm_backward);
}
