#include "benchmarks/harness/case.hpp"

#include <fmt/format.h>

namespace tinyllama::harness {

std::string Case::name() const {
  return fmt::format("{}/{}/{}/{}/{}/batch:{}/seq:{}", component->name, to_string(pass),
                     workload.variant.name(), size, to_string(workload.dtype), workload.batch,
                     workload.seq);
}

const PredictedMemory& Case::memory() const {
  if (known_memory) return *known_memory;
  // Work keeps an eighth at the least of the bytes that it has to move.
  const double least = static_cast<double>(cost().bytes) / 8;
  if (least >= kBeyondAnyDevice) return known_memory.emplace(beyond_any_device(least));
  known_memory = predict_memory(device, [this] {
    const std::shared_ptr<WorkItem> item = component->build(
        {workload, pass, /*seed=*/0, c10::Device(c10::DeviceType::Meta), nullptr, std::nullopt});
    return WorkOnMeta{[item] {
                        item->prepare();
                        item->run();
                      },
                      item->parameters(), item->optimizer_state()};
  });
  return *known_memory;
}

}  // namespace tinyllama::harness
