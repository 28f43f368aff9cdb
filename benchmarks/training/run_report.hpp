// What a training run reports: the parts of performance_summary.json (docs/training_files.md), and
// what the console says of them, in the words of the workshop's program.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/distributed/process_group.hpp"
#include "benchmarks/instruments/device.hpp"
#include "benchmarks/instruments/system_sampler.hpp"
#include "benchmarks/training/train_options.hpp"
#include "benchmarks/training/trainer.hpp"

namespace tinyllama::training {

using Json = nlohmann::ordered_json;

/// From `schema_version` to `model`; started now. `data`: its name.
Json run_header(const TrainOptions& options, const instruments::Device& device,
                const std::vector<std::string>& command, const std::string& data);
/// `distributed`, of a run of several ranks.
Json distributed_json(const TrainOptions& options, const distributed::ProcessGroup& group);
/// `device_sampling`.
Json sampling_json(const instruments::SystemSamples& samples);
/// Median time of the steps without a profiler (of all steps, where there are none), without
/// evaluation and, where there are others, without the first step. At least one step.
double plain_step_seconds(const StepRecords& steps);
/// `summary`. `whole_steps`: a step is one launch, whose phases nobody can tell apart. `samples`,
/// `tokens`: of a step.
Json summarize(const StepRecords& steps, int64_t samples, int64_t tokens, bool whole_steps);
/// `steps`.
Json steps_json(const StepRecords& steps, bool whole_steps);

/// Title, configuration, parameters and device.
std::string banner(const TrainOptions& options, const instruments::Device& device,
                   const std::string& data);
/// "Step 2/20: Loss = 6.9076, Time = 0.0461 seconds, Memory = 132 MB [PROFILING]".
std::string step_line(const StepRecord& step, int64_t num_steps);
/// The closing blocks of a whole performance_summary.json: performance, memory, the first rows of
/// the operator table, FLOPs; what is null there is left out.
std::string summary_text(const Json& document);
/// performance_summary.json of another run, for comparison_text(). Throws std::invalid_argument
/// naming the file and what it lacks.
Json read_compared_summary(const std::string& file);
/// Speed and peak memory of this run beside those of the other, and what else differs.
std::string comparison_text(const Json& document, const Json& other, const std::string& file);
std::string files_text(const std::string& folder, const std::vector<std::string>& files);

}  // namespace tinyllama::training
