// tiny_llama_bench.
#include "benchmarks/components/components.hpp"
#include "benchmarks/harness/bench_program.hpp"

int main(int argc, char** argv) {
  using namespace tinyllama;
  return harness::bench_program("tiny_llama_bench", argc, argv, components::all(),
                                components::parts_of_step());
}
