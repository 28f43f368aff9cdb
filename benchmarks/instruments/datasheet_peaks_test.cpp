#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "benchmarks/instruments/peaks.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::instruments {
namespace {

const std::filesystem::path real_file =
    std::filesystem::path(TINY_LLAMA_SOURCE_DIR) / "fixtures" / "device_peaks.json";

std::optional<DatasheetPeaks> find(const std::string& name, int multiprocessors = 0) {
  DeviceDescription description;
  description.name = name;
  description.multiprocessors = multiprocessors;
  return find_datasheet_peaks(real_file, description);
}

std::string device_of(const std::string& name, int multiprocessors = 0) {
  const auto peaks = find(name, multiprocessors);
  return peaks ? peaks->device : "none";
}

TEST(DatasheetPeaksTest, NamesAsTheRuntimesReportThem) {
  EXPECT_EQ(device_of("AMD Instinct MI250X", 110), "AMD Instinct MI250X (one GCD)");
  EXPECT_EQ(device_of("MI250X/MI250", 110), "AMD Instinct MI250X (one GCD)");
  EXPECT_EQ(device_of("AMD Instinct MI250X / MI250", 110), "AMD Instinct MI250X (one GCD)");
  EXPECT_EQ(device_of("AMD Instinct MI300X OAM", 304), "AMD Instinct MI300X");
  EXPECT_EQ(device_of("AMD Instinct MI325X"), "AMD Instinct MI325X");
  EXPECT_EQ(device_of("AMD Instinct MI355X", 256), "AMD Instinct MI355X");
  EXPECT_EQ(device_of("NVIDIA H100 80GB HBM3", 132), "NVIDIA H100 SXM");
  EXPECT_EQ(device_of("NVIDIA H100 PCIe", 114), "NVIDIA H100 PCIe");
  EXPECT_EQ(device_of("NVIDIA H200", 132), "NVIDIA H200 SXM");
}

TEST(DatasheetPeaksTest, OtherDevicesHaveNone) {
  for (const char* name : {"", "AMD EPYC", "AMD Instinct MI250", "AMD Instinct MI210",
                           "NVIDIA GH200 480GB", "NVIDIA H100 NVL", "NVIDIA H200 NVL",
                           "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A100-SXM4-80GB"}) {
    EXPECT_EQ(device_of(name), "none") << name;
  }
}

TEST(DatasheetPeaksTest, APartOfADeviceHasNone) {
  // One accelerator complex die of a partitioned MI300X; an MI250 under the name that the two
  // share.
  EXPECT_EQ(device_of("AMD Instinct MI300X", 38), "none");
  EXPECT_EQ(device_of("MI250X/MI250", 104), "none");
}

TEST(DatasheetPeaksTest, FiguresAreDenseAndOfOneLogicalDevice) {
  const DatasheetPeaks mi250x = find("AMD Instinct MI250X").value();
  EXPECT_DOUBLE_EQ(mi250x.flops.at("f32"), 47.85e12);
  EXPECT_DOUBLE_EQ(mi250x.flops.at("bf16"), 191.5e12);
  EXPECT_EQ(mi250x.memory_bytes, int64_t{64} << 30);
  const DatasheetPeaks h100 = find("NVIDIA H100 80GB HBM3").value();
  EXPECT_DOUBLE_EQ(h100.flops.at("f32"), 66.9e12);
  EXPECT_DOUBLE_EQ(h100.flops.at("bf16"), 989.4e12);
  EXPECT_DOUBLE_EQ(h100.memory_bandwidth, 3.35e12);
  EXPECT_NE(h100.source.find("https://"), std::string::npos);
}

/// Spoils one thing of a valid file and expects an error that names the file, the key, the value
/// and the rule.
class BadDatasheetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ifstream stream(real_file);
    document_ = nlohmann::json::parse(stream);
  }

  nlohmann::json& row() { return document_["devices"][1]; }

  void expect_error(const std::vector<std::string>& fragments) {
    std::ofstream(file_) << document_;
    expect_error_of_file(fragments);
  }
  void expect_error_of_file(const std::vector<std::string>& fragments) {
    try {
      find_datasheet_peaks(file_, {});
      FAIL() << "accepted";
    } catch (const std::invalid_argument& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(file_.filename().string()), std::string::npos) << message;
      for (const std::string& fragment : fragments) {
        EXPECT_NE(message.find(fragment), std::string::npos) << message;
      }
    }
  }

  ::tinyllama::testing::TemporaryFolder folder_;
  std::filesystem::path file_ = folder_ / "bad_peaks.json";
  nlohmann::json document_;
};

TEST_F(BadDatasheetTest, MissingFile) {
  expect_error_of_file({"cannot be read"});
}

TEST_F(BadDatasheetTest, MalformedJson) {
  std::ofstream(file_) << "{\"devices\": [";
  expect_error_of_file({"not JSON", "line 1"});
}

TEST_F(BadDatasheetTest, NotAnObject) {
  document_ = nlohmann::json::array();
  expect_error({"(whole file) = []", "must be an object"});
}

TEST_F(BadDatasheetTest, WrongType) {
  row()["memory_bytes"] = "192 GB";
  expect_error({"devices[1].memory_bytes = \"192 GB\"", "must be a positive integer"});
}

TEST_F(BadDatasheetTest, NegativeFigure) {
  row()["flops"]["bf16_matrix"] = -1.5;
  expect_error({"devices[1].flops.bf16_matrix = -1.5", "must be a positive number"});
}

TEST_F(BadDatasheetTest, UnknownKey) {
  row()["memory_bandwith"] = 1;
  expect_error({"devices[1].memory_bandwith = 1", "unknown key", "memory_bandwidth"});
}

TEST_F(BadDatasheetTest, UnknownMode) {
  row()["flops"]["f32_sparse"] = 1e12;
  expect_error({"devices[1].flops.f32_sparse", "unknown key"});
}

TEST_F(BadDatasheetTest, MissingKey) {
  row().erase("source");
  expect_error({"devices[1].source", "missing"});
}

TEST_F(BadDatasheetTest, TypeWithoutFigure) {
  row()["types"]["f32"] = "f32_tensor";
  expect_error({"devices[1].types.f32 = \"f32_tensor\"", "one of the keys"});
}

TEST_F(BadDatasheetTest, BadWord) {
  row()["match"]["words"] = {"MI300X OAM"};
  expect_error({"devices[1].match.words[0] = \"MI300X OAM\"", "one word of lower-case"});
}

TEST_F(BadDatasheetTest, NoDevices) {
  document_["devices"] = nlohmann::json::array();
  expect_error({"devices = []", "at least one"});
}

}  // namespace
}  // namespace tinyllama::instruments
