// Conversions of the GPU's kernels against libtorch's, bit by bit.
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "model/kernels/gpu/elements.hpp"

namespace tinyllama::kernels::gpu_emulated {
namespace {

/// body(bits) for every pattern of 16 bits.
template <class Body>
void for_each_pattern(Body body) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) body(static_cast<uint16_t>(bits));
}

/// T is ours, Theirs libtorch's.
template <class T, class Theirs>
void expect_widened_alike() {
  for_each_pattern([](uint16_t bits) {
    const float ours = widened(T{bits});
    const float theirs = Theirs(bits, Theirs::from_bits());
    if (std::isnan(theirs)) {
      ASSERT_TRUE(std::isnan(ours)) << bits;
    } else {
      ASSERT_EQ(bits_of(ours), bits_of(theirs)) << bits;
    }
  });
}

template <class T, class Theirs>
void expect_narrowed_alike(float x) {
  const T ours = narrowed<T>(x);
  if (std::isnan(x)) {
    ASSERT_TRUE(std::isnan(widened(ours)));
  } else {
    ASSERT_EQ(ours.bits, Theirs(x).x) << x;
  }
}

/// Every number of the type, the ties between neighbours, and the floats beside both.
template <class T, class Theirs>
void expect_rounding_alike() {
  for_each_pattern([](uint16_t bits) {
    const float number = widened(T{bits});
    const float tie = (number + widened(T{static_cast<uint16_t>(bits + 1)})) / 2;
    for (const float x : {number, tie}) {
      expect_narrowed_alike<T, Theirs>(x);
      expect_narrowed_alike<T, Theirs>(std::nextafter(x, INFINITY));
      expect_narrowed_alike<T, Theirs>(std::nextafter(x, -INFINITY));
    }
  });
  for (const float x : {65519.9F, 65520.0F, 1e38F, -1e38F, std::numeric_limits<float>::max(),
                        std::numeric_limits<float>::denorm_min(), 0x1p-25F, 0x1.8p-25F})
    expect_narrowed_alike<T, Theirs>(x);
}

TEST(GpuElements, EveryNarrowNumberIsRead) {
  expect_widened_alike<Bfloat16, c10::BFloat16>();
  expect_widened_alike<Float16, c10::Half>();
}

TEST(GpuElements, RoundingIsToTheNearestAndTiesToEven) {
  expect_rounding_alike<Bfloat16, c10::BFloat16>();
  expect_rounding_alike<Float16, c10::Half>();
}

}  // namespace
}  // namespace tinyllama::kernels::gpu_emulated
