#include "benchmarks/training/trainer.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/instruments/host_allocator.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::training {
namespace {

using ::tinyllama::testing::TemporaryFolder;
using Json = nlohmann::ordered_json;

// The allocator that counts must be there before the first tensor.
class AllocatorEnvironment : public ::testing::Environment {
 public:
  void SetUp() override { instruments::host_allocator::install(); }
};
const ::testing::Environment* const kAllocatorEnvironment =
    ::testing::AddGlobalTestEnvironment(new AllocatorEnvironment);

/// A model that takes a millisecond a step, with the operator profiler on in steps 5 and 6 of 7.
TrainOptions small_options() {
  TrainOptions options;
  options.dimensions = {.vocab_size = 50,
                        .hidden_dim = 32,
                        .n_layers = 2,
                        .n_heads = 4,
                        .n_kv_heads = 2,
                        .intermediate_dim = 48};
  options.batch = 2;
  options.seq = 8;
  options.num_steps = 7;
  options.profile_pytorch = true;
  options.profile_steps = 1;
  options.profile_operators = true;
  options.profile_stacks = true;
  return options;
}

/// What a Trainer needs, on the CPU with synthetic tokens.
struct TrainingParts {
  explicit TrainingParts(const TrainOptions& options)
      : state(options, device.torch()),
        data(synthetic_data(ModelConfig(options.dimensions),
                            {options.batch, options.seq, options.seed, device.torch()})) {}

  instruments::Device device = instruments::Device::select("cpu");
  ModelState state;
  std::unique_ptr<TokenData> data;
};

StepRecords steps_of(Trainer& trainer) {
  StepRecords steps;
  trainer.on_step([&](const StepRecord& step) { steps.push_back(step); });
  trainer.run();
  return steps;
}

TEST(TrainerTest, AProfiledRunHasTheLossesOfAPlainOne) {
  const auto losses = [](bool profiled) {
    TrainOptions options = small_options();
    options.profile_pytorch = options.profile_operators = options.profile_stacks = profiled;
    options.profile_memory = profiled;
    const TemporaryFolder folder;
    TrainingParts parts(options);
    std::optional<OperatorRecorder> recorder;
    if (profiled) recorder.emplace(options, parts.device, folder.path());
    Trainer trainer(options, parts.device, parts.state, *parts.data,
                    profiled ? &*recorder : nullptr);
    std::vector<double> values;
    for (const StepRecord& step : steps_of(trainer)) values.push_back(step.loss);
    EXPECT_EQ(trainer.memory_recording().has_value(), profiled);
    return values;
  };
  const auto plain = losses(false);
  ASSERT_EQ(plain.size(), 7U);
  EXPECT_LT(plain.back(), plain.front());
  EXPECT_EQ(plain, losses(true));
}

std::map<std::string, int>& ranges_begun() {
  static std::map<std::string, int> counts;
  return counts;
}

TEST(TrainerTest, EveryStepHasTheRangesOfItsPhasesWhoeverElseListens) {
  TrainOptions options = small_options();
  options.profile_pytorch = false;
  options.profile_memory = options.emit_ranges = true;
  TrainingParts parts(options);
  Trainer trainer(options, parts.device, parts.state, *parts.data);
  ranges_begun().clear();
  const auto begin = [](const at::RecordFunction& range) -> std::unique_ptr<at::ObserverContext> {
    ++ranges_begun()[range.name()];
    return nullptr;
  };
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(begin).scopes({at::RecordScope::USER_SCOPE}));
  trainer.run();
  at::removeCallback(handle);
  for (const char* phase : {"data_loading", "forward", "backward", "optimizer"})
    EXPECT_EQ(ranges_begun()[phase], options.num_steps) << phase;
}

TEST(TrainerTest, AStateOfShardedMomentsIsMadeWithAnyUpdate) {
  for (const Switch form : {Switch::library_adamw, Switch::fused_adamw, Switch::foreach_adamw}) {
    TrainOptions options = small_options();
    options.share = distributed::Share::zero1;
    options.variant = Variant({form});
    ModelState state(options, c10::kCPU);
    // The ranks' shares have them.
    EXPECT_TRUE(state.optimizer.first_moments().empty());
    EXPECT_NO_THROW(state.optimizer.step());
  }
}

TEST(TrainerTest, MicroBatchesOfOneBatchAreThatBatch) {
  TrainOptions options = small_options();
  options.profile_pytorch = false;
  options.gradient_accumulation_steps = 3;
  options.num_steps = 2;
  TrainingParts parts(options);
  double expected = 0;
  for (int micro = 0; micro < 3; ++micro)
    expected += parts.state.evaluate(parts.data->train_batch(1, micro)) / 3;
  Trainer trainer(options, parts.device, parts.state, *parts.data);
  const auto steps = steps_of(trainer);
  EXPECT_NEAR(steps.front().loss, expected, 1e-6);
}

/// Trains until an interrupt in the midst of the steps whose memory is recorded, 2 to 4, and says
/// what was kept.
[[noreturn]] void interrupt_while_recording_memory() {
  TrainOptions options = small_options();
  options.profile_pytorch = false;
  options.profile_memory = true;
  TrainingParts parts(options);
  Trainer trainer(options, parts.device, parts.state, *parts.data);
  int64_t last = 0;
  trainer.on_step([&](const StepRecord& step) {
    last = step.step;
    if (last == 3) console::request_interrupt();
  });
  trainer.run();
  std::string kept;
  for (const Stretch& step : trainer.memory_recording().value().steps)
    kept += fmt::format(" {}", step.step);
  std::fprintf(stderr, "last step %d, memory of steps%s;\n", static_cast<int>(last), kept.c_str());
  std::_Exit(0);
}

// In a process of its own, since an interrupt cannot be taken back. That is started anew and not
// forked, because libtorch's threads would be missing from it.
TEST(TrainerDeathTest, MemoryIsKeptWhenInterruptedWhileRecording) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(interrupt_while_recording_memory(), ::testing::ExitedWithCode(0),
              "last step 3, memory of steps 2 3;");
}

struct Recorded {
  Json operators;
  Json trace;
  std::vector<std::string> files;
};

Recorded record(const TrainOptions& options) {
  const TemporaryFolder folder;
  TrainingParts parts(options);
  OperatorRecorder recorder(options, parts.device, folder.path());
  Trainer trainer(options, parts.device, parts.state, *parts.data, &recorder);
  trainer.run();
  Recorded recorded{recorder.to_json(), nullptr, recorder.finish()};
  std::ifstream stream(folder.path() / "trace_step_5_6.json");
  recorded.trace = Json::parse(stream);
  return recorded;
}

class OperatorRecorderTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { recorded = std::make_unique<Recorded>(record(small_options())); }
  static void TearDownTestSuite() { recorded.reset(); }
  static const Json& operators() { return recorded->operators; }
  static int64_t calls(const std::string& name) {
    int64_t sum = 0;
    for (const Json& row : operators().at("table"))
      if (row.at("name") == name) sum += row.at("calls").get<int64_t>();
    return sum;
  }
  inline static std::unique_ptr<Recorded> recorded;
};

TEST_F(OperatorRecorderTest, CountsTheProjectionsOfTheModel) {
  // Q, K, V, O, gate, up and down in each of two blocks, and the LM head.
  EXPECT_DOUBLE_EQ(operators().at("linear_projections_per_step"), 2 * 7 + 1);
  EXPECT_EQ(operators().at("steps"), 2);
  EXPECT_EQ(operators().at("first_step"), 5);
  EXPECT_EQ(operators().at("last_step"), 6);
  // Each projection has two more in backward; scores and values are batched.
  EXPECT_EQ(calls("aten::mm"), 2 * 3 * (2 * 7 + 1));
  EXPECT_EQ(calls("aten::bmm"), 2 * 3 * 2 * 2);
}

TEST_F(OperatorRecorderTest, EveryPartOfTheModelHasForwardAndBackwardTime) {
  std::map<std::string, Json> components;
  double percent = 0;
  for (const Json& component : operators().at("components")) {
    components[component.at("name")] = component;
    percent += component.at("percent").get<double>();
  }
  EXPECT_NEAR(percent, 100, 1e-6);
  for (const char* name : {"embedding", "rms_norm", "attention/qkv_proj", "attention/rotary",
                           "attention/core", "attention/o_proj", "ffn/gate_up_proj", "ffn/swiglu",
                           "ffn/down_proj", "loss/lm_head", "loss/cross_entropy"}) {
    ASSERT_TRUE(components.contains(name)) << name;
    EXPECT_GT(components[name].at("forward_seconds"), 0) << name;
    EXPECT_GT(components[name].at("backward_seconds"), 0) << name;
  }
  EXPECT_GT(components["optimizer"].at("forward_seconds"), 0);
  for (const auto& [name, component] : components) EXPECT_NE(name.find("ProfilerStep"), 0U);
  EXPECT_FALSE(components.contains("forward"));
  EXPECT_FALSE(components.contains("backward"));
}

TEST_F(OperatorRecorderTest, OwnTimesAddUpToSharesOfAHundred) {
  double share = 0;
  for (const Json& row : operators().at("table")) {
    share += row.at("share_percent").get<double>();
    EXPECT_GE(row.at("cpu_self_seconds"), 0) << row.dump();
    EXPECT_LE(row.at("cpu_self_seconds"), row.at("cpu_total_seconds")) << row.dump();
    EXPECT_TRUE(row.at("device_self_seconds").is_null());
  }
  EXPECT_NEAR(share, 100, 1e-6);
  const double overhead = operators().at("launch_overhead_percent");
  EXPECT_GT(overhead, 0);
  EXPECT_LT(overhead, 100);
}

TEST_F(OperatorRecorderTest, RowsHaveShapesStacksAndMemory) {
  bool found = false;
  for (const Json& row : operators().at("table")) {
    if (row.at("name") != "aten::_softmax") continue;
    found = true;
    EXPECT_NE(row.at("input_shapes").get<std::string>().find("[4, 16, 8]"), std::string::npos);
    const auto stack = row.at("stack").get<std::vector<std::string>>();
    EXPECT_NE(std::find(stack.begin(), stack.end(), "attention/core"), stack.end());
    // Both steps and both blocks are in one row.
    EXPECT_EQ(row.at("calls"), 2 * 2);
    for (const auto& name : stack) EXPECT_FALSE(name.starts_with("ProfilerStep#")) << name;
    // [B KV, G S, S] float32 in each call
    EXPECT_EQ(row.at("self_memory_bytes"), row.at("calls").get<int64_t>() * 4 * 16 * 8 * 4);
  }
  EXPECT_TRUE(found);
}

TEST(OperatorRecorderEvaluationTest, AnEvaluationIsNoPartOfTheModelsComponents) {
  TrainOptions options = small_options();
  options.eval_interval = 1;
  options.eval_iters = 3;
  const Recorded recorded = record(options);
  EXPECT_DOUBLE_EQ(recorded.operators.at("linear_projections_per_step"), 2 * 7 + 1);
  double evaluation = 0;
  for (const Json& component : recorded.operators.at("components")) {
    if (component.at("name") == "evaluation") evaluation = component.at("forward_seconds");
  }
  EXPECT_GT(evaluation, 0);
}

TEST(OperatorRecorderInterruptTest, AnEarlierTraceOfTheSameNameIsLeftAlone) {
  const TemporaryFolder folder;
  const auto earlier = folder.path() / "trace_step_5_6.json";
  std::ofstream(earlier) << "earlier";
  const TrainOptions options = small_options();
  TrainingParts parts(options);
  OperatorRecorder recorder(options, parts.device, folder.path());
  recorder.begin_step(5);
  parts.state.step.run(std::vector<TokenBatch>{parts.data->train_batch(5, 0)});
  recorder.end_step();
  EXPECT_EQ(recorder.finish().front(), "trace_step_5_5.json");
  std::string text;
  std::ifstream(earlier) >> text;
  EXPECT_EQ(text, "earlier");
}

TEST_F(OperatorRecorderTest, TheTraceHoldsBothStepsAndEachArrowsOwnNumber) {
  std::map<int64_t, std::map<std::string, int>> arrows;  // from forward to backward
  std::map<std::string, double> begins;
  for (const Json& event : recorded->trace.at("traceEvents")) {
    const std::string name = event.value("name", "");
    if (name.starts_with("ProfilerStep#")) begins[name] = event.at("ts").get<double>();
    if (event.value("cat", "") == "fwdbwd")
      ++arrows[event.at("id").get<int64_t>()][event.at("ph").get<std::string>()];
  }
  ASSERT_EQ(begins.size(), 2U);
  EXPECT_LT(begins.at("ProfilerStep#5"), begins.at("ProfilerStep#6"));
  ASSERT_FALSE(arrows.empty());
  for (const auto& [id, ends] : arrows)
    EXPECT_EQ(ends, (std::map<std::string, int>{{"f", 1}, {"s", 1}})) << "arrow " << id;
  EXPECT_TRUE(recorded->trace.contains("schemaVersion"));
  ASSERT_EQ(recorded->files.size(), 2U);
  EXPECT_EQ(recorded->files[0], "trace_step_5_6.json");
  EXPECT_TRUE(recorded->files[1].ends_with(".pt.trace.json"));
}

}  // namespace
}  // namespace tinyllama::training
