// TensorBoard's own reader reads the files in tests/training/test_training_program.py.
#include "benchmarks/training/tensorboard_events.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <regex>
#include <set>
#include <stdexcept>
#include <string>

#include "model/testing.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::training {
namespace {

namespace fs = std::filesystem;
using ::tinyllama::testing::contains;
using ::tinyllama::testing::error_of;
using ::tinyllama::testing::TemporaryFolder;

TEST(TensorboardEventsTest, ChecksumsAreThePublishedOnes) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);    // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);  // RFC 3720, B.4
}

TEST(TensorboardEventsTest, RunsOfTheSameSecondHaveFilesOfTheirOwnNamedAsTensorBoardWants) {
  const TemporaryFolder folder;
  std::set<std::string> names;
  for (int run = 0; run < 3; ++run)
    names.insert(TensorboardEvents(folder.path()).path().filename().string());
  EXPECT_EQ(names.size(), 3u);
  const std::regex seconds_and_host("events\\.out\\.tfevents\\.[0-9]{10}\\..+");
  for (const auto& name : names) EXPECT_TRUE(std::regex_match(name, seconds_and_host)) << name;
}

TEST(TensorboardEventsTest, AStepIsInTheFileAtOnceUnlessItHasNoFigures) {
  const TemporaryFolder folder;
  TensorboardEvents events(folder.path());
  const auto empty = fs::file_size(events.path());
  events.write(1, {{"loss", std::nullopt}});
  EXPECT_EQ(fs::file_size(events.path()), empty);
  events.write(1, {{"loss", 6.5}});
  EXPECT_GT(fs::file_size(events.path()), empty);
}

TEST(TensorboardEventsTest, AFolderThatIsMissingIsNamed) {
  const TemporaryFolder folder;
  const auto missing = folder.path() / "none";
  const std::string error =
      error_of<std::runtime_error>([&] { TensorboardEvents events(missing); });
  EXPECT_TRUE(contains(error, missing.string())) << error;
  EXPECT_TRUE(contains(error, "No such file or directory")) << error;
}

TEST(TensorboardEventsTest, WhereTheDiskEndsTheStepsBeforeStayWhole) {
  const TemporaryFolder folder;
  TensorboardEvents events(folder.path());
  events.write(1, {{"loss", 6.5}});
  const auto whole = fs::file_size(events.path());
  // A limit within the next record: part of it is written before the system refuses.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto previous_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{whole + 10, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_THROW(events.write(2, {{"loss", 6.25}}), std::runtime_error);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, previous_handler);
  EXPECT_EQ(fs::file_size(events.path()), whole);
}

}  // namespace
}  // namespace tinyllama::training
