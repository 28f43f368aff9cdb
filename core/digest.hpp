// A digest of bytes, to compare them without keeping or sending them.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace tinyllama {

/// FNV-1a over words of 64 bits. The high bits are folded into the low ones, because the
/// multiplication moves no bit down. Not cryptographic.
class Digest {
 public:
  void add(const void* data, size_t bytes) {
    const auto* from = static_cast<const unsigned char*>(data);
    size_t at = 0;
    for (; at + sizeof(uint64_t) <= bytes; at += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, from + at, sizeof word);
      fold(word);
    }
    for (; at < bytes; ++at) fold(from[at]);
  }
  uint64_t value() const { return hash_; }
  /// 16 hexadecimal digits; differs, but for chance, where any bit differs.
  std::string text() const { return fmt::format("{:016x}", hash_); }

 private:
  void fold(uint64_t word) {
    hash_ = (hash_ ^ word) * 0x100000001b3;
    hash_ ^= hash_ >> 29;
  }

  uint64_t hash_ = 0xcbf29ce484222325;
};

}  // namespace tinyllama
