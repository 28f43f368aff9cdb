#include "benchmarks/harness/options.hpp"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "benchmarks/harness/plan.hpp"
#include "benchmarks/harness/run_context.hpp"
#include "benchmarks/harness/testing.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::harness {
namespace {

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
  EXPECT_CONTAINS(refusal({}), "--weights: " + (folder_ / "weights").string() + ": has neither");
  std::filesystem::remove_all(folder_ / "weights");
  EXPECT_CONTAINS(refusal({}), "config.json: cannot be read: No such file or directory");
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
