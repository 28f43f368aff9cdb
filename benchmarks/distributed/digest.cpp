#include "benchmarks/distributed/digest.hpp"

#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <vector>

namespace tinyllama::distributed {
namespace {

constexpr uint64_t kPrime = 1099511628211ULL;
constexpr size_t kPieceBytes = 1 << 20;

}  // namespace

void Digest::add(const void* data, size_t bytes) {
  const auto* from = static_cast<const unsigned char*>(data);
  size_t at = 0;
  for (; at + sizeof(uint64_t) <= bytes; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, from + at, sizeof word);
    // A multiplication alone would never carry high bits down.
    hash_ = (hash_ ^ word) * kPrime;
    hash_ ^= hash_ >> 29;
  }
  for (; at < bytes; ++at) hash_ = (hash_ ^ from[at]) * kPrime;
}

std::string Digest::text() const {
  return fmt::format("{:016x}", hash_);
}

std::string program_digest() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  if (!file) return "unknown";
  Digest digest;
  std::vector<char> piece(kPieceBytes);
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0)
    digest.add(piece.data(), static_cast<size_t>(file.gcount()));
  return file.bad() ? "unknown" : digest.text();
}

}  // namespace tinyllama::distributed
