// Random damage to texts, for tests that readers survive it. The same seed does the same damage.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace tinyllama::testing {

/// `short_count` usually, `long_count` where the long tests run (TINY_LLAMA_LONG_TESTS=1).
int64_t fuzz_count(int64_t short_count, int64_t long_count);

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  /// A number from [0, end).
  size_t below(size_t end) { return end == 0 ? 0 : random_() % end; }
  bool one_in(size_t n) { return below(n) == 0; }
  /// A number of 64 bits, of any magnitude.
  uint64_t number() { return random_() >> below(64); }

  /// One to four of: a bit flipped, a byte overwritten, a range removed, doubled or replaced by one
  /// of `other`, a token of JSON inserted, a member of an object removed, a number replaced, the
  /// end cut off.
  std::string mutate(std::string text, const std::string& other);

 private:
  void mutate_once(std::string& text, const std::string& other);
  void insert_token(std::string& text);
  void remove_member(std::string& text);
  void replace_number(std::string& text);

  std::mt19937_64 random_;
};

}  // namespace tinyllama::testing
