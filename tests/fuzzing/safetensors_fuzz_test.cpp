// Damaged files: whatever is done to a header, a file or a config.json, the reader either refuses
// it with a message that names the file, or what it read keeps every rule, checked here anew.
#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <utility>

#include "model/proof_record.hpp"
#include "model/safetensors.hpp"
#include "model/weights.hpp"
#include "tests/fuzzing/file_testing.hpp"

// Of the address sanitizer's library; absent from programs without it.
extern "C" __attribute__((weak)) void __asan_init();
extern "C" __attribute__((weak)) void __sanitizer_set_report_path(const char* path);

namespace tinyllama {
namespace {

// `short_count` usually, `long_count` where the long tests run.
int64_t fuzz_count(int64_t short_count, int64_t long_count) {
  const char* wanted = std::getenv("TINY_LLAMA_LONG_TESTS");
  return wanted != nullptr && std::string_view(wanted) == "1" ? long_count : short_count;
}

constexpr std::string_view kTokens[] = {"{",
                                        "}",
                                        "[",
                                        "]",
                                        ",",
                                        ":",
                                        "\"",
                                        "\\",
                                        "\\u0000",
                                        "\\ud800",
                                        " ",
                                        "null",
                                        "true",
                                        "-",
                                        ".",
                                        "e9",
                                        "F32",
                                        "F16",
                                        "BF16",
                                        "I64",
                                        "U8",
                                        "dtype",
                                        "0",
                                        "shape",
                                        "1e999",
                                        "\"x\":",
                                        "{\"a\":",
                                        "[[[[[[",
                                        "\xff",
                                        "\xc3\xa9",
                                        ",\"shape\":[2]",
                                        "__metadata__",
                                        std::string_view("\0}", 2),
                                        "data_offsets"};
constexpr std::string_view kNumbers[] = {"0",
                                         "1",
                                         "-1",
                                         "2",
                                         "64",
                                         "2147483647",
                                         "2147483648",
                                         "4294967295",
                                         "4294967296",
                                         "-0",
                                         "1.0",
                                         "1e3",
                                         "1e99",
                                         "4611686018427387904",
                                         "9223372036854775807",
                                         "9223372036854775808",
                                         "18446744073709551615",
                                         "18446744073709551616",
                                         "-9223372036854775808"};
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Random damage to texts: the same seed does the same.
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

std::string Mutator::mutate(std::string text, const std::string& other) {
  for (size_t times = 1 + below(4); times > 0; --times) mutate_once(text, other);
  return text;
}

void Mutator::mutate_once(std::string& text, const std::string& other) {
  const size_t at = below(text.size());
  const size_t length = below(one_in(4) ? text.size() : 9);
  switch (below(10)) {
    case 0:
      if (!text.empty()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
      break;
    case 1:
      if (!text.empty()) text[at] = static_cast<char>(below(256));
      break;
    case 2:
      text.erase(at, length);
      break;
    case 3:
      text.insert(at, text.substr(at, length));
      break;
    case 4:
      text.replace(at, length, other.substr(below(other.size()), length));
      break;
    case 5:
      if (one_in(4)) text.resize(at);
      break;
    case 6:
      insert_token(text);
      break;
    case 7:
      remove_member(text);
      break;
    default:
      replace_number(text);
  }
}

void Mutator::insert_token(std::string& text) {
  const size_t at = one_in(4) ? text.size() : below(text.size());
  text.insert(at, kTokens[below(std::size(kTokens))]);
}

// What stands between two commas or opening braces, with the second.
void Mutator::remove_member(std::string& text) {
  const size_t before = text.find_first_of("{,", below(text.size()));
  if (before == std::string::npos) return;
  const size_t after = text.find(',', before + 1);
  if (after != std::string::npos) text.erase(before + 1, after - before);
}

// The first number behind a random place: some other, or its neighbour, which damages least.
void Mutator::replace_number(std::string& text) {
  const auto begin = std::find_if(text.begin() + static_cast<std::ptrdiff_t>(below(text.size())),
                                  text.end(), is_digit);
  const auto end = std::find_if_not(begin, text.end(), is_digit);
  if (begin == end) return;
  std::string digits(begin, end);
  switch (below(3)) {
    case 0:
      digits = kNumbers[below(std::size(kNumbers))];
      break;
    case 1:
      digits = std::to_string(number());
      break;
    default:
      digits.back() = digits.back() == '9' ? '8' : static_cast<char>(digits.back() + 1);
  }
  text.replace(begin, end, digits);
}

constexpr const char* kFile = "damaged.safetensors";
constexpr c10::ScalarType kTypes[] = {c10::ScalarType::Half, c10::ScalarType::BFloat16,
                                      c10::ScalarType::Float, c10::ScalarType::Double,
                                      c10::ScalarType::Long};

// What a valid file of a few random tensors begins with.
SafetensorsHead random_head(Mutator& random, size_t most_tensors) {
  std::vector<TensorLayout> tensors(random.below(most_tensors + 1));
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].name = fmt::format("model.layers.{}.weight", i);
    tensors[i].type = kTypes[random.below(std::size(kTypes))];
    for (size_t n = random.below(4); n > 0; --n)
      tensors[i].shape.push_back(static_cast<int64_t>(random.below(6)));
  }
  return make_safetensors_head(std::move(tensors), kFile);
}

int64_t data_bytes(const SafetensorsHead& head) {
  return head.tensors.empty() ? 0 : head.tensors.back().end;
}

int64_t bytes_of_element(std::string_view dtype) {
  return dtype == "F16" || dtype == "BF16" ? 2 : dtype == "F32" ? 4 : 8;
}

// Every rule of the format and the agreement with an ordinary parser of JSON; what is broken, or
// nothing.
std::string broken_rule(const SafetensorsLayout& layout, std::string_view header,
                        int64_t available_bytes) {
  // An ordinary parser takes it for the end.
  if (header.find('\0') != std::string::npos) return "a zero byte";
  const auto json = nlohmann::json::parse(header, nullptr, false);
  if (!json.is_object()) return "not a JSON object";
  const bool has_metadata = json.contains("__metadata__");
  if (json.size() != layout.tensors.size() + (has_metadata ? 1 : 0)) return "tensors lost";
  if (has_metadata && json["__metadata__"] != nlohmann::json(layout.metadata)) return "metadata";
  std::set<std::string> names;
  int64_t covered = 0;
  for (const auto& tensor : layout.tensors) {
    if (!names.insert(tensor.name).second) return "a name twice";
    if (!json.contains(tensor.name)) return "a name from nowhere";
    const auto& entry = json[tensor.name];
    if (entry.size() != 3 || entry["dtype"] != safetensors_type_name(tensor.type)) return "dtype";
    if (entry["shape"] != nlohmann::json(tensor.shape)) return "shape";
    if (entry["data_offsets"] != nlohmann::json({tensor.begin, tensor.end})) return "offsets";
    __extension__ unsigned __int128 bytes = bytes_of_element(safetensors_type_name(tensor.type));
    for (const int64_t size : tensor.shape) {
      if (size < 0) return "a negative size";
      bytes *= static_cast<uint64_t>(size);
      if (bytes > INT64_MAX) return "an overflow";
    }
    if (tensor.begin != covered || tensor.end < tensor.begin) return "a hole or an overlap";
    if (bytes != static_cast<uint64_t>(tensor.end - tensor.begin)) return "size of the data";
    covered = tensor.end;
  }
  return covered == available_bytes ? "" : "data that belong to no tensor";
}

// What is wrong with a message, or nothing.
std::string broken_message(const std::exception& error, const std::string& file) {
  const std::string_view message = error.what();
  if (dynamic_cast<const std::invalid_argument*>(&error) == nullptr) return "another exception";
  if (message.find(file) == std::string_view::npos) return "does not name the file";
  if (message.size() > 2000) return "is endless";
  const bool is_printable =
      std::ranges::all_of(message, [](char c) { return c >= ' ' && c <= '~'; });
  return is_printable ? "" : "is not printable";
}

// A text with nothing of its own behind it, not even a terminating zero, so that the sanitizer sees
// a read of one byte too many.
class ExactText {
 public:
  explicit ExactText(std::string_view text)
      : bytes_(std::make_unique<char[]>(text.size())), size_(text.size()) {
    std::ranges::copy(text, bytes_.get());
  }
  std::string_view text() const { return {bytes_.get(), size_}; }

 private:
  std::unique_ptr<char[]> bytes_;
  size_t size_;
};

struct Outcomes {
  int64_t accepted = 0;
  int64_t refused = 0;
};

// Runs `read` on one damaged text; `read` returns which rule is broken by what it read.
template <typename Read>
void note_outcome(Outcomes& outcomes, const std::string& text, const std::string& file, Read read) {
  try {
    ASSERT_EQ(read(), "") << text;
    ++outcomes.accepted;
  } catch (const std::exception& error) {
    ASSERT_EQ(broken_message(error, file), "") << error.what() << "\n" << text;
    ++outcomes.refused;
  }
}

// These tests also stand in the program whose reader is
// watched by the sanitizers.
void record_proof(const char* check, const Outcomes& outcomes, bool broke_a_rule) {
  const char* const watched_by = __asan_init != nullptr
                                     ? "the rules, under address and undefined-behaviour sanitizers"
                                     : "the rules of the format, checked anew";
  testing::ProofRecord proof({"Weights in and out", check, watched_by, 0});
  proof.expect_none_wrong(outcomes.accepted + outcomes.refused + broke_a_rule, broke_a_rule, check);
}

// Otherwise the sanitizers would not watch what the tests below call.
TEST(SafetensorsFuzz, TheSanitizerSeesAByteReadBehindTheHeader) {
  if (__asan_init == nullptr) GTEST_SKIP() << "only in the program built with sanitizers";
  const ExactText header(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]})");
  const std::string_view too_long(header.text().data(), header.text().size() + 1);
  const auto read_behind = [&] {
    // Reports may go to a file, where nobody would know that this one is wanted.
    __sanitizer_set_report_path("stderr");
    parse_safetensors_header(too_long, 4, kFile);
  };
  EXPECT_DEATH(read_behind(), "heap-buffer-overflow");
}

TEST(SafetensorsFuzz, DamagedHeadersAreRefusedOrKeepEveryRule) {
  const int64_t count = fuzz_count(100'000, 5'000'000);
  Mutator random(20261121);
  Outcomes outcomes;
  SafetensorsHead head = random_head(random, 4);
  SafetensorsHead other;
  for (int64_t i = 0; i < count; ++i) {
    if (i % 8 == 0) {
      other = std::exchange(head, random_head(random, random.one_in(50) ? 40 : 4));
    }
    std::string file = head.bytes.substr(0, kSafetensorsLengthBytes) +
                       random.mutate(head.bytes.substr(kSafetensorsLengthBytes), other.bytes);
    // Usually a length that fits, so that the header is what decides.
    uint64_t length = file.size() - kSafetensorsLengthBytes;
    if (random.one_in(20))
      length = random.one_in(2) ? random.number() : length + random.below(3) - 1;
    if (!random.one_in(20)) std::memcpy(file.data(), &length, sizeof length);
    const int64_t more = random.one_in(20) ? static_cast<int64_t>(random.below(9)) : 0;
    const int64_t file_bytes = std::ssize(file) + data_bytes(head) + more;
    note_outcome(outcomes, file, kFile, [&] {
      const int64_t header_bytes =
          parse_safetensors_header_length(file.substr(0, 8), file_bytes, kFile);
      if (header_bytes > file_bytes - 8) return std::string("length");
      const ExactText copy(std::string_view(file).substr(8, static_cast<size_t>(header_bytes)));
      const std::string_view header = copy.text();
      const int64_t available = file_bytes - 8 - header_bytes;
      return broken_rule(parse_safetensors_header(header, available, kFile), header, available);
    });
    if (HasFatalFailure()) break;
  }
  // Neither branch is idle.
  EXPECT_GT(outcomes.accepted, count / 100);
  EXPECT_GT(outcomes.refused, count / 2);
  record_proof("damaged safetensors headers neither refused by name nor keeping every rule",
               outcomes, HasFatalFailure());
}

TEST(SafetensorsFuzz, DamagedFilesAreRefusedOrReadAsTheyAre) {
  const int64_t count = fuzz_count(5'000, 100'000);
  const testing::TemporaryFolder folder;
  const auto path = folder.path() / kFile;
  Mutator random(7);
  Outcomes outcomes;
  for (int64_t i = 0; i < count; ++i) {
    const SafetensorsHead head = random_head(random, 4);
    std::string file = head.bytes;
    for (int64_t byte = data_bytes(head); byte > 0; --byte)
      file += static_cast<char>(random.below(256));
    // Half of the files keep their header, so that tensors are read.
    if (random.one_in(2)) {
      file = random.mutate(file, head.bytes);
    } else if (file.size() > head.bytes.size()) {
      file[head.bytes.size() + random.below(file.size() - head.bytes.size())] ^= 1;
    }
    testing::write_bytes(path, file);
    note_outcome(outcomes, file, path.string(), [&]() -> std::string {
      const SafetensorsFile opened(path);
      int64_t data = 0;
      for (const auto& tensor : opened.tensors()) data += tensor.bytes();
      const auto start = file.size() - static_cast<size_t>(data);
      for (const auto& tensor : opened.tensors()) {
        const at::Tensor read = opened.read(tensor.name);
        if (read.sizes() != c10::ArrayRef<int64_t>(tensor.shape)) return "shape";
        if (static_cast<int64_t>(read.nbytes()) != tensor.bytes()) return "bytes";
        const auto* stored = file.data() + start + tensor.begin;
        // An empty tensor has no data to point at.
        if (read.nbytes() > 0 && std::memcmp(read.const_data_ptr(), stored, read.nbytes()) != 0)
          return "other values than the file's";
      }
      return "";
    });
    if (HasFatalFailure()) break;
  }
  EXPECT_GT(outcomes.accepted, count / 4);
  EXPECT_GT(outcomes.refused, count / 4);
  record_proof("damaged safetensors files neither refused by name nor read as they are", outcomes,
               HasFatalFailure());
}

TEST(SafetensorsFuzz, DamagedConfigsAreRefusedOrKeepTheModelsRules) {
  const int64_t count = fuzz_count(5'000, 200'000);
  const testing::TemporaryFolder folder;
  const auto path = folder.path() / "config.json";
  const std::string good = checkpoint_config_text(ModelConfig(), c10::ScalarType::Float);
  Mutator random(3);
  Outcomes outcomes;
  for (int64_t i = 0; i < count; ++i) {
    const std::string text = random.mutate(good, good);
    testing::write_bytes(path, text);
    note_outcome(outcomes, text, path.string(), [&]() -> std::string {
      const ModelConfig config = read_checkpoint_config(path);
      return config == ModelConfig(config.dimensions()) ? "" : "dimensions";
    });
    if (HasFatalFailure()) break;
  }
  EXPECT_GT(outcomes.accepted, count / 100);
  EXPECT_GT(outcomes.refused, count / 2);
  record_proof("damaged config.json neither refused by name nor a model's", outcomes,
               HasFatalFailure());
}

}  // namespace
}  // namespace tinyllama
