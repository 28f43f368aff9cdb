#include "benchmarks/training/tensorboard_events.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::training {
namespace {

namespace fs = std::filesystem;
using ::tinyllama::testing::TemporaryFolder;

/// Reads protocol buffers, written from their specification and not from the writer.
class Message {
 public:
  explicit Message(const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const uint64_t key = varint(bytes, at);
      const uint64_t wire = key & 7;
      size_t length = wire == 1 ? 8 : wire == 5 ? 4 : 0;
      if (wire == 2) length = varint(bytes, at);
      if (wire == 0) {
        numbers[key >> 3] = varint(bytes, at);
      } else {
        fields[key >> 3].push_back(bytes.substr(at, length));
        at += length;
      }
    }
  }
  template <typename Number>
  Number fixed(uint64_t field) const {
    Number number{};
    EXPECT_EQ(fields.at(field).at(0).size(), sizeof number);
    std::memcpy(&number, fields.at(field).at(0).data(), sizeof number);
    return number;
  }
  std::map<uint64_t, std::vector<std::string>> fields;
  std::map<uint64_t, uint64_t> numbers;

 private:
  static uint64_t varint(const std::string& bytes, size_t& at) {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<uint8_t>(bytes.at(at++));
      value |= uint64_t{byte & 0x7fu} << shift;
      if ((byte & 0x80) == 0) return value;
    }
  }
};

class TensorboardEventsTest : public ::testing::Test {
 protected:
  static std::string text_of(const fs::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  /// The data of the file's records, their checksums checked.
  static std::vector<Message> events_of(const fs::path& file) {
    const std::string text = text_of(file);
    std::vector<Message> events;
    for (size_t at = 0; at < text.size();) {
      uint64_t length = 0;
      std::memcpy(&length, text.data() + at, sizeof length);
      expect_checksum(text.substr(at, 8), text.substr(at + 8, 4));
      const std::string data = text.substr(at + 12, length);
      expect_checksum(data, text.substr(at + 12 + length, 4));
      events.emplace_back(data);
      at += 16 + length;
    }
    return events;
  }
  static void expect_checksum(const std::string& data, const std::string& stored) {
    uint32_t masked = 0;
    ASSERT_EQ(stored.size(), sizeof masked);
    std::memcpy(&masked, stored.data(), sizeof masked);
    const uint32_t rotated = masked - 0xa282ead8u;
    EXPECT_EQ((rotated >> 17) | (rotated << 15), crc32c(data));
  }
  static std::map<std::string, float> scalars_of(const Message& event) {
    std::map<std::string, float> scalars;
    const Message summary(event.fields.at(5).at(0));
    for (const std::string& value : summary.fields.at(1)) {
      const Message scalar(value);
      scalars[scalar.fields.at(1).at(0)] = scalar.fixed<float>(2);
    }
    return scalars;
  }
  const fs::path& folder() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

TEST(Crc32cTest, GivesThePublishedValues) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);    // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);  // RFC 3720, B.4
}

TEST_F(TensorboardEventsTest, TheFileIsNamedAsTensorBoardWantsAndSaysItsVersion) {
  const TensorboardEvents events(folder());
  const std::string name = events.path().filename().string();
  const std::string prefix = "events.out.tfevents.";
  ASSERT_TRUE(name.starts_with(prefix)) << name;
  const size_t after_seconds = name.find_first_not_of("0123456789", prefix.size());
  EXPECT_EQ(after_seconds, prefix.size() + 10) << "seconds since 1970 have ten digits: " << name;
  EXPECT_EQ(name.at(after_seconds), '.') << name;
  EXPECT_GT(name.size(), after_seconds + 1) << "no host: " << name;
  const auto messages = events_of(events.path());
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].fields.at(3).at(0), "brain.Event:2");
}

TEST_F(TensorboardEventsTest, AStepIsInTheFileAtOnce) {
  const auto before = static_cast<double>(std::time(nullptr));
  TensorboardEvents events(folder());
  events.write({.step = 1, .loss = 6.5, .step_time_seconds = 0.25, .samples_per_second = 32});
  ASSERT_EQ(events_of(events.path()).size(), 2u);
  events.write({.step = 300, .loss = 5.25, .evaluation_loss = 5.5, .peak_memory_MiB = 1234.5});
  const auto messages = events_of(events.path());
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[1].numbers.at(2), 1u);
  EXPECT_EQ(scalars_of(messages[1]),
            (std::map<std::string, float>{
                {"loss", 6.5f}, {"step_time_seconds", 0.25f}, {"samples_per_second", 32.0f}}));
  EXPECT_EQ(messages[2].numbers.at(2), 300u) << "a number of two bytes";
  EXPECT_EQ(scalars_of(messages[2]),
            (std::map<std::string, float>{
                {"loss", 5.25f}, {"evaluation_loss", 5.5f}, {"peak_memory_MiB", 1234.5f}}));
  const double wall_time = messages[2].fixed<double>(1);
  EXPECT_GE(wall_time, before);
  EXPECT_LE(wall_time, before + 60);
}

TEST_F(TensorboardEventsTest, AStepWithoutFiguresIsNoEvent) {
  TensorboardEvents events(folder());
  events.write({.step = 4});
  EXPECT_EQ(events_of(events.path()).size(), 1u);
}

TEST_F(TensorboardEventsTest, TwoRunsOfTheSameSecondHaveTwoFiles) {
  std::map<fs::path, int> paths;
  for (int run = 0; run < 3; ++run) {
    TensorboardEvents events(folder());
    events.write({.step = run, .loss = 1.0});
    ++paths[events.path()];
  }
  EXPECT_EQ(paths.size(), 3u);
  for (const auto& [path, runs] : paths) EXPECT_EQ(events_of(path).size(), 2u) << path;
}

TEST_F(TensorboardEventsTest, AFolderThatIsMissingIsNamed) {
  try {
    TensorboardEvents events(folder() / "none");
    ADD_FAILURE() << "written to a folder that is not there";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find((folder() / "none").string()), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("No such file or directory"), std::string::npos);
  }
}

TEST_F(TensorboardEventsTest, WhereTheDiskEndsTheStepsBeforeStayWhole) {
  TensorboardEvents events(folder());
  events.write({.step = 1, .loss = 6.5});
  const auto whole = fs::file_size(events.path());
  // A limit within the next record: part of it is written before the system refuses.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto previous_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{whole + 10, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_THROW(events.write({.step = 2, .loss = 6.25}), std::runtime_error);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, previous_handler);
  EXPECT_EQ(fs::file_size(events.path()), whole);
}

}  // namespace
}  // namespace tinyllama::training
