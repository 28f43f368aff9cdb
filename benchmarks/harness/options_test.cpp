#include "benchmarks/harness/options.hpp"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <tuple>

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
  EXPECT_FALSE(options.axes.any() || options.custom_size || options.threads);
  EXPECT_EQ(options.device, "auto");
  EXPECT_EQ(options.seed, 42U);
  EXPECT_EQ(options.verify, Verify::before);
  EXPECT_EQ(options.admit, Admit::fitting);
  EXPECT_EQ(options.memory_limit_bytes, 0);
  EXPECT_EQ(options.max_seconds_per_case, 10.0);
  EXPECT_EQ(options.filter, ".");
  EXPECT_EQ(options.format, "console");
  EXPECT_EQ(options.timing.min_seconds, 0.1);
  EXPECT_EQ(options.timing.repetitions, 3);
  EXPECT_FALSE(options.timing.iterations || options.timing.precision);
  EXPECT_FALSE(options.cold_cache || options.resume || options.list || options.dry_run ||
               options.figures_of_merit || options.serve);
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
  const Options options = parse({"--device",
                                 "hip:1",
                                 "--problem-sizes",
                                 "sizes.json",
                                 "--threads",
                                 "3",
                                 "--seed",
                                 "7",
                                 "--verify",
                                 "off",
                                 "--memory-limit",
                                 "8GiB",
                                 "--max-seconds-per-case",
                                 "2.5",
                                 "--cold-cache",
                                 "--journal",
                                 "a.jsonl",
                                 "--resume",
                                 "--admit",
                                 "all",
                                 "--precision",
                                 "0.5",
                                 "--columns=kernels,TFLOPS",
                                 "--trace",
                                 "a",
                                 "--execution-trace=b",
                                 "--figures-of-merit"});
  EXPECT_EQ(options.device, "hip:1");
  EXPECT_EQ(options.problem_sizes_file, "sizes.json");
  EXPECT_EQ(options.threads, 3);
  EXPECT_EQ(options.seed, 7U);
  EXPECT_EQ(options.verify, Verify::off);
  EXPECT_EQ(options.memory_limit_bytes, int64_t{8} << 30);
  EXPECT_EQ(options.max_seconds_per_case, 2.5);
  EXPECT_TRUE(options.cold_cache && options.resume && options.figures_of_merit);
  EXPECT_EQ(options.journal_file, "a.jsonl");
  EXPECT_EQ(options.admit, Admit::all);
  EXPECT_EQ(options.timing.precision, 0.005);
  EXPECT_EQ(options.columns, (Names{"kernels", "TFLOPS"}));
  EXPECT_EQ(options.trace_folder, "a");
  EXPECT_EQ(options.execution_trace_folder, "b");
  EXPECT_EQ(options.world, 1);
  EXPECT_TRUE(parse({"--list"}).list && parse({"--dry-run"}).dry_run);
  EXPECT_TRUE(parse({"--describe-device"}).describe_device);
  EXPECT_EQ(parse({"--verify", "only"}).verify, Verify::only);
  EXPECT_EQ(parse({"--seed", "18446744073709551615"}).seed, UINT64_MAX);
  const Options with_zeros = parse({"--n-layers=010", "--seed=010", "--threads=010"});
  EXPECT_EQ(with_zeros.custom_size, ModelDimensions{.n_layers = 10});
  EXPECT_EQ(with_zeros.seed, 10U);
  EXPECT_EQ(with_zeros.threads, 10);
}

TEST(OptionsTest, BenchmarkFlagsOfResultsAreKept) {
  EXPECT_EQ(parse({"--benchmark_filter=a", "--benchmark_min_time=0.2s", "--benchmark_out=out.json",
                   "--benchmark_format=json", "--benchmark_repetitions=5"})
                .benchmark_arguments,
            Names({"--benchmark_min_time=0.2s", "--benchmark_repetitions=5"}));
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

// CLI11 by itself wraps and saturates integers.
TEST(OptionsTest, BadValuesAreNamedWithTheirOptionAndWhatIsAllowed) {
  const std::tuple<const char*, const char*, const char*> bad[] = {
      {"--components", "norm", "rms_norm, ffn, peak"},
      {"--components", "", "write names as"},
      {"--passes", "", "write names as"},
      {"--passes", "sideways", "forward_backward"},
      {"--variants", "", "write names as"},
      {"--variants", "turbo", "baseline"},
      {"--sizes", "tiny,,small", "write names as"},
      {"--sizes", "", "write names as"},
      {"--dtypes", "f64", "f32, bf16, f16, amp_bf16, amp_f16"},
      {"--dtypes", "", "write names as"},
      {"--batch", "0", "at least 1"},
      {"--batch", "", "write numbers as"},
      {"--seq", "many", "write numbers as"},
      {"--seq", "", "write numbers as"},
      {"--verify", "sometimes", "before, only, off"},
      {"--admit", "some", "fitting, all"},
      {"--columns", "speed", "must be one of all, speedup, samples_per_second, "},
      {"--memory-limit", "lots", "8GiB"},
      {"--memory-limit", "", "8GiB"},
      {"--threads", "0", "from 1 to 4096"},
      {"--threads", "4097", "from 1 to 4096"},
      {"--threads", "two", ""},
      {"--seed", "luck", ""},
      {"--seed", "-1", ""},
      {"--seed", "99999999999999999999", ""},
      {"--max-seconds-per-case", "0", "must be positive"},
      {"--max-seconds-per-case", "-1", "must be positive"},
      {"--max-seconds-per-case", "1e+30", "at most 1e+09"},
      {"--max-seconds-per-case", "nan", "must be positive"},
      {"--max-seconds-per-case", "soon", ""},
      {"--hidden-dim", "wide", ""},
      {"--vocab-size", "99999999999999999999", ""},
      {"--n-layers", "1.5", ""},
      {"--precision", "0", "above 0 and below 100"},
      {"--precision", "100", "above 0 and below 100"},
      {"--precision", "high", ""}};
  for (const auto& [option, value, allowed] : bad) {
    const std::string message = error({option, value});
    for (const char* part : {option, value, allowed}) EXPECT_CONTAINS(message, part);
  }
}

TEST(OptionsTest, WhatIsMissingRepeatedOrDoesNotGoTogetherIsNamed) {
  const std::pair<Names, const char*> refused[] = {
      {{"--components"}, "--components"},
      {{"--batch"}, "--batch"},
      {{"--journal"}, "--journal"},
      {{"--threads"}, "--threads"},
      {{"--batch", "4", "--batch", "8"}, "--batch"},
      {{"--trace", ""}, "--trace '': needs the name of a file or folder"},
      {{"--execution-trace", ""}, "--execution-trace '': needs the name of a file or folder"},
      {{"--resume"}, "--resume: needs --journal FILE, the journal of the run to continue"},
      {{"--resume", "--journal", ""}, "--journal '': needs"},
      {{"--confirm"}, "--confirm: only with --find-limit"},
      {{"--figures-of-merit", "--benchmark_format=json"},
       "--figures-of-merit: not with --benchmark_format=json"},
      {{"--figures-of-merit", "--benchmark_format=md"},
       "--figures-of-merit: not with --benchmark_format=md"},
      {{"--dry-run", "--benchmark_format=csv"},
       "--benchmark_format=csv: not with --dry-run, which has console and json"},
      {{"--find-limit=batch", "--benchmark_format=jsonl"},
       "--benchmark_format=jsonl: not with --find-limit, which has console and json"},
      {{"--serve", "--benchmark_format=json"}, "--benchmark_format: not with --serve"},
      {{"--verify=only", "--benchmark_format=json"}, "--benchmark_format: not with --verify only"},
      {{"--list", "--find-limit=seq"}, "--list: not with --find-limit"},
      {{"--list", "--serve"}, "--list: not with --serve, which answers requests"},
      {{"--verify=only", "--serve"}, "--verify only: not with --serve, which answers requests"},
      {{"--benchmark_repetitions=3", "--serve"},
       "--benchmark_repetitions=3: not with --serve, which answers requests"}};
  for (const auto& [arguments, message] : refused) EXPECT_CONTAINS(error(arguments), message);
  // What times nothing has no results.
  for (const std::string mode : {"--serve", "--verify=only", "--find-limit=batch"}) {
    for (const std::string other : {"--benchmark_out=a.json", "--journal=a", "--trace=a",
                                    "--execution-trace=a", "--columns=all", "--figures-of-merit"})
      EXPECT_CONTAINS(error({mode, other}),
                      other.substr(0, other.find('=')) + ": not with " + mode.substr(0, 6));
  }
  EXPECT_EQ(parse({"--dry-run", "--benchmark_format=json", "--journal=a"}).format, "json");
  EXPECT_TRUE(parse({"--serve", "--components=ffn", "--verify=off", "--threads=1",
                     "--benchmark_filter=ffn", "--memory-limit=1GiB", "--cold-cache"})
                  .serve);
}

TEST(OptionsTest, ARankOfAWorldIsNamedWholeAndOnlyForTraces) {
  const auto with = [](Names arguments) {
    for (const char* given : {"--dry-run", "--execution-trace=a"}) arguments.emplace_back(given);
    return arguments;
  };
  const Options options = parse(with({"--world=1024", "--rank=17", "--tensor-parallel=8"}));
  EXPECT_EQ(std::pair(options.world, options.rank), std::pair(int64_t{1024}, int64_t{17}));
  const std::pair<Names, const char*> refused[] = {
      {with({"--rank=3"}), "--rank 3: needs --world N, the number of ranks"},
      {with({"--world=8"}), "--world 8: needs --rank K, which of them is traced: 0 to 7"},
      {with({"--world=8", "--rank=8"}), "--rank 8: must be below --world 8: 0 to 7"},
      {with({"--world=8", "--rank=-1"}), "--rank"},
      {with({"--world=0", "--rank=0"}), "--world"},
      {with({"--world=12", "--rank=0", "--tensor-parallel=4", "--pipeline-parallel=2"}),
       "--world 12: must be a multiple of the 8 ranks that share the model (--tensor-parallel 4 x "
       "--pipeline-parallel 2)"},
      {{"--world=8", "--rank=1", "--dry-run"},
       "--world 8: only with --execution-trace DIR and --dry-run"},
      {{"--world=8", "--rank=1", "--execution-trace=a"},
       "--world 8: only with --execution-trace DIR and --dry-run"}};
  for (const auto& [arguments, message] : refused) EXPECT_CONTAINS(error(arguments), message);
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
  Options parse(Names arguments) const {
    arguments.push_back("--weights=" + (folder_ / "weights").string());
    return harness::parse(arguments);
  }
  std::string refusal(const std::vector<std::string>& arguments) const {
    Options options = parse(arguments);
    return testing::error_of<std::invalid_argument>([&] { open_model(options); });
  }

  testing::TemporaryFolder folder_;
};

TEST_F(WeightsOptionTest, NothingIsOpenedWithoutIt) {
  Options options;
  open_model(options);
  EXPECT_FALSE(options.weights);
  EXPECT_FALSE(options.custom_size);
  EXPECT_FALSE(options.axes.any());
}

TEST_F(WeightsOptionTest, MakesItsConfigTheSizeCustom) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {}, {"--sizes=custom"}, {"--hidden-dim=8", "--vocab-size=16"}}) {
    Options options = parse(arguments);
    open_model(options);
    ASSERT_TRUE(options.weights);
    EXPECT_EQ(options.custom_size, testing::small_config().dimensions());
    EXPECT_EQ(options.axes.sizes, std::vector<std::string>{"custom"});
  }
}

TEST_F(WeightsOptionTest, RefusesWhatContradictsItsConfig) {
  EXPECT_CONTAINS(refusal({"--sizes=custom,tiny"}), "--sizes 'tiny': must be custom or left out");
  EXPECT_CONTAINS(refusal({"--sizes=tiny"}), "(hidden_dim 8, n_layers 2, vocab_size 16)");
  EXPECT_CONTAINS(refusal({"--n-layers=3"}), "--n-layers 3: must be 2 or left out with --weights ");
  EXPECT_CONTAINS(refusal({"--hidden-dim=8", "--vocab-size=17"}), "--vocab-size 17: must be 16");
}

// The folder of weights has a config.json, too; --config opens nothing else in it.
class ConfigOptionTest : public WeightsOptionTest {
 protected:
  Options parse(Names arguments) const {
    arguments.push_back("--config=" + (folder_ / "weights").string());
    return harness::parse(arguments);
  }
  std::string refusal(const std::vector<std::string>& arguments) const {
    return testing::error_of<std::invalid_argument>([&] {
      Options options = parse(arguments);
      open_model(options);
    });
  }
};

TEST_F(ConfigOptionTest, MakesItTheSizeCustomBesideOthers) {
  std::filesystem::remove(folder_ / "weights/model.safetensors");
  const std::pair<Names, Names> cases[] = {{{}, {"custom"}},
                                           {{"--sizes=tiny,custom"}, {"tiny", "custom"}},
                                           {{"--hidden-dim=8", "--vocab-size=16"}, {"custom"}}};
  for (const auto& [arguments, sizes] : cases) {
    Options options = parse(arguments);
    open_model(options);
    EXPECT_FALSE(options.weights);
    EXPECT_EQ(options.custom_size, testing::small_config().dimensions());
    EXPECT_EQ(options.axes.sizes, sizes);
    EXPECT_CONTAINS(options.config_text, "\"hidden_size\": 8");
  }
}

TEST_F(ConfigOptionTest, RefusesWhatContradictsIt) {
  EXPECT_CONTAINS(refusal({"--sizes=tiny"}), "is size custom, which --sizes tiny does not name");
  EXPECT_CONTAINS(refusal({"--n-layers=3"}), "--n-layers 3: must be 2 or left out with --config ");
  EXPECT_CONTAINS(refusal({"--weights=a"}), "not with --weights a, whose own config.json gives");
  EXPECT_CONTAINS(error({"--config", ""}), "--config '': needs the name of a file or folder");
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
  Options options = parse({});
  open_model(options);
  const Json context = run_context(options, device);
  EXPECT_EQ(context.at("weights").at("parameters"), 1256);
  EXPECT_EQ(context.at("weights").at("fingerprint").get<std::string>().size(), 16);
  EXPECT_EQ(context.at("weights").at("hidden_dim"), 8);
  EXPECT_EQ(context.dump().find(folder_.path().string()), std::string::npos);
  EXPECT_FALSE(run_context({}, device).contains("weights"));
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
