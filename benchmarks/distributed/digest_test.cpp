#include "benchmarks/distributed/digest.hpp"

#include <gtest/gtest.h>

#include <string>

namespace tinyllama::distributed {
namespace {

std::string digest_of(const std::string& bytes) {
  Digest digest;
  digest.add(bytes.data(), bytes.size());
  return digest.text();
}

TEST(DigestTest, AnyBitAndTheLengthChangeIt) {
  const std::string bytes = "some bytes that are no multiple of eight";
  EXPECT_EQ(digest_of(bytes), digest_of(bytes));
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string other = bytes;
    other[at] = static_cast<char>(other[at] ^ 1);
    EXPECT_NE(digest_of(other), digest_of(bytes)) << at;
  }
  EXPECT_NE(digest_of(bytes + '\0'), digest_of(bytes));
}

TEST(DigestTest, APieceAfterTheOtherIsTheWhole) {
  const std::string bytes = "0123456789abcdef";
  Digest digest;
  digest.add(bytes.data(), 8);
  digest.add(bytes.data() + 8, 8);
  EXPECT_EQ(digest.text(), digest_of(bytes));
}

TEST(DigestTest, ThisProgramHasOne) {
  EXPECT_EQ(program_digest().size(), 16U);
  EXPECT_EQ(program_digest(), program_digest());
}

}  // namespace
}  // namespace tinyllama::distributed
