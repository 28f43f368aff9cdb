#include "benchmarks/instruments/library_choices.hpp"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::instruments {
namespace {

class LibraryChoicesTest : public ::testing::Test {
 protected:
  void TearDown() override {
    auto& context = at::globalContext();
    context.setSDPUseFlash(true);
    context.setSDPUseMemEfficient(true);
    context.setSDPUseMath(true);
  }
  std::string refusal(const LibraryChoices& choices) const {
    return testing::error_of([&] { choose_libraries(cpu, choices); });
  }
  const Device cpu = Device::select("cpu");
};

TEST_F(LibraryChoicesTest, AttentionTakesTheBackendThatIsNamedAndNoOther) {
  EXPECT_EQ(library_settings(cpu).at("sdpa_backends"), "flash,math");
  choose_libraries(cpu, {});
  EXPECT_EQ(library_settings(cpu).at("sdpa_backends"), "flash,math") << "libtorch's own choice";
  choose_libraries(cpu, {.attention = "math"});
  EXPECT_EQ(library_settings(cpu).at("sdpa_backends"), "math");
  EXPECT_FALSE(library_settings(cpu).contains("blas")) << "of a GPU";
  EXPECT_EQ(preferred_blas(cpu), "");
}

TEST_F(LibraryChoicesTest, WhatTheDeviceHasNotIsRefusedWithWhatItHas) {
  testing::expect_mentions(refusal({.blas = "cublaslt"}),
                           {"--blas 'cublaslt': must be one of default on cpu"});
  testing::expect_mentions(refusal({.blas = "mkl"}), {"--blas 'mkl'"});
  testing::expect_mentions(refusal({.attention = "cudnn"}),
                           {"--sdpa-backend 'cudnn': must be one of default, flash, math on cpu"});
}

}  // namespace
}  // namespace tinyllama::instruments
