// copy_weights IN OUT: reads a folder of weights and writes it again, for the round trip through
// transformers that tests/test_weights.py makes.
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <exception>

#include "model/weights.hpp"

int main(int argc, char** argv) {
  constexpr int kBadInput = 2;
  if (argc != 3) {
    fmt::print(stderr, "usage: copy_weights IN OUT\n");
    return kBadInput;
  }
  try {
    const tinyllama::Weights weights(argv[1]);
    tinyllama::save_weights(argv[2], weights.config(), weights.read_all(), weights.config_text());
    return 0;
  } catch (const c10::Error& error) {
    fmt::print(stderr, "copy_weights: {}\n", error.what_without_backtrace());
  } catch (const std::exception& error) {
    fmt::print(stderr, "copy_weights: {}\n", error.what());
  }
  return kBadInput;
}
