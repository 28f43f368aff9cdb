// The parts of performance_summary.json that are known without a step.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/distributed/process_group.hpp"
#include "benchmarks/instruments/device.hpp"
#include "benchmarks/instruments/system_sampler.hpp"
#include "benchmarks/training/train_options.hpp"

namespace tinyllama::training {

/// From `schema_version` to `model` of docs/training_files.md; started now. `data`: its name.
nlohmann::ordered_json run_header(const TrainOptions& options, const instruments::Device& device,
                                  const std::vector<std::string>& command, const std::string& data);
/// `distributed` of the same, of a run of several ranks.
nlohmann::ordered_json distributed_json(const TrainOptions& options,
                                        const distributed::ProcessGroup& group);
/// `device_sampling` of the same.
nlohmann::ordered_json sampling_json(const instruments::SystemSamples& samples);

}  // namespace tinyllama::training
