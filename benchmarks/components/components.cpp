#include "benchmarks/components/components.hpp"

namespace tinyllama::components {

std::vector<harness::Component> all() {
  return {embedding(), rms_norm(), rotary(), attention(), feed_forward(), block(),
          stage(),     loss(),     model(),  optimizer(), full_step()};
}

harness::PartsOfStep parts_of_step() {
  return {"full_step", [](const ModelConfig& config) {
            return std::vector<harness::PartOfStep>{
                {"embedding", Pass::forward_backward, 1},
                {"block", Pass::forward_backward, config.n_layers()},
                {"rms_norm", Pass::forward_backward, 1},
                {"loss", Pass::forward_backward, 1},
                {"optimizer", Pass::update, 1}};
          }};
}

}  // namespace tinyllama::components
