#include "benchmarks/harness/options.hpp"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <ostream>
#include <stdexcept>

#include "benchmarks/harness/plan.hpp"
#include "benchmarks/harness/run_context.hpp"
#include "benchmarks/harness/testing.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::harness {
namespace {

using Names = std::vector<std::string>;

std::optional<Options> try_parse(const Names& arguments) {
  std::vector<const char*> argv = {"tiny_llama_bench"};
  for (const auto& argument : arguments) argv.push_back(argument.c_str());
  return parse_options(static_cast<int>(argv.size()), argv.data(), {"rms_norm", "ffn", "peak"});
}

Options parse(const Names& arguments) {
  return try_parse(arguments).value();
}

std::string error(const Names& arguments) {
  return testing::error_of<std::invalid_argument>([&] { try_parse(arguments); });
}

TEST(OptionsTest, Defaults) {
  const Options options = parse({});
  EXPECT_FALSE(options.axes.any());
  EXPECT_EQ(options.device, "auto");
  EXPECT_EQ(options.problem_sizes_file, "");
  EXPECT_FALSE(options.custom_size);
  EXPECT_FALSE(options.threads);
  EXPECT_EQ(options.seed, 42U);
  EXPECT_EQ(options.verify, Verify::before);
  EXPECT_EQ(options.memory_limit_bytes, 0);
  EXPECT_EQ(options.max_seconds_per_case, 10.0);
  EXPECT_FALSE(options.cold_cache || options.resume || options.list || options.dry_run);
  EXPECT_EQ(options.journal_file, "");
  EXPECT_EQ(options.filter, ".");
  EXPECT_EQ(options.out_file, "");
  EXPECT_EQ(options.format, "console");
  EXPECT_TRUE(options.benchmark_arguments.empty());
}

TEST(OptionsTest, Axes) {
  const AxisOptions axes = parse({"--components", "rms_norm,peak", "--passes=forward,train",
                                  "--variants", "baseline", "--sizes", "tiny,anything", "--dtypes",
                                  "bf16,amp_f16", "--batch", "4:16:*2", "--seq", "128,64"})
                               .axes;
  EXPECT_EQ(axes.components, Names({"rms_norm", "peak"}));
  EXPECT_EQ(axes.passes, std::vector({Pass::forward, Pass::train}));
  EXPECT_EQ(axes.variants, Names({"baseline"}));
  EXPECT_EQ(axes.sizes, Names({"tiny", "anything"}));
  EXPECT_EQ(axes.dtypes, std::vector({Dtype::bf16, Dtype::amp_f16}));
  EXPECT_EQ(axes.batches, std::vector<int64_t>({4, 8, 16}));
  EXPECT_EQ(axes.seqs, std::vector<int64_t>({128, 64}));
}

TEST(OptionsTest, EachAxisAloneCountsAsGiven) {
  for (const Names& arguments :
       {Names{"--components", "ffn"}, Names{"--passes", "forward"}, Names{"--variants", "baseline"},
        Names{"--sizes", "tiny"}, Names{"--dtypes", "f32"}, Names{"--batch", "1"},
        Names{"--seq", "1"}, Names{"--n-layers", "1"}})
    EXPECT_TRUE(parse(arguments).axes.any()) << arguments.front();
  EXPECT_FALSE(parse({"--seed", "1", "--threads", "1", "--benchmark_filter=x"}).axes.any());
}

TEST(OptionsTest, CustomSize) {
  const Options options =
      parse({"--hidden-dim", "64", "--n-layers", "3", "--n-heads", "4", "--n-kv-heads", "2",
             "--intermediate-dim", "100", "--vocab-size", "50"});
  const ModelDimensions expected = {.vocab_size = 50,
                                    .hidden_dim = 64,
                                    .n_layers = 3,
                                    .n_heads = 4,
                                    .n_kv_heads = 2,
                                    .intermediate_dim = 100};
  EXPECT_EQ(options.custom_size, expected);
  EXPECT_EQ(options.axes.sizes, Names({"custom"}));
  // What is not named is the workshop's tiny, and sizes that are named stay.
  const Options one = parse({"--n-layers", "7", "--sizes", "tiny,custom"});
  EXPECT_EQ(one.custom_size, ModelDimensions{.n_layers = 7});
  EXPECT_EQ(one.axes.sizes, Names({"tiny", "custom"}));
}

TEST(OptionsTest, RunOptions) {
  const Options options =
      parse({"--device", "hip:1", "--problem-sizes", "sizes.json", "--threads", "3", "--seed", "7",
             "--verify", "off", "--memory-limit", "8GiB", "--max-seconds-per-case", "2.5",
             "--cold-cache", "--journal", "a.jsonl", "--resume"});
  EXPECT_EQ(options.device, "hip:1");
  EXPECT_EQ(options.problem_sizes_file, "sizes.json");
  EXPECT_EQ(options.threads, 3);
  EXPECT_EQ(options.seed, 7U);
  EXPECT_EQ(options.verify, Verify::off);
  EXPECT_EQ(options.memory_limit_bytes, int64_t{8} << 30);
  EXPECT_EQ(options.max_seconds_per_case, 2.5);
  EXPECT_TRUE(options.cold_cache && options.resume);
  EXPECT_TRUE(parse({"--list"}).list && parse({"--dry-run"}).dry_run);
  EXPECT_EQ(options.journal_file, "a.jsonl");
  EXPECT_EQ(parse({"--verify", "before"}).verify, Verify::before);
  EXPECT_EQ(parse({"--verify", "only"}).verify, Verify::only);
  EXPECT_EQ(parse({"--seed", "18446744073709551615"}).seed, UINT64_MAX);
  EXPECT_TRUE(parse({"--describe-device"}).describe_device);
}

TEST(OptionsTest, BenchmarkFlagsAreTakenOrKept) {
  const Options options = parse({"--benchmark_filter=a/b$", "--benchmark_min_time=0.2s",
                                 "--benchmark_out=out.json", "--benchmark_out_format=json",
                                 "--benchmark_format=json", "--benchmark_repetitions=5"});
  EXPECT_EQ(options.filter, "a/b$");
  EXPECT_EQ(options.out_file, "out.json");
  EXPECT_EQ(options.format, "json");
  EXPECT_EQ(options.benchmark_arguments,
            Names({"--benchmark_min_time=0.2s", "--benchmark_repetitions=5"}));
  EXPECT_EQ(parse({"--benchmark_filter=all"}).filter, ".");
  EXPECT_EQ(parse({"--benchmark_filter=a=b"}).filter, "a=b");
  EXPECT_TRUE(parse({"--benchmark_list_tests"}).list);
  EXPECT_TRUE(parse({"--benchmark_list_tests=true"}).list);
  EXPECT_FALSE(parse({"--benchmark_list_tests=false"}).list);
}

TEST(OptionsTest, TimingFlags) {
  const TimingOptions defaults = parse({}).timing;
  EXPECT_EQ(defaults.min_seconds, 0.1);
  EXPECT_EQ(defaults.repetitions, 3);
  EXPECT_FALSE(defaults.iterations || defaults.precision);
  const TimingOptions timing = parse({"--benchmark_min_time=0.2s", "--benchmark_repetitions=5",
                                      "--benchmark_min_warmup_time=0", "--precision", "0.5"})
                                   .timing;
  EXPECT_EQ(timing.min_seconds, 0.2);
  EXPECT_EQ(timing.repetitions, 5);
  EXPECT_EQ(timing.warm_up_seconds, 0);
  EXPECT_EQ(timing.precision, 0.005);
  EXPECT_EQ(parse({"--benchmark_min_time=2"}).timing.min_seconds, 2);
  EXPECT_EQ(parse({"--benchmark_min_time=20x"}).timing.iterations, 20);
  for (const char* flag :
       {"--benchmark_min_time=0", "--benchmark_min_time=-1s", "--benchmark_min_time=infs",
        "--benchmark_min_time=soon", "--benchmark_min_time", "--benchmark_repetitions=0",
        "--benchmark_min_warmup_time=-1"})
    EXPECT_CONTAINS(error({flag}), "must be positive") << flag;
  EXPECT_CONTAINS(error({"--benchmark_time_unit=us"}), "must be ms");
  EXPECT_EQ(parse({"--benchmark_time_unit=ms"}).benchmark_arguments.size(), 1U);
  EXPECT_CONTAINS(error({"--benchmark_min_time=5ms"}), "must be seconds, as 0.5s, or iterations");
  for (const char* flag : {"--benchmark_min_time=1.5x", "--benchmark_repetitions=2.5"})
    EXPECT_CONTAINS(error({flag}), "must be a whole number") << flag;
}

TEST(OptionsTest, BadBenchmarkFlags) {
  for (const char* flag : {"--benchmark_filter", "--benchmark_filter=", "--benchmark_out"})
    EXPECT_CONTAINS(error({flag}), "=VALUE");
  EXPECT_EQ(error({"--benchmark_format=csv"}),
            "--benchmark_format 'csv': must be console or json; csv drops counters that the first "
            "case lacks");
  EXPECT_EQ(error({"--benchmark_format", "csv"}),
            "--benchmark_format: write --benchmark_format=VALUE");
  EXPECT_CONTAINS(error({"--benchmark_out_format=csv"}),
                  "--benchmark_out_format 'csv': must be json");
}

TEST(OptionsTest, UnknownOptionNamesItAndWhatWasMeantOrIsKnown) {
  EXPECT_EQ(error({"--component", "ffn"}),
            "'--component': is no option; did you mean --components?");
  EXPECT_EQ(error({"--dtype=f32"}), "'--dtype=f32': is no option; did you mean --dtypes?");
  for (const Names& arguments : {Names{"-xyz"}, Names{"--bench_filter=a"}, Names{"first", "--z"}}) {
    const std::string message = error(arguments);
    EXPECT_CONTAINS(message, "'" + arguments.front() + "': is no option; known options: ");
    for (const char* known :
         {"--components", "--seq", "--hidden-dim", "--journal", "--dry-run", "--benchmark_*"})
      EXPECT_CONTAINS(message, known);
  }
}

TEST(OptionsTest, HelpIsPrintedAndNothingReturned) {
  for (const char* flag : {"--help", "-h"}) {
    ::testing::internal::CaptureStdout();
    const auto options = try_parse({flag});
    const std::string text = ::testing::internal::GetCapturedStdout();
    EXPECT_FALSE(options);
    for (const char* part :
         {"--components", "--max-seconds-per-case", "--benchmark_filter", "Exit status"})
      EXPECT_CONTAINS(text, part);
  }
}

struct BadValue {
  const char* option;
  const char* value;
  const char* allowed;
};

void PrintTo(const BadValue& bad, std::ostream* out) {
  *out << bad.option << " '" << bad.value << "'";
}

class OptionsBadValueTest : public ::testing::TestWithParam<BadValue> {};

TEST_P(OptionsBadValueTest, NamesOptionValueAndWhatIsAllowed) {
  const auto& [option, value, allowed] = GetParam();
  const std::string message = error({option, value});
  EXPECT_CONTAINS(message, option);
  EXPECT_CONTAINS(message, value);
  EXPECT_CONTAINS(message, allowed);
}

INSTANTIATE_TEST_SUITE_P(
    All, OptionsBadValueTest,
    ::testing::Values(
        BadValue{"--components", "norm", "rms_norm, ffn, peak"},
        BadValue{"--components", "", "write names as"},

        BadValue{"--passes", "", "write names as"}, BadValue{"--variants", "", "write names as"},
        BadValue{"--sizes", "tiny,,small", "write names as"},
        BadValue{"--sizes", "", "write names as"},
        BadValue{"--dtypes", "f64", "f32, bf16, f16, amp_bf16, amp_f16"},
        BadValue{"--dtypes", "int8", "f32, bf16, f16, amp_bf16, amp_f16"},
        BadValue{"--dtypes", "", "write names as"}, BadValue{"--batch", "0", "at least 1"},
        BadValue{"--batch", "", "write numbers as"}, BadValue{"--seq", "many", "write numbers as"},
        BadValue{"--seq", "", "write numbers as"},
        BadValue{"--verify", "sometimes", "before, only, off"},
        BadValue{"--memory-limit", "lots", "8GiB"}, BadValue{"--memory-limit", "", "8GiB"},
        BadValue{"--threads", "0", "from 1 to 4096"},
        BadValue{"--threads", "4097", "from 1 to 4096"}, BadValue{"--threads", "two", ""},
        BadValue{"--seed", "luck", ""}, BadValue{"--max-seconds-per-case", "0", "must be positive"},
        BadValue{"--max-seconds-per-case", "-1", "must be positive"},
        BadValue{"--max-seconds-per-case", "1e+30", "at most 1e+09"},
        BadValue{"--max-seconds-per-case", "nan", "must be positive"},
        BadValue{"--max-seconds-per-case", "soon", ""}, BadValue{"--hidden-dim", "wide", ""},
        BadValue{"--n-layers", "1.5", ""}, BadValue{"--precision", "0", "above 0 and below 100"},
        BadValue{"--precision", "100", "above 0 and below 100"},
        BadValue{"--precision", "high", ""}),
    ::tinyllama::testing::kNamedByParameter);

// CLI11 by itself wraps and saturates integers.
INSTANTIATE_TEST_SUITE_P(WrappingOrUnknown, OptionsBadValueTest,
                         ::testing::Values(BadValue{"--passes", "sideways", "forward_backward"},
                                           BadValue{"--variants", "turbo", "baseline"},
                                           BadValue{"--seed", "-1", ""},
                                           BadValue{"--seed", "99999999999999999999", ""},
                                           BadValue{"--vocab-size", "99999999999999999999", ""}),
                         ::tinyllama::testing::kNamedByParameter);

TEST(OptionsTest, MissingAndRepeatedValuesNameTheOption) {
  for (const char* option : {"--components", "--batch", "--journal", "--threads"})
    EXPECT_CONTAINS(error({option}), option);
  EXPECT_CONTAINS(error({"--batch", "4", "--batch", "8"}), "--batch");
}

TEST(OptionsTest, ResumeNeedsAJournal) {
  EXPECT_EQ(error({"--resume"}),
            "--resume: needs --journal FILE, the journal of the run to continue");
  EXPECT_CONTAINS(error({"--resume", "--journal", ""}), "--journal");
}

TEST(OptionsTest, AdmitsWhatFitsUnlessToldOtherwise) {
  EXPECT_EQ(parse({}).admit, Admit::fitting);
  EXPECT_EQ(parse({"--admit", "all"}).admit, Admit::all);
  EXPECT_CONTAINS(error({"--admit=some"}), "--admit: 'some' must be one of fitting, all");
}

TEST(OptionsTest, AKnownSlowdownIsOfTheServedProgramOnly) {
  const auto slow = parse({"--serve", "--slow", "ffn/.*=a=0.05", "--slow", "loss=10"}).slow;
  ASSERT_EQ(slow.size(), 2U);
  EXPECT_EQ(slow[0].pattern, "ffn/.*=a");
  EXPECT_EQ(slow[0].fraction, 0.05);
  EXPECT_EQ(slow[1].fraction, 10);
  EXPECT_CONTAINS(error({"--slow", "ffn=0.1"}), "--slow: only with --serve");
  for (const char* bad : {"ffn", "ffn=", "ffn=0", "ffn=-1", "ffn=11", "ffn=nan", "ffn=5%", "=0.5"})
    EXPECT_CONTAINS(error({"--serve", "--slow", bad}), "must be REGEX=FRACTION") << bad;
}

TEST(OptionsTest, FiguresOfMeritNeedAConsoleAndTimes) {
  EXPECT_FALSE(parse({}).figures_of_merit);
  EXPECT_TRUE(parse({"--figures-of-merit"}).figures_of_merit);
  EXPECT_CONTAINS(error({"--figures-of-merit", "--benchmark_format=json"}),
                  "--figures-of-merit: not with --benchmark_format=json");
}

TEST(OptionsTest, WhatTimesNothingHasNoResults) {
  const Names modes = {"--serve", "--verify=only", "--find-limit=batch"};
  for (const std::string& mode : modes) {
    for (const char* other : {"--benchmark_out=a.json", "--journal=a", "--trace=a", "--columns=all",
                              "--figures-of-merit"}) {
      const std::string option = std::string(other).substr(0, std::string(other).find('='));
      EXPECT_CONTAINS(error({mode, other}), option + ": not with " + mode.substr(0, 6));
    }
  }
  for (const char* mode : {"--serve", "--verify=only"})
    EXPECT_CONTAINS(error({mode, "--benchmark_format=json"}), "--benchmark_format: not with");
  EXPECT_EQ(parse({"--dry-run", "--benchmark_format=json", "--journal=a"}).format, "json");
  EXPECT_CONTAINS(error({"--list", "--find-limit=seq"}), "--list: not with --find-limit");
}

TEST(OptionsTest, LeadingZerosDoNotChangeANumber) {
  const Options options = parse({"--n-layers=010", "--seed=010", "--threads=010"});
  EXPECT_EQ(options.custom_size, ModelDimensions{.n_layers = 10});
  EXPECT_EQ(options.seed, 10U);
  EXPECT_EQ(options.threads, 10);
}

TEST(OptionsTest, ColumnsAreCounters) {
  EXPECT_TRUE(parse({}).columns.empty());
  EXPECT_EQ(parse({"--columns=kernels,TFLOPS"}).columns, (Names{"kernels", "TFLOPS"}));
  EXPECT_EQ(parse({"--columns", "all"}).columns, Names{"all"});
  EXPECT_CONTAINS(error({"--columns=kernels,speed"}),
                  "--columns 'speed': must be one of all, speedup, samples_per_second, ");
}

TEST(OptionsTest, TracesAreOfWhatIsTimed) {
  EXPECT_EQ(parse({"--trace", "a"}).trace_folder, "a");
  EXPECT_CONTAINS(error({"--trace="}), "--trace");
}

TEST(OptionsTest, ServingLeavesTheRestToTheRequests) {
  EXPECT_FALSE(parse({}).serve);
  EXPECT_TRUE(parse({"--serve", "--components=ffn", "--verify=off", "--threads=1",
                     "--benchmark_filter=ffn", "--memory-limit=1GiB", "--cold-cache"})
                  .serve);
  for (const Names& refused :
       {Names{"--list"}, Names{"--verify=only"}, Names{"--benchmark_repetitions=3"}}) {
    Names arguments = refused;
    arguments.push_back("--serve");
    const std::string option = refused.front().substr(0, refused.front().find('='));
    EXPECT_CONTAINS(error(arguments), option) << "the option that does not go with it";
    EXPECT_CONTAINS(error(arguments), "not with --serve, which answers requests");
  }
}

// 8 wide, 2 layers, 16 words.
class WeightsOptionTest : public ::testing::Test {
 protected:
  void SetUp() override { save(folder_ / "weights", 1.0); }
  static void save(const std::filesystem::path& folder, double value) {
    NamedTensors tensors;
    for (const auto& [name, shape] : parameter_shapes(testing::small_config()))
      tensors.emplace_back(name, at::ones(shape) * value);
    save_weights(folder, testing::small_config(), tensors);
  }
  Options parse(std::vector<std::string> arguments) const {
    arguments.push_back("--weights=" + (folder_ / "weights").string());
    std::vector<const char*> argv = {"tiny_llama_bench"};
    for (const auto& argument : arguments) argv.push_back(argument.c_str());
    return parse_options(static_cast<int>(argv.size()), argv.data(), {"linear", "peak"}).value();
  }
  std::string refusal(const std::vector<std::string>& arguments) const {
    Options options = parse(arguments);
    return testing::error_of<std::invalid_argument>([&] { open_weights(options); });
  }

  testing::TemporaryFolder folder_;
};

TEST_F(WeightsOptionTest, NothingIsOpenedWithoutIt) {
  Options options;
  EXPECT_FALSE(open_weights(options));
  EXPECT_FALSE(options.custom_size);
  EXPECT_FALSE(options.axes.any());
}

TEST_F(WeightsOptionTest, MakesItsConfigTheSizeCustom) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {}, {"--sizes=custom"}, {"--hidden-dim=8", "--vocab-size=16"}}) {
    Options options = parse(arguments);
    const auto weights = open_weights(options);
    ASSERT_TRUE(weights);
    EXPECT_EQ(options.custom_size, testing::small_config().dimensions());
    EXPECT_EQ(options.axes.sizes, std::vector<std::string>{"custom"});
    const std::vector<Component> components = {testing::linear_component()};
    const Plan plan = make_plan(options, components, {}, DeviceTraits());
    EXPECT_EQ(plan.cases.front().name(), "linear/forward/baseline/custom/f32/batch:8/seq:128");
    EXPECT_EQ(plan.cases.front().workload.config, testing::small_config());
  }
}

TEST_F(WeightsOptionTest, RefusesWhatContradictsItsConfig) {
  EXPECT_CONTAINS(refusal({"--sizes=custom,tiny"}), "--sizes 'tiny': must be custom or left out");
  EXPECT_CONTAINS(refusal({"--sizes=tiny"}), "(hidden_dim 8, n_layers 2, vocab_size 16)");
  EXPECT_CONTAINS(refusal({"--n-layers=3"}), "--n-layers 3: must be 2 or left out with --weights ");
  EXPECT_CONTAINS(refusal({"--hidden-dim=8", "--vocab-size=17"}), "--vocab-size 17: must be 16");
}

TEST_F(WeightsOptionTest, RefusesAFolderWithoutWeights) {
  std::filesystem::remove(folder_ / "weights/model.safetensors");
  const std::string start = "--weights: " + (folder_ / "weights").string() + ": ";
  EXPECT_CONTAINS(refusal({}), start + "holds config.json: name a folder with config.json and");
  std::filesystem::remove_all(folder_ / "weights");
  EXPECT_CONTAINS(refusal({}), start + "there is no such folder: name a folder with config.json");
}

TEST_F(WeightsOptionTest, IsPartOfTheContextWithoutItsPath) {
  const auto device = instruments::Device::select("cpu");
  const Weights weights(folder_ / "weights");
  const Json context = run_context({}, device, &weights);
  EXPECT_EQ(context.at("weights").at("parameters"), 1256);
  EXPECT_EQ(context.at("weights").at("fingerprint").get<std::string>().size(), 16);
  EXPECT_EQ(context.at("weights").at("hidden_dim"), 8);
  EXPECT_EQ(context.dump().find(folder_.path().string()), std::string::npos);
  EXPECT_FALSE(run_context({}, device, nullptr).contains("weights"));
}

TEST_F(WeightsOptionTest, FingerprintTellsWeightsApart) {
  const auto fingerprint = [&](const char* name) { return Weights(folder_ / name).fingerprint(); };
  const std::string before = fingerprint("weights");
  save(folder_ / "same", 1.0);
  save(folder_ / "other", 1.0 + 0x1p-23);
  EXPECT_EQ(fingerprint("same"), before);
  EXPECT_NE(fingerprint("other"), before);
}

}  // namespace
}  // namespace tinyllama::harness
