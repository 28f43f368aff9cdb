// copy_weights IN OUT: reads a folder of weights and writes it again, for the round trip through
// transformers that tests/proofs/test_proofs.py makes.
#include <stdexcept>

#include "benchmarks/console/exit.hpp"
#include "model/weights.hpp"

int main(int argc, char** argv) {
  return tinyllama::console::run_program("copy_weights", [&] {
    if (argc != 3) throw std::invalid_argument("usage: copy_weights IN OUT");
    const tinyllama::Weights weights(argv[1]);
    tinyllama::save_weights(argv[2], weights.config(), weights.read_all(), weights.config_text());
    return tinyllama::console::ExitCode::ok;
  });
}
