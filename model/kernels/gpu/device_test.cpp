// The kernels on a GPU against those on the CPU, through the functions on tensors that both are
// behind: forward, backward and update. Skipped where there is no GPU, or none for this build.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "model/kernels/gpu/conversions_testing.hpp"
#include "model/kernels/kernel_testing.hpp"
#include "model/kernels/kernels.hpp"
#include "model/kernels/launch.hpp"

#if __has_include(<ATen/core/GraphImplInterface.h>)
#include <ATen/core/GraphImplInterface.h>
#define TINYLLAMA_HAS_GRAPHS
#endif

namespace tinyllama::kernels {
namespace {

using namespace testing;

class GpuDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA) ||
        c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount() == 0) {
      GTEST_SKIP() << "no GPU is here";
    }
    const std::string reason = why_no_gpu_kernels(c10::Device(c10::DeviceType::CUDA, 0));
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

at::Tensor on_gpu(const at::Tensor& tensor) {
  return tensor.to(c10::Device(c10::DeviceType::CUDA));
}

void expect_like_cpu(const Function& function, const Tensors& inputs, const char* what) {
  Tensors moved;
  for (const at::Tensor& input : inputs) moved.push_back(on_gpu(input));
  const auto [expected, expected_gradients] = evaluated(function, inputs);
  const auto [actual, gradients] = evaluated(function, moved);
  for (size_t i = 0; i < expected.size(); ++i)
    expect_close(actual[i].cpu(), expected[i].to(kF64), 16, what);
  for (size_t i = 0; i < inputs.size(); ++i) {
    SCOPED_TRACE(i);
    expect_close(gradients[i].cpu(), expected_gradients[i].to(kF64), 16, what);
  }
}

TEST_F(GpuDevice, FunctionsWithGradientsAreThoseOfTheCpu) {
  for (const auto type : kTypes) {
    for (const int64_t width : {64, 130}) {
      const at::Tensor x = random({5, 77, width}, type), y = random({5, 77, width}, type);
      const at::Tensor weight = random({width}, type);
      expect_like_cpu([](const auto& in) { return Tensors{rms_norm(in[0], in[1], 1e-5)}; },
                      {x, weight}, "rms_norm");
      expect_like_cpu(
          [](const auto& in) {
            const auto [sum, norm] = add_rms_norm(in[0], in[1], in[2], 1e-5);
            return Tensors{sum, norm};
          },
          {x, y, weight}, "add_rms_norm");
      expect_like_cpu([](const auto& in) { return Tensors{swiglu(in[0], in[1])}; }, {x, y},
                      "swiglu");
      expect_like_cpu([](const auto& in) { return Tensors{swiglu_merged(in[0])}; }, {x},
                      "swiglu_merged");
    }
    const at::Tensor cos = random({9, 1, 32}, type), sin = random({9, 1, 32}, type);
    const auto turned = [&](const Tensors& in) {
      const auto device = in[0].device();
      return Tensors{rotate(in[0].transpose(1, 2), cos.to(device), sin.to(device))};
    };
    expect_like_cpu(turned, {random({2, 3, 7, 32}, type)}, "rotate");
  }
}

TEST_F(GpuDevice, NarrowBranchOfAFloat32Residual) {
  for (const auto type : {c10::ScalarType::BFloat16, c10::ScalarType::Half}) {
    const at::Tensor residual = random({70, 64}, c10::ScalarType::Float);
    expect_like_cpu(
        [](const auto& in) {
          const auto [sum, norm] = add_rms_norm(in[0], in[1], in[2], 1e-5);
          return Tensors{sum, norm};
        },
        {residual, random({70, 64}, type), random({64}, c10::ScalarType::Float)}, "add_rms_norm");
  }
}

TEST_F(GpuDevice, ConversionsAreExact) {
  expect_exact_conversions(c10::Device(c10::DeviceType::CUDA));
}

TEST_F(GpuDevice, CrossEntropyIsThatOfTheCpu) {
  for (const auto type : kTypes) {
    const at::Tensor logits = random({33, 1000}, type) * 4;
    const at::Tensor targets = at::arange(33) * 30;
    targets[4] = -100;
    at::Tensor expected = logits.clone(), actual = on_gpu(logits);
    const at::Tensor losses = cross_entropy_losses(actual, on_gpu(targets), -100);
    const at::Tensor cpu_losses = cross_entropy_rows_(expected, targets, -100);
    cross_entropy_rows_(actual, on_gpu(targets), -100);
    expect_close(losses.cpu(), cpu_losses.to(c10::ScalarType::Double), 16, "losses");
    expect_close(actual.cpu(), expected.to(c10::ScalarType::Double), 16, "gradient");
  }
}

TEST_F(GpuDevice, AdamWIsThatOfTheCpu) {
  for (const auto type : kTypes) {
    std::vector<at::Tensor> expected[4], actual[4];
    for (const int64_t count : {3, 700, 100000}) {
      for (int kind = 0; kind < 4; ++kind) {
        const at::Tensor values = random({count}, type);
        expected[kind].push_back(kind == 3 ? values.abs() : values);
        actual[kind].push_back(on_gpu(expected[kind].back()));
      }
    }
    const AdamWOptions options = {.learning_rate = 1e-3};
    adamw_(expected[0], expected[1], expected[2], expected[3], options, 3);
    adamw_(actual[0], actual[1], actual[2], actual[3], options, 3);
    for (const int kind : {0, 2, 3}) {
      for (size_t i = 0; i < expected[kind].size(); ++i) {
        expect_close(actual[kind][i].cpu(), expected[kind][i].to(c10::ScalarType::Double), 8,
                     "updated");
      }
    }
  }
}

// A grid's second dimension ends at 65,535 blocks.
TEST_F(GpuDevice, MoreRowsThanAGridHasInASecondDimension) {
  const at::Tensor x = random({65'600, 2}, kF32), weight = random({2}, kF32);
  {
    // without gradients: that of the weight adds up all rows, in another order than the CPU
    const at::NoGradGuard no_gradients;
    const at::Tensor norm = rms_norm(on_gpu(x), on_gpu(weight), 1e-5);
    expect_close(norm.cpu(), rms_norm(x, weight, 1e-5).to(kF64), 16, "rms_norm");
  }
  expect_like_cpu([](const auto& in) { return Tensors{swiglu(in[0], in[0])}; }, {x}, "swiglu");
}

// Packs of 16 bytes may be read at such addresses alone.
TEST_F(GpuDevice, ViewsThatBeginBesideAPack) {
  for (const auto type : kTypes) {
    const at::Tensor whole = random({3 * 64 + 1}, type), weights = random({64 + 1}, type);
    const auto beside = [](const at::Tensor& tensor, int64_t rows) {
      return tensor.narrow(0, 1, rows * 64).view({rows, 64});
    };
    const at::Tensor of_gpu = on_gpu(whole), weights_of_gpu = on_gpu(weights);
    const at::NoGradGuard no_gradients;
    const at::Tensor expected = rms_norm(beside(whole, 3), weights.narrow(0, 1, 64), 1e-5);
    const at::Tensor norm = rms_norm(beside(of_gpu, 3), weights_of_gpu.narrow(0, 1, 64), 1e-5);
    expect_close(norm.cpu(), expected.to(kF64), 16, "rms_norm");
    const at::Tensor product = swiglu(beside(of_gpu, 3), beside(of_gpu, 3));
    const at::Tensor on_cpu = swiglu(beside(whole, 3), beside(whole, 3));
    expect_close(product.cpu(), on_cpu.to(kF64), 16, "swiglu");
    // and none outside is written
    at::Tensor logits = on_gpu(random({2 * 65 + 1}, type));
    const at::Tensor before = logits[0].cpu().clone();
    at::Tensor rows = logits.narrow(0, 1, 2 * 65).view({2, 65});
    cross_entropy_rows_(rows, on_gpu(at::zeros({2}, c10::ScalarType::Long)), -100);
    expect_same_bits(logits[0].cpu(), before, "what lies before a view");
  }
}

#ifdef TINYLLAMA_HAS_GRAPHS
// A replay reads what its inputs hold then.
TEST_F(GpuDevice, KernelsRunInCapturedGraphs) {
  const c10::Device device = on_gpu(at::zeros({1})).device();
  const c10::impl::VirtualGuardImpl guard(device.type());
  const at::NoGradGuard no_gradients;
  at::Tensor x = on_gpu(random({40, 130}, kF32));
  const at::Tensor weight = on_gpu(random({130}, kF32));
  const auto graph = at::create_graph_impl(device.type());
  ASSERT_NE(graph, nullptr);
  at::Tensor out;
  {
    const c10::StreamGuard on_stream(guard.getNewStream(device));
    rms_norm(x, weight, 1e-5);
    guard.synchronizeDevice(device.index());
    graph->capture_begin();
    out = swiglu(rms_norm(x, weight, 1e-5), x);
    graph->capture_end();
  }
  for (int turn = 0; turn < 2; ++turn) {
    x.copy_(random({40, 130}, kF32));
    graph->replay();
    guard.synchronizeDevice(device.index());
    const at::Tensor of_cpu = x.cpu();
    const at::Tensor expected = swiglu(rms_norm(of_cpu, weight.cpu(), 1e-5), of_cpu);
    expect_close(out.cpu(), expected.to(kF64), 16, "a replay");
  }
}
#endif

}  // namespace
}  // namespace tinyllama::kernels
