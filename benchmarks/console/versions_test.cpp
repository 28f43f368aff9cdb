#include "benchmarks/console/versions.hpp"

#include <ATen/Version.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include <stdexcept>

namespace tinyllama::console {
namespace {

TEST(VersionsTest, TheLoadedLibtorchIsFoundInItsDescription) {
  EXPECT_EQ(libtorch_version("PERF_WITH_AVX2=1, TORCH_VERSION=2.9.1, USE_CUDA=0"), "2.9.1");
  EXPECT_EQ(libtorch_version("TORCH_VERSION=2.9.1"), "2.9.1");
  EXPECT_EQ(libtorch_version("no version"), "");
  // Otherwise no change would ever be seen.
  EXPECT_NE(libtorch_version(at::show_config()), "");
}

TEST(VersionsTest, AnotherLibtorchIsRefusedAndBothAreNamed) {
  EXPECT_NO_THROW(refuse_other_libtorch());
  EXPECT_NO_THROW(refuse_other_libtorch("2.13.0+cpu", "2.13.0"));
  for (const char* loaded : {"2.13.1", "2.12.0", "2.1"}) {
    try {
      refuse_other_libtorch("2.13.0", loaded);
      ADD_FAILURE() << loaded;
    } catch (const std::runtime_error& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find("2.13.0,"), std::string::npos) << message;
      EXPECT_NE(message.find(loaded), std::string::npos) << message;
    }
  }
}

TEST(VersionsTest, VersionNamesWhatWasBuilt) {
  const std::string text = version_text("tiny_llama_bench");
  EXPECT_TRUE(text.starts_with("tiny_llama_bench "));
  for (const char* line : {"\ncommit ", "\nlibtorch " TORCH_VERSION "\n", "\nbuild "})
    EXPECT_NE(text.find(line), std::string::npos) << line;
}

}  // namespace
}  // namespace tinyllama::console
