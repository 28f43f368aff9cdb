// Safetensors files and their headers.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <random>

#include "model/safetensors.hpp"
#include "tests/fuzzing/file_testing.hpp"

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
  for (const auto& [name, tensor] : tensors)
    EXPECT_TRUE(same_bits(file.read(name), tensor)) << name;
  const std::string written = get();
  NamedTensors again;
  for (const TensorLayout& tensor : file.tensors())
    again.emplace_back(tensor.name, file.read(tensor.name));
  write_safetensors(file_, again);
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
  const auto head = make_safetensors_head({{"x", ScalarType::Double, {elements}}}, "file");
  put(head.bytes);
  std::error_code error;
  std::filesystem::resize_file(file_, head.bytes.size() + 8 * elements, error);
  if (error) GTEST_SKIP() << "this file system has no files of 8 TiB";
  const SafetensorsFile file(file_);
  expect_error([&] { file.read("x"); }, {file_.string(), "tensor 'x' of 8796093022208 bytes"});
}

TEST_F(SafetensorsFileTest, RefusesTensorsItCannotWrite) {
  put("old");
  const std::pair<NamedTensors, std::string> cases[] = {
      {{{"x", at::ones({1}, ScalarType::Int)}}, "of type Int cannot be written: must be Double"},
      {{{"x", at::Tensor()}}, "not a dense"},
      {{{"x", at::ones({1})}, {"x", at::ones({1})}}, "given twice"}};
  for (const auto& [tensors, message] : cases) {
    const NamedTensors& given = tensors;
    expect_error([&] { write_safetensors(file_, given); }, {file_.string(), "tensor 'x'", message});
  }
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

constexpr const char* kFile = "some/weights.safetensors";

std::string error_of(const std::string& header, int64_t data_bytes) {
  return testing::error_of([&] { parse_safetensors_header(header, data_bytes, kFile); });
}

const std::string kGoodEntry = R"({"dtype":"F32","shape":[2,3],"data_offsets":[0,24]})";

void expect_refused(const std::string& header, std::initializer_list<std::string> parts,
                    int64_t data_bytes = 24) {
  testing::expect_mentions(error_of(header, data_bytes), {kFile});
  testing::expect_mentions(error_of(header, data_bytes), parts);
}

TEST(SafetensorsHeader, IsRead) {
  const auto layout = parse_safetensors_header(
      R"({"b":{"shape":[2],"data_offsets":[12,28],"dtype":"I64"},"__metadata__":{"format":"pt"},)"
      R"("a":{"dtype":"BF16","shape":[3,2,1],"data_offsets":[0,12]},)"
      R"("none":{"dtype":"F16","shape":[0,9],"data_offsets":[28,28]},)"
      R"("scalar":{"dtype":"F64","shape":[],"data_offsets":[28,36]}}   )",
      36, kFile);
  ASSERT_EQ(layout.tensors.size(), 4);
  EXPECT_EQ(layout.tensors[0], (TensorLayout{"a", ScalarType::BFloat16, {3, 2, 1}, 0, 12}));
  EXPECT_EQ(layout.tensors[1], (TensorLayout{"b", ScalarType::Long, {2}, 12, 28}));
  EXPECT_EQ(layout.tensors[2], (TensorLayout{"none", ScalarType::Half, {0, 9}, 28, 28}));
  EXPECT_EQ(layout.tensors[3], (TensorLayout{"scalar", ScalarType::Double, {}, 28, 36}));
  EXPECT_EQ(layout.metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
  EXPECT_TRUE(parse_safetensors_header("{}", 0, kFile).tensors.empty());
}

TEST(SafetensorsHeader, LengthIsChecked) {
  using namespace std::string_literals;
  EXPECT_EQ(parse_safetensors_header_length("\x02\0\0\0\0\0\0\0"s, 10, kFile), 2);
  const auto refused = [](const std::string& first_bytes, int64_t file_bytes, const char* rule) {
    testing::expect_error([&] { parse_safetensors_header_length(first_bytes, file_bytes, kFile); },
                          {kFile, rule});
  };
  refused("\x02\0\0"s, 3, "is 3 bytes long");
  refused("", 0, "is 0 bytes long");
  refused("\x03\0\0\0\0\0\0\0"s, 10, "header of 3 bytes is longer than the file of 10");
  refused("\x01\xe1\xf5\x05\0\0\0\0"s, int64_t{1} << 40,
          "header of 100000001 bytes: must be at most 100000000");
  refused("\xff\xff\xff\xff\xff\xff\xff\xff"s, 100, "header of 18446744073709551615 bytes");
}

struct Refused {
  std::string json;
  std::string rule;
};

TEST(SafetensorsHeader, RefusesOtherForms) {
  std::string nested = "{";
  for (int i = 0; i < 100'000; ++i) nested += R"("x":{)";
  const Refused cases[] = {
      {"", "does not begin with '{'"},
      {" {}", "does not begin with '{'"},
      {"[]", "does not begin with '{'"},
      {"{", "not valid JSON"},
      {"{}x", "not valid JSON"},
      {std::string("{}\0", 3), "not valid JSON: zero byte at 2"},
      {R"({"x":NaN})", "not valid JSON"},
      {"{\"\xff\":3}", "not valid JSON"},
      {"{\"a\":\"\xc0\x80\"}", "not valid JSON"},
      {R"({"\ud800":3})", "not valid JSON"},
      {R"({"x":)" + std::string(1'000'000, '['), "x: nests deeper than 3 levels"},
      {nested, "nests deeper than 3 levels"},
      {R"({"x":3})", "tensor 'x': is 3: must be an object"},
      {R"({"x":null})", "tensor 'x': is null: must be an object"},
      {R"({"__metadata__":null})", "__metadata__ = null: must be an object"},
      {R"({"__metadata__":{"a":1}})", "__metadata__ 'a' = 1: must be a text"},
      {R"({"__metadata__":{"a":"1","a":"2"}})", "__metadata__: key 'a' occurs twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", "key '__metadata__' occurs twice"},
      {fmt::format(R"({{"x":{},"x":{}}})", kGoodEntry, kGoodEntry), "key 'x' occurs twice"}};
  for (const auto& [header, rule] : cases) expect_refused(header, {rule});
}

TEST(SafetensorsHeader, RefusesEntriesThatAreNoTensors) {
  std::string ones = "1";
  for (int i = 0; i < 64; ++i) ones += ",1";
  const auto shape = [](const std::string& numbers) {
    return fmt::format(R"({{"dtype":"F32","shape":[{}],"data_offsets":[0,24]}})", numbers);
  };
  const auto offsets = [](const std::string& numbers) {
    return fmt::format(R"({{"dtype":"F32","shape":[2,3],"data_offsets":[{}]}})", numbers);
  };
  EXPECT_EQ(error_of(fmt::format(R"({{"x":{}}})", kGoodEntry), 24), "no error");
  const Refused cases[] = {
      {"{}", "dtype is missing"},
      {R"({"dtype":"F32","shape":[2]})", "data_offsets is missing"},
      {R"({"dtype":"F32","strides":[1]})", "key 'strides' is unknown"},
      {R"({"dtype":"F32","dtype":"F32"})", "key 'dtype' occurs twice"},
      {R"({"dtype":4,"shape":[2],"data_offsets":[0,8]})", "dtype = 4: must be a text"},
      {R"({"dtype":["F32"],"shape":[],"data_offsets":[0,4]})", "dtype = [\"F32\"]: must be"},
      {R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})", "shape = 2: must be an array"},
      {R"({"dtype":"F32","shape":{},"data_offsets":[0,4]})", "shape = {}: must be an array"},
      {R"({"dtype":"U8","shape":[24],"data_offsets":[0,24]})", "dtype = \"U8\": must be F64"},
      {R"({"dtype":"f32","shape":[2,3],"data_offsets":[0,24]})", "dtype = \"f32\": must be F64"},
      {shape("[2]"), "x: shape: nests deeper than 3 levels"},
      {shape("true"), "shape holds true"},
      {shape("-2,-3"), "shape holds -2"},
      {shape("-0"), "shape holds "},
      {shape("2.0,3"), "shape holds 2.0"},
      {shape("6e0"), "shape holds 6.0"},
      {shape("18446744073709551622"), "shape holds 1.8"},
      {shape("9223372036854775808"), "shape holds 9223372036854775808"},
      {shape("2147483648,4294967296,2147483648,6"), "2147483648, 6]: its size overflows 64 bits"},
      {shape("9223372036854775807"), "its size overflows 64 bits"},
      {shape("9223372036854775807,2,0"), "its size overflows 64 bits"},
      {shape(ones), "shape: holds more than 64 values"},
      {offsets("0"), "data_offsets = [0]: must be two"},
      {offsets("0,24,48"), "data_offsets = [0, 24, 48]: must be two"},
      {offsets("-24,0"), "data_offsets holds -24"},
      {offsets("24,0"), "[24, 0]: must not end before they begin"},
      {offsets("0,25"), "[0, 25]: the file holds only 24 bytes of data"},
      {offsets("0,9223372036854775807"), "the file holds only 24 bytes of data"},
      {offsets("0,20"), "hold 20 bytes, but F32 of shape [2, 3] takes 24"}};
  for (const auto& [entry, rule] : cases)
    expect_refused(fmt::format(R"({{"x":{}}})", entry), {"x", rule});
}

TEST(SafetensorsHeader, RefusesOverlapsAndHoles) {
  const auto two = [](int begin, int end) {
    return fmt::format(R"({{"y":{{"dtype":"F32","shape":[2],"data_offsets":[{},{}]}},"x":{}}})",
                       begin, end, kGoodEntry);
  };
  EXPECT_EQ(error_of(two(24, 32), 32), "no error");
  expect_refused(two(24, 32), {"holds 33 bytes of data, but its tensors end at 32"}, 33);
  expect_refused("{}", {"holds 1 bytes of data, but its tensors end at 0"}, 1);
  expect_refused(two(20, 28), {"'y': begins at byte 20", "before the end 24 of tensor 'x'"}, 28);
  expect_refused(two(0, 8), {"'x': begins at byte 0", "before the end 8 of tensor 'y'"}, 32);
  expect_refused(two(28, 36), {"'y': begins at byte 28", "bytes 24 to 28 belong to no"}, 36);
}

// Against a count of how many tensors each byte belongs to.
TEST(SafetensorsHeader, IsTakenWhereRandomTensorsCoverTheDataOnce) {
  std::mt19937 random(20261121);
  int taken = 0;
  for (int i = 0; i < 20'000; ++i) {
    const int64_t data_bytes = 2 * (random() % 4);
    std::vector<std::string> entries;
    std::vector<int> owners(16);
    std::vector<std::pair<int64_t, int64_t>> ranges(random() % 5);
    for (auto& [begin, end] : ranges) {
      begin = random() % 7;
      end = begin + 2 * (random() % 3);
      entries.push_back(fmt::format(R"("{}":{{"dtype":"F16","shape":[{}],"data_offsets":[{},{}]}})",
                                    entries.size(), (end - begin) / 2, begin, end));
      for (int64_t byte = begin; byte < end; ++byte) ++owners[static_cast<size_t>(byte)];
    }
    bool is_right = true;
    for (int64_t byte = 0; byte < std::ssize(owners); ++byte)
      is_right &= owners[static_cast<size_t>(byte)] == (byte < data_bytes);
    // An empty one may lie between two others, in none and not behind the last.
    for (const auto& [at, end] : ranges) {
      is_right &= end <= data_bytes;
      for (const auto& [begin, other_end] : ranges)
        is_right &= at < end || at <= begin || at >= other_end;
    }
    const std::string header = fmt::format("{{{}}}", fmt::join(entries, ","));
    EXPECT_EQ(error_of(header, data_bytes) == "no error", is_right) << data_bytes << " " << header;
    taken += is_right;
  }
  EXPECT_GT(taken, 100);
}

TEST(SafetensorsHeader, MessagesAreShortAndPrintable) {
  const std::string bell = "{\"\\u0007\x7f\xc3\xa9\":3}";
  expect_refused(bell, {R"(tensor '\x07\x7f\xc3\xa9')"});
  std::string endless = "{\"";
  endless.append(1'000'000, 'x');
  EXPECT_LT(error_of(endless, 0).size(), 500);
  EXPECT_LT(error_of(endless.append("\":3}"), 0).size(), 500);
}

TEST(SafetensorsHead, IsLaidOutAsThePythonPackageDoes) {
  const auto head = make_safetensors_head({{"b", ScalarType::BFloat16, {3}},
                                           {"a", ScalarType::Float, {2, 2}},
                                           {"i", ScalarType::Long, {3}},
                                           {"d", ScalarType::Double, {1}},
                                           {"h", ScalarType::Half, {5}},
                                           {"s", ScalarType::Float, {}},
                                           {" \"\n\x01\x7f/\xc3\xa9", ScalarType::Float, {2}},
                                           {"e", ScalarType::Float, {0, 3}}},
                                          kFile);
  // What safetensors 0.8.0 writes for these tensors.
  const std::string expected =
      R"({"__metadata__":{"format":"pt"},"i":{"dtype":"I64","shape":[3],"data_offsets":[0,24]},)"
      R"("d":{"dtype":"F64","shape":[1],"data_offsets":[24,32]},)"
      R"(" \"\n\u0001)"
      "\x7f/\xc3\xa9"
      R"(":{"dtype":"F32","shape":[2],"data_offsets":[32,40]},)"
      R"("a":{"dtype":"F32","shape":[2,2],"data_offsets":[40,56]},)"
      R"("e":{"dtype":"F32","shape":[0,3],"data_offsets":[56,56]},)"
      R"("s":{"dtype":"F32","shape":[],"data_offsets":[56,60]},)"
      R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[60,66]},)"
      R"("h":{"dtype":"F16","shape":[5],"data_offsets":[66,76]}}       )";
  EXPECT_EQ(head.bytes.substr(8), expected);
  EXPECT_EQ(head.bytes.substr(0, 8), std::string("\xf0\x01\0\0\0\0\0\0", 8));
  EXPECT_EQ(parse_safetensors_header(expected, 76, kFile).tensors, head.tensors);
}

TEST(SafetensorsHead, RefusesWhatCannotBeWritten) {
  const auto refused = [](const std::vector<TensorLayout>& tensors, const char* rule) {
    testing::expect_error([&] { make_safetensors_head(tensors, kFile); }, {kFile, rule});
  };
  constexpr auto f32 = ScalarType::Float;
  refused({{"x", f32, {1}}, {"y", f32, {1}}, {"x", ScalarType::Half, {}}},
          "tensor 'x': the name is given twice or reserved");
  refused({{"__metadata__", f32, {1}}}, "reserved");
  refused({{"\xff", f32, {1}}}, "tensor '\\xff': its name is not UTF-8");
  refused({{"x", f32, {int64_t{1} << 61}}, {"y", f32, {1}}},
          "[2305843009213693952]: the file's size overflows");
  refused({{std::string(kLargestSafetensorsHeader, 'x'), f32, {1}}}, "must be at most 100000000");
}

}  // namespace
}  // namespace tinyllama
