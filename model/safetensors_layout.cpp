#include "model/safetensors_layout.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <tuple>

namespace tinyllama {
namespace {

struct TypeRow {
  ElementType type;
  std::string_view name;
  int64_t bytes;
};
constexpr TypeRow kTypes[] = {{ElementType::f16, "F16", 2},
                              {ElementType::bf16, "BF16", 2},
                              {ElementType::f32, "F32", 4},
                              {ElementType::f64, "F64", 8},
                              {ElementType::i64, "I64", 8}};

const TypeRow& row(ElementType type) {
  return kTypes[static_cast<size_t>(type)];
}

[[noreturn]] void fail(const std::string& file, const std::string& what) {
  throw std::invalid_argument(fmt::format("safetensors file {}: {}", file, what));
}

// A text as JSON has it, in quotes.
std::string json_text(const std::string& file, const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    fail(file, fmt::format("tensor '{}': its name is not UTF-8", printable(text)));
  }
}

// Length, then JSON and spaces up to a multiple of 8, so that the data of every type is aligned.
std::string with_length(std::string header, const std::string& file) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  if (std::ssize(header) > kLargestSafetensorsHeader) {
    fail(file, fmt::format("header of {} bytes: must be at most {}; write fewer tensors",
                           header.size(), kLargestSafetensorsHeader));
  }
  std::string length(kSafetensorsLengthBytes, '\0');
  for (size_t i = 0; i < length.size(); ++i)
    length[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return length + header;
}

}  // namespace

std::string_view to_string(ElementType type) {
  return row(type).name;
}

std::optional<ElementType> find_element_type(std::string_view name) {
  const auto* found = std::ranges::find(kTypes, name, &TypeRow::name);
  return found == std::end(kTypes) ? std::nullopt : std::optional(found->type);
}

int64_t element_bytes(ElementType type) {
  return row(type).bytes;
}

std::optional<int64_t> tensor_bytes(ElementType type, const std::vector<int64_t>& shape) {
  int64_t bytes = element_bytes(type);
  // A zero among the sizes does not excuse the others: strides are products of them.
  bool is_empty = false;
  for (const int64_t size : shape) {
    if (size == 0) is_empty = true;
    if (size != 0 && __builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return is_empty ? 0 : bytes;
}

std::string printable(std::string_view text, size_t longest) {
  std::string shown;
  for (const char c : text.substr(0, longest)) {
    const auto byte = static_cast<unsigned char>(c);
    shown += byte >= 0x20 && byte < 0x7f ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
  }
  return text.size() > longest ? shown + "..." : shown;
}

int64_t parse_safetensors_header_length(std::string_view first_bytes, int64_t file_bytes,
                                        const std::string& file) {
  if (file_bytes < kSafetensorsLengthBytes || std::ssize(first_bytes) < kSafetensorsLengthBytes) {
    fail(file, fmt::format("is {} bytes long: the length of the header alone takes {}", file_bytes,
                           kSafetensorsLengthBytes));
  }
  uint64_t length = 0;
  for (size_t i = kSafetensorsLengthBytes; i-- > 0;)
    length = length << 8 | static_cast<unsigned char>(first_bytes[i]);
  if (length > kLargestSafetensorsHeader) {
    fail(file, fmt::format("header of {} bytes: must be at most {}; this is no safetensors file",
                           length, kLargestSafetensorsHeader));
  }
  const auto header_bytes = static_cast<int64_t>(length);
  if (header_bytes > file_bytes - kSafetensorsLengthBytes) {
    fail(file, fmt::format("header of {} bytes is longer than the file of {}; it was cut short",
                           header_bytes, file_bytes));
  }
  return header_bytes;
}

SafetensorsHead make_safetensors_head(std::vector<TensorLayout> tensors, const std::string& file) {
  std::ranges::sort(tensors, [](const TensorLayout& a, const TensorLayout& b) {
    return std::tie(b.type, a.name) < std::tie(a.type, b.name);
  });
  std::set<std::string_view> names = {"__metadata__"};
  std::string header = R"({"__metadata__":{"format":"pt"})";
  int64_t end = 0;
  for (auto& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      fail(file,
           fmt::format("tensor '{}': the name is given twice or reserved", printable(tensor.name)));
    }
    const auto bytes = tensor_bytes(tensor.type, tensor.shape);
    tensor.begin = end;
    if (!bytes || __builtin_add_overflow(end, *bytes, &end)) {
      fail(file, fmt::format("tensor '{}' of shape [{}]: the file's size overflows 64 bits",
                             printable(tensor.name), fmt::join(tensor.shape, ", ")));
    }
    tensor.end = end;
    header += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          json_text(file, tensor.name), to_string(tensor.type),
                          fmt::join(tensor.shape, ","), tensor.begin, tensor.end);
  }
  return {with_length(header + "}", file), std::move(tensors)};
}

}  // namespace tinyllama
