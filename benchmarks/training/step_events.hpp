// What Kineto recorded of a step, as a list of operators with their own time, component and place.
#pragma once

#include <torch/csrc/autograd/profiler_kineto.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/instruments/device.hpp"

namespace tinyllama::training {

struct OperatorEvent {
  std::string name;
  bool is_backward_node = false;  ///< of the autograd graph, not of the dispatcher
  double total_seconds = 0;
  double self_seconds = 0;  ///< without the operators it calls
  double device_total_seconds = 0;
  double device_self_seconds = 0;  ///< of the kernels that it launched itself
  int64_t self_bytes = 0;          ///< allocated less freed, by itself
  bool in_backward = false;
  std::string component;             ///< path, or "other"
  std::string input_shapes;          ///< "[[8, 128, 256], [256, 256]]"; empty where not recorded
  std::vector<std::string> parents;  ///< enclosing ranges and operators, outermost first
};

struct StepEvents {
  std::vector<OperatorEvent> operators;
  double seconds = 0;          ///< from the first event's begin to the last one's end
  double covered_seconds = 0;  ///< of it, inside some operator on the main thread
  std::optional<int64_t> kernels;
  std::optional<int64_t> transfers;
  std::optional<double> device_seconds;  ///< of kernels, copies and fills on a GPU
  double unlinked_device_seconds = 0;    ///< of them, launched by no operator
  std::vector<std::string> kernel_names;
};

/// The component whose forward created an autograd node, by that forward's thread and the node's
/// sequence number; "other" where unknown.
using NodeComponents = std::function<std::string(uint64_t thread, int64_t sequence)>;

StepEvents read_step_events(const torch::autograd::profiler::ProfilerResult& result,
                            const instruments::Device& device,
                            const NodeComponents& component_of_node);

}  // namespace tinyllama::training
