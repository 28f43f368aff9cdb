// One run of tiny_llama_train, from the banner to the last file.
#pragma once

#include <filesystem>

#include "benchmarks/console/exit.hpp"
#include "benchmarks/distributed/process_group.hpp"
#include "benchmarks/instruments/device.hpp"
#include "benchmarks/training/train_options.hpp"

namespace tinyllama::training {

struct TrainRunPaths {
  std::filesystem::path device_peaks;  ///< fixtures/device_peaks.json
};

/// Trains and writes what the options ask for. Throws std::invalid_argument for data, weights and
/// folders that will not do, before the first step; std::runtime_error where a file cannot be
/// written, after the summary was printed and the others were written. `group`: null for a process
/// alone; with it, RankLostError where a rank is lost, after what ended before was reported.
console::ExitCode run_training(const TrainOptions& options, const instruments::Device& device,
                               const std::vector<std::string>& command, const TrainRunPaths& paths,
                               distributed::ProcessGroup* group = nullptr);

}  // namespace tinyllama::training
