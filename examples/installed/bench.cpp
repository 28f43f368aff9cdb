// The suite with a component of your own beside its own: proved, timed and written like those.
#include <ATen/ops/silu.h>

#include <cstdlib>

#include "benchmarks/components/components.hpp"
#include "benchmarks/components/layer_inputs.hpp"
#include "benchmarks/harness/bench_program.hpp"

using namespace tinyllama;

std::unique_ptr<harness::WorkItem> build(const harness::BuildRequest& request) {
  const Workload& w = request.workload;
  TensorInitializer initializer(request.seed, w.dtype, request.device);
  const at::Tensor x = components::hidden_states(w, initializer);
  return components::layer_work(request, {{"hidden_states", x}}, {}, storage_type(w.dtype),
                                initializer, [=] { return at::silu(x); });
}

// 3 FLOPs an element forward (exp, add, divide), 5 backward; each tensor is read or written once.
Cost cost(const Workload& w, Pass pass) {
  const int64_t elements = w.tokens() * w.config.hidden_dim();
  const auto both = [pass](int64_t forward, int64_t backward) {
    return pass == Pass::forward ? forward : pass == Pass::backward ? backward : forward + backward;
  };
  Cost cost;
  cost.elementwise_flops = elements * both(3, 5);
  cost.bytes = elements * storage_bytes(w.dtype) * both(2, 3);
  return cost;
}

int main(int argc, char** argv) {
  setenv("TINY_LLAMA_DATA_DIR", TINY_LLAMA_DATA_DIR, /*overwrite=*/0);
  auto all = components::all();
  all.push_back({"silu", components::kLayerPasses, cost, build});
  return harness::bench_program("my_bench", argc, argv, all, components::parts_of_step());
}
