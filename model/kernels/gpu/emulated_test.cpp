// The GPU's other kernels, run on the host, against the CPU's.
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <limits>

#include "model/kernels/gpu/emulated_testing.hpp"

namespace tinyllama::kernels {
namespace {

using namespace testing;

constexpr int64_t kIgnored = -100;

TEST(EmulatedGpu, SwigluIsThatOfTheCpu) {
  for_each_type(
      []<class T>(const GpuKernelsOf<T>& gpu, const RangeKernelsOf<T>& cpu, c10::ScalarType type) {
        constexpr int64_t rows = 3;
        for (const int64_t width : kWidths) {
          // Halves of one buffer, as the merged projection leaves them.
          const at::Tensor both = random({rows, 2 * width}, type), g = random({rows, width}, type);
          const at::Tensor out = unwritten_as(g), expected = unwritten_as(g);
          const T* gate = const_data<T>(both);
          const SwigluRows<T> args{gate, 2 * width, gate + width, 2 * width, data<T>(out), width};
          gpu.swiglu(args, rows, nullptr);
          auto of_cpu = args;
          of_cpu.out = data<T>(expected);
          cpu.swiglu(of_cpu, 0, rows);
          expect_close(out, in_f64(expected), 4, "out");
          const at::Tensor gradient = unwritten_as(both), expected_gradient = unwritten_as(both);
          const auto arguments = [&](const at::Tensor& to) {
            return SwigluGradientRows<T>{const_data<T>(g),    gate,      2 * width,
                                         gate + width,        2 * width, data<T>(to),
                                         data<T>(to) + width, 2 * width, width};
          };
          gpu.swiglu_gradient(arguments(gradient), rows, nullptr);
          cpu.swiglu_gradient(arguments(expected_gradient), 0, rows);
          expect_close(gradient, in_f64(expected_gradient), 8, "gradient");
        }
      });
}

TEST(EmulatedGpu, RotaryIsThatOfTheCpu) {
  for_each_type(
      []<class T>(const GpuKernelsOf<T>& gpu, const RangeKernelsOf<T>& cpu, c10::ScalarType type) {
        constexpr int64_t batch = 2, positions = 3, heads = 3;
        for (const int64_t head_dim : {2, 6, 16, 32}) {
          // Heads before positions in memory, and room behind each head.
          const at::Tensor memory = random({batch, heads, positions, 2 * head_dim}, type);
          const at::Tensor cos = random({positions, head_dim}, type);
          const at::Tensor sin = random({positions, head_dim}, type);
          const at::Tensor out = unwritten({batch, positions, heads, head_dim}, type);
          const at::Tensor expected = unwritten_as(out);
          for (const bool backwards : {false, true}) {
            RotaryTokens<T> args{const_data<T>(memory),
                                 memory.stride(0),
                                 memory.stride(2),
                                 memory.stride(1),
                                 const_data<T>(cos),
                                 const_data<T>(sin),
                                 data<T>(out),
                                 positions,
                                 heads,
                                 head_dim,
                                 backwards};
            gpu.rotary(args, batch * positions, nullptr);
            args.out = data<T>(expected);
            cpu.rotary(args, 0, batch * positions);
            expect_close(out, in_f64(expected), 2, "rotary");
          }
        }
      });
}

TEST(EmulatedGpu, CrossEntropyIsThatOfTheCpu) {
  for_each_type(
      []<class T>(const GpuKernelsOf<T>& gpu, const RangeKernelsOf<T>& cpu, c10::ScalarType type) {
        using Compute = ComputeType<T>;
        constexpr int64_t rows = 4;
        for (const int64_t classes : kWidths) {
          const at::Tensor logits = random({rows, classes}, type) * 8;
          const at::Tensor targets = at::tensor({int64_t{0}, classes - 1, kIgnored, classes / 2});
          const at::Tensor losses = unwritten({3, rows}, compute_type_of(type));
          const at::Tensor scratch = unwritten({classes}, compute_type_of(type));
          const at::Tensor gradient = logits.clone(), expected = unwritten_as(logits);
          CrossEntropyRows<T> args{const_data<T>(logits),
                                   const_data<int64_t>(targets),
                                   kIgnored,
                                   nullptr,
                                   data<Compute>(losses),
                                   nullptr,
                                   classes};
          gpu.cross_entropy(args, rows, nullptr);
          args.gradient = data<T>(expected);
          args.scratch = data<Compute>(scratch);
          args.losses += rows;
          cpu.cross_entropy(args, 0, rows);
          args.logits = args.gradient = data<T>(gradient);
          args.scratch = nullptr;
          args.losses += rows;
          gpu.cross_entropy(args, rows, nullptr);
          expect_close(losses[0], in_f64(losses[1]), 16, "losses", 1);
          expect_same_bits(losses[2], losses[0], "losses beside a gradient");
          expect_close(gradient, in_f64(expected), 16, "gradient", classes == 1 ? 1 : 0);
          EXPECT_EQ(losses[0][2].template item<double>(), 0);
        }
      });
}

TEST(EmulatedGpu, CrossEntropyShowsWhatIsNotANumber) {
  constexpr int64_t rows = 5, classes = 19;
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor logits = random({rows, classes}, kF32);
  logits[1][3] = std::numeric_limits<float>::quiet_NaN();
  logits[2][18] = -infinity;
  const at::Tensor targets =
      at::tensor({int64_t{19}, int64_t{4}, int64_t{4}, int64_t{-1}, int64_t{0}});
  const at::Tensor losses = unwritten({rows}, kF32), gradient = unwritten_as(logits);
  gpu_kernels_of<float>().cross_entropy(
      {const_data<float>(logits), const_data<int64_t>(targets), kIgnored, data<float>(gradient),
       data<float>(losses), nullptr, classes},
      rows, nullptr);
  for (const int64_t row : {0, 1, 3}) {
    EXPECT_TRUE(losses[row].isnan().item<bool>()) << row;
    EXPECT_TRUE(all_nan(gradient[row])) << row;
  }
  for (const int64_t row : {2, 4}) {
    EXPECT_TRUE(losses[row].isfinite().item<bool>()) << row;
    EXPECT_TRUE(gradient[row].isfinite().all().item<bool>()) << row;
  }
  EXPECT_EQ(gradient[2][18].item<float>(), 0);
}

TEST(EmulatedGpu, AdamWIsThatOfTheCpu) {
  for_each_type(
      []<class T>(const GpuKernelsOf<T>& gpu, const RangeKernelsOf<T>& cpu, c10::ScalarType type) {
        // More tensors than a launch takes, and one with more elements than its threads.
        std::vector<int64_t> counts = {1, 7, 64, 700, 0};
        while (counts.size() < 43) counts.push_back(static_cast<int64_t>(counts.size()));
        std::vector<at::Tensor> actual, expected;
        std::vector<AdamWElements<T>> elements;
        // As doubles, what adamw_elements() has.
        static constexpr double corrections[] = {2.0F, 0.01F};
        for (const int64_t count : counts) {
          const at::Tensor p = random({count}, type), g = random({count}, type);
          const at::Tensor m = random({count}, type), v = random({count}, type).abs();
          actual.insert(actual.end(), {p, m, v, g});
          elements.push_back(adamw_elements(data<T>(p), const_data<T>(g), data<T>(m), data<T>(v)));
          auto of_cpu = elements.back();
          for (const auto& tensor : {p, m, v}) expected.push_back(tensor.clone());
          of_cpu.parameter = data<T>(expected[expected.size() - 3]);
          of_cpu.first_moment = data<T>(expected[expected.size() - 2]);
          of_cpu.second_moment = data<T>(expected.back());
          cpu.adamw(of_cpu, 0, count);
          // Every other one reads them when it runs.
          if (elements.size() % 2 == 0) {
            elements.back().corrections = corrections;
            elements.back().second_scale = elements.back().step_size = 1e6;
          }
        }
        gpu.adamw(elements.data(), counts.data(), static_cast<int64_t>(counts.size()), nullptr);
        for (size_t i = 0; i < counts.size(); ++i) {
          expect_close(actual[4 * i], in_f64(expected[3 * i]), 4, "parameter");
          expect_close(actual[4 * i + 1], in_f64(expected[3 * i + 1]), 2, "first moment");
          expect_close(actual[4 * i + 2], in_f64(expected[3 * i + 2]), 2, "second moment");
        }
      });
}

}  // namespace
}  // namespace tinyllama::kernels
