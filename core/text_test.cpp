#include "core/text.hpp"

#include <gtest/gtest.h>

namespace tinyllama {
namespace {

TEST(TextTest, FormatsBytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(int64_t{5} << 20), "5.00 MiB");
  EXPECT_EQ(format_bytes(int64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(format_bytes(int64_t{1} << 40), "1.00 TiB");
  EXPECT_EQ(format_bytes(INT64_MAX), "8.00 EiB");
  EXPECT_EQ(format_bytes(-2048), "-2.00 KiB");
}

TEST(TextTest, FormatsCounts) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1536), "1.54 k");
  EXPECT_EQ(format_count(2'873'600), "2.87 M");
  EXPECT_EQ(format_count(1.5e9), "1.50 G");
  EXPECT_EQ(format_count(2e12), "2.00 T");
  EXPECT_EQ(format_count(3e15), "3.00 P");
}

}  // namespace
}  // namespace tinyllama
