// Readings of GPUs, from fakes of their vendors' libraries (tests/fakes/) and of the driver's
// files.
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
  void write(const std::string& bus_id, const std::string& file, const std::string& text) {
    files_.write(fs::path("bus/pci/devices") / bus_id / file, text);
  }
  SystemReader nvml(const std::string& library = NVML_FAKE,
                    const std::string& bus_id = "0000:5E:00.0") {
    sources_.nvml = {"libno-such-library.so.1", library};
    return gpu_reader(Backend::cuda, sources_, bus_id);
  }
  SystemReader amd(const std::string& bus_id = "0000:C1:00.0") const {
    return gpu_reader(Backend::hip, sources_, bus_id);
  }

  const testing::TemporaryFolder files_;
  SystemSources sources_{.sys = files_ / "", .proc = {}, .nvml = {}, .amd_smi = {AMD_SMI_FAKE}};
};

TEST_F(GpuSensorsTest, NvmlReadsTheCardAtTheAddressAndWhatItReports) {
  SystemReading expected = {{"utilization_percent", 90},   {"clock_MHz", 1980},
                            {"temperature_celsius", 64},   {"power_watts", 655.25},
                            {"energy_joules", 1310.5},     {"limited_by_power", 1},
                            {"limited_by_temperature", 1}, {"limited_by_hardware", 0}};
  const SystemReader reader = nvml();
  EXPECT_EQ(reader.read(), expected);
  EXPECT_EQ(reader.facts,
            (std::map<std::string, std::string>{{"power_limit_W", "700"}, {"ecc", "on"}}));
  EXPECT_EQ(reader.source, "NVML (" NVML_FAKE ")");
  std::ifstream file(TINY_LLAMA_SOURCE_DIR "/results/training_schema.json");
  const auto schema = nlohmann::json::parse(file).at("$defs").at("device_sampling");
  const auto& known = schema.at("properties").at("readings").at("properties");
  for (const auto& [name, value] : expected)
    EXPECT_TRUE(known.contains(name) || name == "energy_joules") << name << ": in power_watts";
  expected.erase("power_watts");
  expected.erase("energy_joules");
  EXPECT_EQ(nvml(NVML_FAKE_OF_OLD_DRIVER).read(), expected);
}

TEST_F(GpuSensorsTest, AmdgpusFilesTellAllButTheEnergyThatAmdSmiCounts) {
  write("0000:c1:00.0", "gpu_busy_percent", "77");
  const std::string monitor = "hwmon/hwmon7/";
  write("0000:c1:00.0", monitor + "freq1_input", "1700000000");
  write("0000:c1:00.0", monitor + "temp1_input", "61000");
  write("0000:c1:00.0", monitor + "power1_input", "250500000");
  SystemReading expected = {{"utilization_percent", 77},
                            {"clock_MHz", 1700},
                            {"temperature_celsius", 61},
                            {"power_watts", 250.5},
                            {"energy_joules", 61}};
  EXPECT_EQ(amd().read(), expected);
  EXPECT_EQ(amd().source, "amdgpu's files and AMD SMI (" AMD_SMI_FAKE ")");
  // The junction's, and the average power, are preferred.
  write("0000:c1:00.0", monitor + "temp2_input", "68500");
  write("0000:c1:00.0", monitor + "power1_average", "240000000");
  expected["temperature_celsius"] = 68.5;
  expected["power_watts"] = 240;
  write("0000:c1:00.0", "hwmon/hwmon8/name", "of another driver");
  EXPECT_EQ(amd().read(), expected);
  // A partition, which has no files of its own.
  EXPECT_EQ(amd("0000:c1:00.3").read(), expected);
  EXPECT_EQ(amd("0000:c1:00.3").facts,
            (std::map<std::string, std::string>{{"power_of", "the card, all its partitions"}}));
  EXPECT_TRUE(amd().facts.empty());
  EXPECT_TRUE(amd("0000:c1:00.3")
                  .source.ends_with("; power and energy are of the card, all its partitions"));
  // Its first partition has the card's own address.
  write("0000:c1:00.0", "current_compute_partition", "CPX");
  EXPECT_EQ(amd().facts, amd("0000:c1:00.3").facts);
  write("0000:c1:00.0", "current_compute_partition", "SPX");
  EXPECT_TRUE(amd().facts.empty());
  // A second die that sleeps.
  for (const char* file : {"freq1_input", "power1_average"})
    write("0000:c9:02.1", monitor + file, "0");
  EXPECT_TRUE(amd("0000:c9:02.1").read().empty());
  EXPECT_TRUE(amd("0000:c9:02.1").source.starts_with("amdgpu's files and AMD SMI"));
  expected.erase("energy_joules");
  sources_.amd_smi = {"libno-such-library.so.1", AMD_SMI_FAKE_WITHOUT_INIT};
  EXPECT_EQ(amd().read(), expected);
  EXPECT_EQ(amd().source, "amdgpu's files (no counter of energy: " AMD_SMI_FAKE_WITHOUT_INIT
                          " has no amdsmi_init)");
}

TEST_F(GpuSensorsTest, APartsReadingsSayWhosePowerItIs) {
  const SystemReader mig = nvml(NVML_FAKE, "0000:5F:00.0");
  EXPECT_EQ(mig.facts.at("power_of"), "the card, all its MIG instances");
  EXPECT_EQ(mig.source,
            "NVML (" NVML_FAKE "); power and energy are of the card, all its MIG instances");
  DeviceDescription device;
  const auto module_of = [&](const char* name, const char* architecture, int units) {
    device.name = name;
    device.architecture = architecture;
    device.multiprocessors = units;
    return power_of_module(device);
  };
  const std::string both = "the module, both of its dies";
  EXPECT_EQ(module_of("AMD Instinct MI250X / MI250", "gfx90a", 110), both);
  EXPECT_EQ(module_of("AMD Radeon Graphics", "gfx90a", 110), both);
  EXPECT_EQ(module_of("unnamed GPU", "gfx90a", 104), both + ", where it is an MI250");
  EXPECT_EQ(module_of("AMD Instinct MI210", "gfx90a", 104), "");
  EXPECT_EQ(module_of("AMD Radeon Graphics", "gfx942", 304), "");
  EXPECT_TRUE(gpu_reader(Backend::cuda, sources_, "0000:5E:00.0", both)
                  .source.ends_with("; power and energy are of " + both));
}

TEST_F(GpuSensorsTest, ALibraryIsFoundWhateverItsNumber) {
  write("0000:c1:00.0", "hwmon/hwmon7/freq1_input", "1");
  const std::string any = (files_ / "libamd_smi.so.*").string();
  sources_.amd_smi = {any};
  testing::expect_mentions(amd().source, {"no counter of energy", "libamd_smi.so.99"});
  for (const char* number : {"7", "27"}) {
    const std::string name = (files_ / "libamd_smi.so.").string() + number;
    fs::copy_file(AMD_SMI_FAKE, name);
    EXPECT_EQ(amd().source, "amdgpu's files and AMD SMI (" + name + ")") << "the newest";
  }
}

TEST_F(GpuSensorsTest, TheContextTellsDriverPartitionAndWhatTheLibraryKnows) {
  files_.write("module/amdgpu/version", "6.12.12");
  write("0000:c1:00.0", "current_compute_partition", "CPX");
  write("0000:c1:00.0", "current_memory_partition", "NPS4");
  files_.write("module/nvidia/version", "580.82.07");
  using Settings = std::map<std::string, std::string>;
  const auto settings = [&](Backend backend, const std::string& bus_id) {
    Settings found = gpu_settings(backend, bus_id, sources_);
    found.erase("gpu.nccl");  // a libtorch for GPUs has loaded it
    return found;
  };
  EXPECT_EQ(settings(Backend::hip, "0000:C1:00.0"), (Settings{{"gpu.driver", "6.12.12"},
                                                              {"gpu.compute_partition", "CPX"},
                                                              {"gpu.memory_partition", "NPS4"}}));
  sources_.nvml = {NVML_FAKE};
  EXPECT_EQ(
      settings(Backend::cuda, "0000:5E:00.0"),
      (Settings{{"gpu.driver", "580.82.07"}, {"gpu.power_limit_W", "700"}, {"gpu.ecc", "on"}}));
}

TEST_F(GpuSensorsTest, WhereNothingIsReadTheSourceNamesTheCause) {
  const std::pair<SystemReader, std::string> cases[] = {
      {nvml("libanother.so"), "none (libno-such-library.so.1"},
      {nvml(NVML_FAKE_WITHOUT_INIT), "none (" NVML_FAKE_WITHOUT_INIT " has no nvmlInit_v2)"},
      {nvml(NVML_FAKE, "0000:99:00.0"), "none (" NVML_FAKE ": knows no GPU 0000:99:00.0)"},
      {amd("0000:99:00.0"), "none (amdgpu has no sensors of a GPU 0000:99:00.0)"}};
  for (const auto& [reader, said] : cases) {
    EXPECT_TRUE(reader.source.starts_with(said)) << reader.source;
    EXPECT_TRUE(reader.read().empty());
  }
}

TEST_F(GpuSensorsTest, TheLibrariesAreShutDownAgain) {
  write("0000:c1:00.0", "hwmon/hwmon7/freq1_input", "1");
  {
    const auto of_nvidia = nvml(), of_amd = amd();
    EXPECT_EQ(open_sessions(NVML_FAKE), 1);
    EXPECT_EQ(open_sessions(AMD_SMI_FAKE), 1);
  }
  nvml(NVML_FAKE, "0000:99:00.0");
  EXPECT_EQ(open_sessions(NVML_FAKE), 0) << "after a card that is not there";
  EXPECT_EQ(open_sessions(AMD_SMI_FAKE), 0);
}

}  // namespace
}  // namespace tinyllama::instruments
