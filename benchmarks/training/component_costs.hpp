// What each part of a training step costs by the exact formulas, under the names that profiles use.
#pragma once

#include <string>
#include <vector>

#include "model/cost.hpp"

namespace tinyllama::training {

struct ComponentCost {
  std::string name;  ///< path of docs/training_files.md; "attention" stands for all below it
  int64_t parameters = 0;
  int64_t forward_flops = 0;
  int64_t backward_flops = 0;
  int64_t elementwise_flops = 0;  ///< of both passes; 0 for parts that cost.hpp does not tell apart
  int64_t bytes = 0;              ///< least traffic of both passes; 0 likewise
};

/// Of one whole step: the passes of all micro-batches and one update.
Cost step_cost(const Workload& workload, int64_t micro_batches);

/// Of one step with `micro_batches` of this workload: components as cost.hpp has them, each
/// followed by its parts. Products are model_flops.
std::vector<ComponentCost> component_costs(const Workload& workload, int64_t micro_batches);

}  // namespace tinyllama::training
