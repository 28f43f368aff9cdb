// Readings of GPUs, from fakes of their vendors' libraries (tests/fakes/).
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "benchmarks/instruments/context.hpp"
#include "benchmarks/instruments/system_sampler.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::instruments {
namespace {

namespace fs = std::filesystem;

/// How often a fake was initialised and not yet shut down.
int open_sessions(const char* fake) {
  void* library = ::dlopen(fake, RTLD_NOW | RTLD_LOCAL);
  const auto ask = reinterpret_cast<int (*)()>(::dlsym(library, "fake_open_sessions"));
  const int count = ask();
  ::dlclose(library);
  return count;
}

/// A made-up /sys, and the fakes as the only libraries.
class GpuSensorsTest : public ::testing::Test {
 protected:
  void write_clock(const std::string& bus_id, const std::string& hertz) {
    files_.write(fs::path("bus/pci/devices") / bus_id / "hwmon/hwmon7/freq1_input", hertz);
  }
  SystemReader nvml(const GpuIdentity& gpu, const std::string& library = NVML_FAKE) {
    sources_.nvml = {library};
    return nvml_reader(sources_, gpu);
  }
  SystemReader rocm(const GpuIdentity& gpu) const { return rocm_smi_reader(sources_, gpu); }

  const testing::TemporaryFolder files_;
  SystemSources sources_{
      .sys = files_ / "", .proc = {}, .nvml = {}, .amd_smi = {}, .rocm_smi = {ROCM_SMI_FAKE}};
};

TEST_F(GpuSensorsTest, NvmlReadsTheCardAtTheAddressOrOfTheNumberAndWhatItReports) {
  const SystemReader reader = nvml({"0000:5E:00.0", 0});
  EXPECT_EQ(reader.read(), (SystemReading{{"utilization_percent", 90},
                                          {"clock_MHz", 1980},
                                          {"temperature_celsius", 64},
                                          {"power_watts", 655.25},
                                          {"energy_joules", 1310.5},
                                          {"limited_by_power", 1},
                                          {"limited_by_temperature", 1},
                                          {"limited_by_hardware", 0}}));
  EXPECT_EQ(reader.facts,
            (std::map<std::string, std::string>{{"power_limit_W", "700"}, {"ecc", "on"}}));
  EXPECT_EQ(nvml({"", 1}, NVML_FAKE_OF_VERSION_11).read().at("limited_by_power"), 1)
      << "by the function's older name";
  EXPECT_EQ(reader.source, "NVML (" NVML_FAKE ")");
  const SystemReading by_number = nvml({"", 0}).read();
  EXPECT_EQ(by_number.at("utilization_percent"), 10);
  EXPECT_EQ(by_number.at("limited_by_power"), 0);
  EXPECT_FALSE(by_number.contains("temperature_celsius"));
  const SystemReading old_driver = nvml({"", 1}, NVML_FAKE_WITHOUT_POWER).read();
  EXPECT_FALSE(old_driver.contains("power_watts")) << "the library has no such function";
  EXPECT_EQ(old_driver.at("utilization_percent"), 90);
}

TEST_F(GpuSensorsTest, WhatACardReportsIsInTheSchemaOfATrainingsSummary) {
  std::ifstream file(TINY_LLAMA_SOURCE_DIR "/results/training_schema.json");
  const auto schema = nlohmann::json::parse(file).at("$defs").at("device_sampling");
  const auto& known = schema.at("properties").at("readings").at("properties");
  for (const auto& [name, value] : nvml({"", 1}).read())
    EXPECT_TRUE(known.contains(name) || name == "energy_joules") << name << ": in power_watts";
}

TEST_F(GpuSensorsTest, RocmSmiReadsTheCardAtTheAddressOrOfTheNumberAndWhatItReports) {
  write_clock("0000:03:00.0", "500000000");
  write_clock("0000:c1:00.0", "1700000000");
  // The junction's temperature, and the average power, not the socket's.
  const SystemReading whole = {{"utilization_percent", 77},
                               {"clock_MHz", 1700},
                               {"temperature_celsius", 68.5},
                               {"power_watts", 250.5}};
  for (const GpuIdentity& gpu : {GpuIdentity{"0000:C1:00.0", 0}, GpuIdentity{"", 1}}) {
    EXPECT_EQ(rocm(gpu).read(), whole);
    EXPECT_EQ(rocm(gpu).source, "ROCm SMI (" ROCM_SMI_FAKE ") and amdgpu's files");
  }
  write_clock("0000:c1:00.0", "0");
  EXPECT_FALSE(rocm({"", 1}).read().contains("clock_MHz")) << "a card that sleeps";
  const SystemReading second_die = rocm({"0000:c9:00.0", 0}).read();
  EXPECT_EQ(second_die.at("utilization_percent"), 99);
  EXPECT_FALSE(second_die.contains("power_watts"));
  EXPECT_FALSE(second_die.contains("clock_MHz"));
  EXPECT_EQ(rocm({"0000:c9:00.0", 0}).source, "ROCm SMI (" ROCM_SMI_FAKE ")");
  // The edge's and the socket's, where the first sensors are missing.
  EXPECT_EQ(rocm({"0001:c6:1f.7", 0}).read(),
            (SystemReading{
                {"utilization_percent", 88}, {"temperature_celsius", 52}, {"power_watts", 480}}));
  sources_.rocm_smi = {"libno-such-library.so.1", ROCM_SMI_FAKE_WITHOUT_SOCKET_POWER};
  EXPECT_FALSE(rocm({"0001:c6:1f.7", 0}).read().contains("power_watts"));
}

TEST_F(GpuSensorsTest, AmdSmiReadsTheCardAtTheAddressAndRocmSmiWhereThereIsNone) {
  sources_.amd_smi = {AMD_SMI_FAKE};
  const SystemReader reader = gpu_reader(Backend::hip, sources_, {"0000:C1:00.0", 0});
  EXPECT_EQ(reader.source, "AMD SMI (" AMD_SMI_FAKE ")");
  EXPECT_EQ(reader.read(), (SystemReading{{"utilization_percent", 83},
                                          {"clock_MHz", 1700},
                                          {"temperature_celsius", 71},
                                          {"energy_joules", 61}}));
  const SystemReading second_die = amd_smi_reader(sources_, {"0000:c9:02.1", 0}).read();
  EXPECT_FALSE(second_die.contains("energy_joules"));
  EXPECT_FALSE(second_die.contains("clock_MHz")) << "a card that sleeps";
  // Cards that it does not know, or of unknown address, are ROCm SMI's.
  for (const GpuIdentity& gpu : {GpuIdentity{"0001:c6:1f.7", 0}, GpuIdentity{"", 1}})
    EXPECT_TRUE(gpu_reader(Backend::hip, sources_, gpu).source.starts_with("ROCm SMI"));
  sources_.amd_smi = {AMD_SMI_FAKE_WITHOUT_INIT};
  EXPECT_TRUE(gpu_reader(Backend::hip, sources_, {"", 1}).source.starts_with("ROCm SMI"));
  sources_.rocm_smi = {ROCM_SMI_FAKE_WITHOUT_INIT};
  const SystemReader none = gpu_reader(Backend::hip, sources_, {"", 1});
  testing::expect_mentions(none.source,
                           {"none (" AMD_SMI_FAKE_WITHOUT_INIT, ROCM_SMI_FAKE_WITHOUT_INIT});
  EXPECT_TRUE(none.read().empty());
}

TEST_F(GpuSensorsTest, TheContextTellsDriverPartitionAndWhatTheLibraryKnows) {
  files_.write("module/amdgpu/version", "6.12.12");
  files_.write("bus/pci/devices/0000:c1:00.0/current_compute_partition", "CPX");
  files_.write("bus/pci/devices/0000:c1:00.0/current_memory_partition", "NPS4");
  files_.write("module/nvidia/version", "580.82.07");
  using Settings = std::map<std::string, std::string>;
  EXPECT_EQ(gpu_settings(Backend::hip, {"0000:C1:00.0", 0}, sources_),
            (Settings{{"gpu.driver", "6.12.12"},
                      {"gpu.compute_partition", "CPX"},
                      {"gpu.memory_partition", "NPS4"}}));
  sources_.nvml = {NVML_FAKE};
  EXPECT_EQ(
      gpu_settings(Backend::cuda, {"0000:5E:00.0", 0}, sources_),
      (Settings{{"gpu.driver", "580.82.07"}, {"gpu.power_limit_W", "700"}, {"gpu.ecc", "on"}}));
}

TEST_F(GpuSensorsTest, ErrorsNameTheLibraryAndTheCause) {
  const std::string absent = "libno-such-library.so.1";
  struct Fault {
    std::string library;
    GpuIdentity gpu;
    std::string said;
  };
  const Fault of_nvidia[] = {
      {absent, {}, absent},
      {NVML_FAKE_WITHOUT_INIT, {}, NVML_FAKE_WITHOUT_INIT " has no nvmlInit_v2"},
      {NVML_FAKE, {"0000:99:00.0", 0}, "knows no GPU 0000:99:00.0"},
      {NVML_FAKE, {"", 2}, "knows no GPU number 2"}};
  for (const Fault& fault : of_nvidia)
    testing::expect_mentions(testing::error_of([&] { nvml(fault.gpu, fault.library); }),
                             {fault.said});
  const Fault of_amd[] = {
      {absent, {}, absent},
      {ROCM_SMI_FAKE_WITHOUT_INIT, {}, ROCM_SMI_FAKE_WITHOUT_INIT " has no rsmi_init"},
      {ROCM_SMI_FAKE, {"0000:99:00.0", 0}, "knows no GPU 0000:99:00.0 among its 4"},
      {ROCM_SMI_FAKE, {"", 4}, "knows no GPU number 4 among its 4"}};
  for (const Fault& fault : of_amd) {
    sources_.rocm_smi = {fault.library};
    testing::expect_mentions(testing::error_of([&] { rocm(fault.gpu); }), {fault.said});
  }
  sources_.rocm_smi = {};
  EXPECT_EQ(testing::error_of([&] { rocm({}); }), "no library is named");
}

TEST_F(GpuSensorsTest, TheLibrariesAreShutDownAgain) {
  {
    const auto of_nvidia = nvml({"", 0}), of_amd = rocm({"", 0});
    EXPECT_EQ(open_sessions(NVML_FAKE), 1);
    EXPECT_EQ(open_sessions(ROCM_SMI_FAKE), 1);
  }
  EXPECT_NE(testing::error_of([&] { nvml({"", 2}); }), "no error");
  EXPECT_NE(testing::error_of([&] { rocm({"", 4}); }), "no error");
  EXPECT_EQ(open_sessions(NVML_FAKE), 0) << "after a card that is not there";
  EXPECT_EQ(open_sessions(ROCM_SMI_FAKE), 0) << "after a card that is not there";
}

}  // namespace
}  // namespace tinyllama::instruments
