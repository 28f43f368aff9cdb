// What tiny_llama_train prints, in the words of the workshop's program.
#pragma once

#include <string>
#include <vector>

#include "benchmarks/instruments/device.hpp"
#include "benchmarks/training/train_options.hpp"
#include "benchmarks/training/train_record.hpp"

namespace tinyllama::training {

/// Title, configuration, parameters and device.
std::string banner(const TrainOptions& options, const instruments::Device& device,
                   const std::string& data);
/// "Step 2/20: Loss = 6.9076, Time = 0.0461 seconds, Memory = 132 MB [PROFILING]".
std::string step_line(const StepRecord& step, int64_t num_steps);
/// The closing block; `summary` is the one of performance_summary.json.
std::string performance_summary_text(const Json& document);
/// The memory analysis and the first rows of the operator table; empty where they are null.
std::string memory_summary_text(const Json& memory);
std::string operator_summary_text(const Json& operators, size_t rows);
std::string flops_summary_text(const Json& flops);
std::string files_text(const std::string& folder, const std::vector<std::string>& files);

}  // namespace tinyllama::training
