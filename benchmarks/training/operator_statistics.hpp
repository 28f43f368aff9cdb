// The operator profile: what the recorded steps add up to, operator by operator and component by
// component.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "benchmarks/training/step_events.hpp"

namespace tinyllama::training {

using Json = nlohmann::ordered_json;

struct ComponentSeconds {
  double forward = 0;
  double backward = 0;
  double total() const { return forward + backward; }
};

/// How finely the operator table tells calls apart.
struct OperatorDetail {
  bool shapes = false;
  bool stacks = false;
};

/// Holds sums only, so that any number of steps fits.
class OperatorStatistics {
 public:
  OperatorStatistics(bool is_gpu, OperatorDetail detail) : is_gpu_(is_gpu), detail_(detail) {}

  void add(const StepEvents& step);
  /// `operators` of docs/training_files.md; the range of steps is the caller's to add.
  Json to_json() const;
  /// Seconds a step of each component, by the device's clock on a GPU.
  std::map<std::string, ComponentSeconds> component_seconds() const;
  /// Seconds a step of the attention's softmax; 0 where no softmax ran by itself.
  ComponentSeconds softmax_seconds() const;
  int64_t steps() const { return steps_; }

 private:
  struct Row {
    int64_t calls = 0;
    double cpu_self = 0;
    double cpu_total = 0;
    double device_self = 0;
    double device_total = 0;
    int64_t bytes = 0;
    bool is_backward_node = false;
  };
  // name, shapes, stack
  using Key = std::tuple<std::string, std::string, std::vector<std::string>>;

  double clock_seconds(const OperatorEvent& event) const {
    return is_gpu_ ? event.device_self_seconds : event.self_seconds;
  }
  ComponentSeconds a_step(const ComponentSeconds& sum) const;
  double total_seconds() const;
  double launch_overhead_percent() const;
  Json table() const;

  bool is_gpu_;
  OperatorDetail detail_;
  int64_t steps_ = 0;
  std::map<Key, Row> rows_;
  std::map<std::string, ComponentSeconds> components_;
  std::set<std::string> kernel_names_;
  double step_seconds_ = 0;
  double covered_seconds_ = 0;
  double device_seconds_ = 0;
  double dispatch_seconds_ = 0;
  double product_seconds_ = 0;
  ComponentSeconds softmax_;
  int64_t calls_ = 0;
  int64_t projections_ = 0;
  int64_t kernels_ = 0;
  int64_t transfers_ = 0;
};

}  // namespace tinyllama::training
