#include "benchmarks/harness/journal.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>

#include "benchmarks/harness/run_context.hpp"
#include "benchmarks/harness/testing.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::harness {
namespace {

class JournalTest : public ::testing::Test {
 protected:
  void write(const std::string& text) const { ::tinyllama::testing::write_bytes(file, text); }
  std::string text() const { return ::tinyllama::testing::read_bytes(file); }
  std::string read_error() const {
    return testing::error_of<std::invalid_argument>([&] { Journal::read(file); });
  }
  std::string at_line(int number, const std::string& rule) const {
    return "journal " + file.string() + ", line " + std::to_string(number) + ": " + rule;
  }

  testing::TemporaryFolder folder;
  std::filesystem::path file = folder / "journal.jsonl";
  Json header = {{"seed", 42}, {"device", {{"name", "some \"device\"\n"}}}};
  CaseResult first{"a/forward",
                   Json::array({{{"name", "a"}, {"run_name", "a"}, {"real_time", 0.1}}})};
  CaseResult second{"b/forward",
                    Json::array({{{"name", "b"}, {"run_name", "b"}, {"real_time", 0.2}},
                                 {{"name", "b_mean"}, {"run_name", "b"}, {"real_time", 0.2}}})};
};

TEST_F(JournalTest, EachCaseIsInTheFileBeforeTheNext) {
  Journal journal = Journal::create(file, header);
  const std::vector<CaseResult> written = {first, second};
  for (size_t count = 0;; ++count) {
    const JournalContents contents = Journal::read(file);
    EXPECT_EQ(contents.header, header);
    ASSERT_EQ(contents.results.size(), count);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(contents.results[i].name, written[i].name);
      EXPECT_EQ(contents.results[i].entries, written[i].entries);
    }
    if (count == written.size()) break;
    journal.add(written[count]);
  }
}

// Whatever byte a kill cuts the last line at, what is before it is read, and appending continues
// from there.
TEST_F(JournalTest, ALineCutShortIsIgnoredAndRemovedBeforeAppending) {
  { Journal::create(file, header).add(first); }
  const std::string whole = text();
  { Journal::append_to(file).add(second); }
  const std::string longer = text();
  for (size_t length = whole.size(); length < longer.size(); ++length) {
    write(longer.substr(0, length));
    ASSERT_EQ(Journal::read(file).results.size(), 1U) << length;
    Journal::append_to(file).add(second);
    ASSERT_EQ(text(), longer) << length;
  }
}

TEST_F(JournalTest, TwoRunsDoNotWriteOneJournal) {
  const Journal running = Journal::create(file, {{"seed", 1}});
  EXPECT_CONTAINS(testing::error_of<std::invalid_argument>([&] { Journal::append_to(file); }),
                  "another run writes it");
}

// As a kill, or a full disk, may leave it.
TEST_F(JournalTest, AHeaderCutShortIsBegunAnewAndNothingElseIs) {
  { Journal::create(file, header); }
  const std::string whole = text();
  for (size_t length = 0; length < whole.size(); ++length) {
    write(whole.substr(0, length));
    ASSERT_FALSE(Journal::is_begun(file)) << length;
    { Journal::create(file, header); }
    ASSERT_EQ(text(), whole) << length;
  }
  for (const std::string& other : {whole, std::string("mine"), std::string("{\"journal\":1")}) {
    write(other);
    EXPECT_TRUE(Journal::is_begun(file)) << other;
    EXPECT_EQ(testing::error_of<std::invalid_argument>([&] { Journal::create(file, header); }),
              "--journal " + file.string() +
                  ": exists and is not empty; continue it with --resume, or name another file");
    EXPECT_EQ(text(), other);
  }
}

TEST_F(JournalTest, WhatIsNotAJournalIsRefusedWithItsLine) {
  write("mine");
  EXPECT_EQ(read_error(), "journal " + file.string() + ": has no whole line");
  const std::string magic = R"({"journal": "tiny_llama_bench journal", "schema_version": )";
  const std::string other = ": this program writes " + std::to_string(kSchemaVersion) +
                            ", whose rows mean something else; measure anew, without --resume";
  const std::pair<std::string, std::string> headers[] = {
      {"hello", "is not valid JSON"},
      {"[1, 2]", "must hold a JSON object"},
      {"{}", "is not the header of a journal"},
      {R"({"journal": "other", "header": {}})", "is not the header of a journal"},
      {R"({"journal": 7, "schema_version": 1, "header": {}})", "is not the header of a journal"},
      {magic + "1}", "is not the header of a journal"},
      {magic + R"(4, "header": 1})", "is not the header of a journal"},
      {magic + R"(2, "header": {}})", "schema_version 2" + other},
      {magic + R"(999, "header": {}})", "schema_version 999" + other},
      {magic + R"("1", "header": {}})", "schema_version \"1\"" + other},
      {magic + R"(null, "header": {}})", "schema_version null" + other}};
  for (const auto& [line, rule] : headers) {
    write(line + "\n");
    EXPECT_CONTAINS(read_error(), at_line(1, rule));
  }
}

// The run that continues does arithmetic with rows, and copies them by functions that call
// themselves.
TEST_F(JournalTest, AMalformedLineIsRefused) {
  { Journal::create(file, header).add(first); }
  const std::string good = text();
  write(good + "{\"case\": \"b\", \"entr\n" + good.substr(good.find('\n') + 1));
  EXPECT_CONTAINS(read_error(), at_line(3, "is not valid JSON"));
  for (const char* line : {R"({"case": "b"})", R"({"entries": []})",
                           R"({"case": 1, "entries": []})", R"({"case": "b", "entries": 1})"}) {
    write(good + line + "\n");
    EXPECT_EQ(read_error(), at_line(3, "needs a case and its entries")) << line;
  }
  const std::string row = R"("name": "b", "run_name": "b", "real_time": 1)";
  const std::pair<std::string, std::string> rows[] = {
      {"7", "needs entries that are objects"},
      {R"({"name": "b", "run_name": "b"})", "needs entries with a real_time"},
      {"{" + row + R"(, "label": 3})", "label = 3: must be a text"},
      {"{" + row + R"(, "skipped": "no"})", "skipped = \"no\": must be true or false"},
      {"{" + row + R"(, "TFLOPS": [1]})", "TFLOPS = [1]: must be a number"},
      {"{" + row + R"(, "samples_ns": [1, null]})", "samples_ns = [1,null]: must be a number"},
      {"{" + row + R"(, "TFLOPS": 1e999})", "is not valid JSON"},
      {"{" + row + R"(, "name": "c"})", "key 'name' occurs twice"},
      {std::string(100'000, '[') + std::string(100'000, ']'), "nests deeper than 16 levels"}};
  for (const auto& [entry, rule] : rows) {
    write(good + R"({"case": "b", "entries": [)" + entry + "]}\n");
    EXPECT_CONTAINS(read_error(), "line 3: ");
    EXPECT_CONTAINS(read_error(), rule);
  }
}

TEST_F(JournalTest, AMissingFileIsRefused) {
  EXPECT_CONTAINS(read_error(), "journal " + file.string() + ": cannot be read");
  EXPECT_THROW(Journal::append_to(file), std::invalid_argument);
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST_F(JournalTest, PathsThatCannotBeWrittenAreNamed) {
  for (const auto& path : {folder / "no_such_folder/journal", folder.path()}) {
    const auto error =
        testing::error_of<std::runtime_error>([&] { Journal::create(path, header); });
    EXPECT_CONTAINS(error, "journal " + path.string() + ": cannot be created: ");
  }
}

TEST_F(JournalTest, AFullDiskIsAnErrorThatNamesTheFile) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  EXPECT_EQ(testing::error_of<std::runtime_error>([&] { Journal::create("/dev/full", header); }),
            "journal /dev/full: cannot be written: No space left on device");
}

TEST_F(JournalTest, CircumstancesThatDifferAreNamed) {
  const Json now = {{"seed", 42}, {"threads", 2}, {"device", {{"name", "x"}}}};
  EXPECT_NO_THROW(check_same_circumstances(file, now, now, {"seed", "threads", "device"}));
  Json then = now;
  then["threads"] = 4;
  then["seed"] = 1;
  const auto error = [&](const std::vector<std::string>& keys) {
    return testing::error_of<std::invalid_argument>(
        [&] { check_same_circumstances(file, then, now, keys); });
  };
  EXPECT_EQ(error({"device"}), "no error");
  EXPECT_EQ(error({"device", "threads", "seed"}),
            "--resume: journal " + file.string() +
                " was written with threads = 4, this run has 2; results of both must not be mixed");
  then = now;
  then.erase("device");
  EXPECT_CONTAINS(error({"device"}), "device = null");
  then = now;
  then["device"] = {{"name", "x"}, {"driver", {{"version", 1}}}};
  EXPECT_CONTAINS(error({"device"}), "with device/driver = {\"version\":1}, this run has null");
}

TEST_F(JournalTest, RepetitionsOfOtherGoalsAreNotJoined) {
  const std::pair<std::function<void(Options&)>, std::string> changes[] = {
      {[](Options& o) { o.timing.iterations = 1; },
       "--benchmark_min_time = \"0.1s\", this run has \"1x\""},
      {[](Options& o) { o.timing.min_seconds = 2; }, "\"0.1s\", this run has \"2s\""},
      {[](Options& o) { o.timing.warm_up_seconds = 1; }, "--benchmark_min_warmup_time = 0.05, "},
      {[](Options& o) { o.timing.repetitions = 5; },
       "--benchmark_repetitions = 3, this run has 5; results of both must not be mixed"},
      {[](Options& o) { o.timing.precision = 0.01; },
       "--precision = \"default\", this run has 1.0"},
      {[](Options& o) { o.max_seconds_per_case = 3; }, "--max-seconds-per-case = 10.0, "},
      {[](Options& o) { o.memory_limit_bytes = 7; }, "--memory-limit = \"what is free\", "},
      {[](Options& o) { o.admit = Admit::all; }, "--admit = \"fitting\", this run has \"all\""}};
  const Json before = {{"goals", goals_of({})}};
  EXPECT_NO_THROW(check_same_circumstances(file, before, before, circumstances_to_keep()));
  for (const auto& [change, words] : changes) {
    Options options;
    change(options);
    EXPECT_CONTAINS(testing::error_of<std::invalid_argument>([&] {
                      check_same_circumstances(file, before, {{"goals", goals_of(options)}},
                                               circumstances_to_keep());
                    }),
                    words);
  }
}

}  // namespace
}  // namespace tinyllama::harness
