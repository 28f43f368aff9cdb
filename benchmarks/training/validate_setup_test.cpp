#include "benchmarks/training/validate_setup.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "model/testing.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::training {
namespace {

namespace fs = std::filesystem;
using instruments::Device;
using instruments::DeviceDescription;
using ::tinyllama::testing::contains;
using ::tinyllama::testing::TemporaryFolder;

Workload tiny_workload() {
  return {.config = ModelConfig(), .variant = {}, .batch = 2, .seq = 16};
}

class ValidateSetupTest : public ::testing::Test {
 protected:
  const fs::path& folder() const { return folder_.path(); }
  TemporaryFolder folder_;
};

TEST_F(ValidateSetupTest, MemoryIsHeldAgainstWhatTheRunNeeds) {
  DeviceDescription device;
  device.memory_bytes = int64_t{64} << 30;
  const Workload workload = tiny_workload();
  const int64_t needed = 1000;
  EXPECT_EQ(check_memory(device, 2 * needed, workload, needed).status, SetupStatus::ok);
  EXPECT_EQ(check_memory(device, needed + needed / 20, workload, needed).status,
            SetupStatus::warning);
  EXPECT_EQ(check_memory(device, needed, workload, needed).status, SetupStatus::warning);
  const SetupLine short_of = check_memory(device, needed - 1, workload, needed);
  EXPECT_EQ(short_of.status, SetupStatus::failed);
  EXPECT_TRUE(contains(short_of.detail, "of 64.00 GiB; batch 2 x seq 16")) << short_of.detail;
  EXPECT_TRUE(contains(short_of.detail, "--batch-size")) << short_of.detail;
}

TEST_F(ValidateSetupTest, TheGpuRuntimeSaysWhatItSees) {
  const SelectedDevice cpu = Device::select("cpu");
  const SelectedDevice none = std::string("no such device");
  EXPECT_EQ(check_gpu_runtime(cpu, "", 0).status, SetupStatus::ok);
  EXPECT_EQ(check_gpu_runtime(none, "", 0).status, SetupStatus::warning);
  const SetupLine without = check_gpu_runtime(cpu, "HIP", 0);
  EXPECT_EQ(to_text(without), "warning  HIP runtime: sees 0 devices; only the CPU can be used");
  const SetupLine with = check_gpu_runtime(cpu, "HIP", 2);
  EXPECT_TRUE(contains(with.detail, "sees 2 devices")) << with.detail;
  if (!Device::select("auto").is_gpu()) {
    EXPECT_EQ(with.status, SetupStatus::warning);
    EXPECT_TRUE(contains(with.detail, "built for the CPU")) << with.detail;
  }
}

TEST_F(ValidateSetupTest, ThreadsAreHeldAgainstTheProcessors) {
  EXPECT_EQ(check_threads(true, 8, 8).status, SetupStatus::ok);
  EXPECT_EQ(check_threads(true, 4, 8).status, SetupStatus::ok) << "one a core of two processors";
  EXPECT_EQ(check_threads(true, 3, 8).status, SetupStatus::warning);
  EXPECT_EQ(check_threads(true, 9, 8).status, SetupStatus::warning);
  EXPECT_EQ(check_threads(false, 8, 8).status, SetupStatus::warning);
  EXPECT_EQ(check_threads(true, 1, 1).detail, "1 OpenMP thread for 1 usable processor");
}

TEST_F(ValidateSetupTest, AnOutputFolderThatIsNotOursFails) {
  if (::geteuid() == 0) GTEST_SKIP() << "root writes everywhere";
  fs::permissions(folder(), fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_EQ(check_folder(folder()).status, SetupStatus::failed);
  EXPECT_EQ(check_folder(folder() / "new").status, SetupStatus::failed);
  fs::permissions(folder(), fs::perms::owner_all);
}

}  // namespace
}  // namespace tinyllama::training
