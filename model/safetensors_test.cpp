#include "model/safetensors.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>

#include "model/file_testing.hpp"

namespace tinyllama {
namespace {

using c10::ScalarType;

using testing::error_of;
using testing::expect_error;

class SafetensorsFileTest : public ::testing::Test {
 protected:
  void put(const std::string& bytes) const { testing::write_bytes(file_, bytes); }
  std::string get() const { return testing::read_bytes(file_); }
  std::vector<std::string> entries() const { return temporary_.entries(); }

  testing::TemporaryFolder temporary_;
  std::filesystem::path folder_ = temporary_.path();
  std::filesystem::path file_ = folder_ / "some.safetensors";
};

// A tensor whose bytes are these words one after the other.
template <typename Word>
at::Tensor from_words(ScalarType type, const std::vector<Word>& words) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(words.size())}, type);
  std::memcpy(tensor.mutable_data_ptr(), words.data(), words.size() * sizeof(Word));
  return tensor;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  // An empty tensor has no data to point at.
  return a.numel() == 0 || std::memcmp(a.contiguous().const_data_ptr(),
                                       b.contiguous().const_data_ptr(), a.nbytes()) == 0;
}

// Zeros of both signs, the smallest denormal, infinity, a quiet and a signalling NaN with payloads.
NamedTensors difficult_values() {
  return {
      {"f64",
       from_words<uint64_t>(ScalarType::Double, {0, 0x8000000000000000, 1, 0x7ff0000000000000,
                                                 0x7ff8000000000123, 0xfff0000000000001})},
      {"f32", from_words<uint32_t>(ScalarType::Float,
                                   {0, 0x80000000, 1, 0x7f800000, 0x7fc00123, 0xff800001})},
      {"f16", from_words<uint16_t>(ScalarType::Half, {0, 0x8000, 1, 0x7c00, 0x7e12, 0xfc01})},
      {"bf16", from_words<uint16_t>(ScalarType::BFloat16, {0, 0x8000, 1, 0x7f80, 0x7fc1, 0xff81})},
      {"i64", from_words<uint64_t>(ScalarType::Long, {0, 0x8000000000000000, 1, ~uint64_t{0}})}};
}

TEST_F(SafetensorsFileTest, KeepsEveryBitOfEveryType) {
  NamedTensors tensors = difficult_values();
  tensors.emplace_back("scalar", at::ones({}, ScalarType::Float));
  tensors.emplace_back("nothing", at::empty({3, 0, 2}, ScalarType::Half));
  tensors.emplace_back("matrix", at::arange(6, ScalarType::Double).view({2, 3}));
  tensors.emplace_back("transposed", at::arange(6, ScalarType::Long).view({2, 3}).t());
  write_safetensors(file_, tensors);
  const SafetensorsFile file(file_);
  EXPECT_EQ(file.tensors().size(), tensors.size());
  EXPECT_EQ(file.metadata().at("format"), "pt");
  for (const auto& [name, tensor] : tensors)
    EXPECT_TRUE(same_bits(file.read(name), tensor)) << name;
  const std::string written = get();
  write_safetensors(file_, file.read_all());
  EXPECT_EQ(get(), written);
}

TEST_F(SafetensorsFileTest, AFileWithoutTensorsIsAFile) {
  write_safetensors(file_, {});
  EXPECT_TRUE(SafetensorsFile(file_).tensors().empty());
}

TEST_F(SafetensorsFileTest, NamesFileAndTensorInErrors) {
  write_safetensors(file_, {{"x", at::ones({2})}});
  const SafetensorsFile file(file_);
  expect_error([&] { file.read("y"); }, {file_.string(), "has no tensor 'y'"});
  expect_error([&] { SafetensorsFile(folder_ / "absent"); },
               {(folder_ / "absent").string(), "cannot be read: No such file"});
  expect_error([&] { SafetensorsFile{folder_}; }, {folder_.string(), "it is a folder"});
  expect_error([&] { SafetensorsFile("/dev/null"); }, {"/dev/null", "not a regular file"});
  put("short");
  expect_error([&] { SafetensorsFile{file_}; }, {file_.string(), "is 5 bytes long"});
}

TEST_F(SafetensorsFileTest, EveryTruncationIsAnError) {
  write_safetensors(file_, {{"x", at::ones({2})}, {"y", at::ones({3}, ScalarType::Half)}});
  const std::string whole = get();
  for (size_t length = 0; length < whole.size(); ++length) {
    put(whole.substr(0, length));
    expect_error([&] { SafetensorsFile{file_}; }, {"safetensors file", file_.string()});
  }
  put(whole + '\0');
  expect_error([&] { SafetensorsFile{file_}; }, {file_.string(), "its tensors end at 14"});
}

TEST_F(SafetensorsFileTest, AFileCutAfterOpeningIsAnErrorAndNoCrash) {
  write_safetensors(file_, {{"x", at::ones({1000})}});
  const SafetensorsFile file(file_);
  std::filesystem::resize_file(file_, std::filesystem::file_size(file_) - 4);
  expect_error([&] { file.read("x"); }, {file_.string(), "tensor 'x'", "when it was opened"});
}

TEST_F(SafetensorsFileTest, AHugeHoleIsNoMemoryAndNoCrash) {
  const int64_t elements = int64_t{1} << 40;
  const auto head = make_safetensors_head({{"x", ElementType::f64, {elements}}}, "file");
  put(head.bytes);
  std::error_code error;
  std::filesystem::resize_file(file_, head.bytes.size() + 8 * elements, error);
  if (error) GTEST_SKIP() << "this file system has no files of 8 TiB";
  const SafetensorsFile file(file_);
  expect_error([&] { file.read("x"); }, {file_.string(), "tensor 'x' of 8796093022208 bytes"});
}

TEST_F(SafetensorsFileTest, RefusesTensorsItCannotWrite) {
  put("old");
  const auto write = [&](const NamedTensors& tensors) { write_safetensors(file_, tensors); };
  expect_error(
      [&] {
        write({{"x", at::ones({1}, ScalarType::Int)}});
      },
      {file_.string(), "tensor 'x' of type Int", "must be Double"});
  expect_error(
      [&] {
        write({{"x", at::Tensor()}});
      },
      {file_.string(), "tensor 'x'", "not a dense"});
  expect_error(
      [&] {
        write({{"x", at::ones({1})}, {"x", at::ones({1})}});
      },
      {file_.string(), "tensor 'x'", "given twice"});
  EXPECT_EQ(get(), "old");
  EXPECT_EQ(entries().size(), 1);
}

TEST_F(SafetensorsFileTest, WritesWhereItIsTold) {
  const NamedTensors tensors = {{"x", at::ones({1})}};
  expect_error([&] { write_safetensors(folder_ / "none" / "file", tensors); },
               {(folder_ / "none" / "file").string(), "cannot be written: No such file"});
  std::filesystem::create_directories(folder_ / "taken" / "by something");
  expect_error([&] { write_safetensors(folder_ / "taken", tensors); },
               {(folder_ / "taken").string(), "cannot be written"});
  EXPECT_EQ(entries(), std::vector<std::string>{"taken"});
}

// The limit on the size of files stands for a full disk: the system takes some bytes, then refuses.
TEST_F(SafetensorsFileTest, AFullDiskLeavesTheOldFile) {
  put("old");
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto previous = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {4096, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = error_of([&] {
    write_safetensors(file_, {{"x", at::ones({100'000})}});
  });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, previous);
  EXPECT_EQ(message, file_.string() + ": cannot be written: File too large");
  EXPECT_EQ(get(), "old");
  EXPECT_EQ(entries().size(), 1);
}

}  // namespace
}  // namespace tinyllama
