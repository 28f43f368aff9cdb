#include "benchmarks/console/versions.hpp"

#include <gtest/gtest.h>
#include <torch/version.h>

#include <stdexcept>

namespace tinyllama::console {
namespace {

TEST(VersionsTest, TheLoadedLibtorchSaysItsVersion) {
  // Otherwise no change would ever be seen.
  EXPECT_TRUE(loaded_libtorch().starts_with("2.")) << loaded_libtorch();
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
