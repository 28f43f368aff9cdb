#include "benchmarks/instruments/context.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace tinyllama::instruments {
namespace {

TEST(ContextTest, CommitIsAHashOrUnknown) {
  const std::string commit = source_version().commit;
  const bool hash = commit.size() == 40 && std::ranges::all_of(commit, [](unsigned char letter) {
                      return std::isxdigit(letter) != 0;
                    });
  EXPECT_TRUE(hash || commit == "unknown") << commit;
}

TEST(ContextTest, TorchVersionIsSupported) {
  EXPECT_TRUE(torch_version().starts_with("2."));
}

TEST(ContextTest, SettingsHoldWhatSteersARun) {
  setenv("OMP_TEST_OF_THE_CONTEXT", "a=b", 1);
  const auto settings = system_settings(Device::select("cpu"));
  unsetenv("OMP_TEST_OF_THE_CONTEXT");
  EXPECT_EQ(settings.at("env.OMP_TEST_OF_THE_CONTEXT"), "a=b");
  EXPECT_EQ(settings.at("float32_matmul_precision"), "highest");
  EXPECT_EQ(settings.at("deterministic_algorithms"), "false");
  EXPECT_FALSE(settings.at("cpu_affinity").empty());
  EXPECT_FALSE(settings.contains("env.PATH"));
}

}  // namespace
}  // namespace tinyllama::instruments
