#include "model/safetensors.hpp"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <tuple>

#include "core/strict_json.hpp"

namespace tinyllama {
namespace {

static_assert(std::endian::native == std::endian::little, "the format's numbers are little-endian");

using Json = nlohmann::json;

// In the order of safetensors' own enumeration: its writer puts the last of them first.
struct TypeRow {
  c10::ScalarType type;
  std::string_view name;
};
constexpr TypeRow kTypes[] = {{c10::ScalarType::Half, "F16"},
                              {c10::ScalarType::BFloat16, "BF16"},
                              {c10::ScalarType::Float, "F32"},
                              {c10::ScalarType::Double, "F64"},
                              {c10::ScalarType::Long, "I64"}};

const TypeRow* row(c10::ScalarType type) {
  return std::ranges::find(kTypes, type, &TypeRow::type);
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

std::string_view safetensors_type_name(c10::ScalarType type) {
  const TypeRow* found = row(type);
  return found == std::end(kTypes) ? "" : found->name;
}

std::string to_text(c10::ArrayRef<int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::optional<int64_t> tensor_bytes(c10::ScalarType type, const std::vector<int64_t>& shape) {
  auto bytes = static_cast<int64_t>(c10::elementSize(type));
  // A zero among the sizes does not excuse the others: strides are products of them.
  bool is_empty = false;
  for (const int64_t size : shape) {
    if (size == 0) is_empty = true;
    if (size != 0 && __builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return is_empty ? 0 : bytes;
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
    return std::forward_as_tuple(row(b.type), a.name) < std::forward_as_tuple(row(a.type), b.name);
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
                          json_text(file, tensor.name), safetensors_type_name(tensor.type),
                          fmt::join(tensor.shape, ","), tensor.begin, tensor.end);
  }
  return {with_length(header + "}", file), std::move(tensors)};
}

namespace {

constexpr const char* kMetadata = "__metadata__";

[[noreturn]] void fail(const std::string& file, const std::string& tensor,
                       const std::string& what) {
  fail(file, fmt::format("tensor '{}': {}", printable(tensor), what));
}

// What the entry of one tensor says, of a file with `data_bytes` bytes behind its header.
TensorLayout read_entry(const std::string& file, const std::string& name, const Json& entry,
                        int64_t data_bytes) {
  const auto refuse = [&](const std::string& what) { fail(file, name, what); };
  if (!entry.is_object()) {
    refuse(fmt::format("is {}: must be an object with dtype, shape and data_offsets",
                       printable_json(entry)));
  }
  static constexpr std::string_view kFields[] = {"dtype", "shape", "data_offsets"};
  for (const auto& [key, value] : entry.items()) {
    if (std::ranges::find(kFields, key) == std::end(kFields)) {
      refuse(fmt::format("key '{}' is unknown: keys are {}", printable(key),
                         fmt::join(kFields, ", ")));
    }
  }
  for (const std::string_view field : kFields) {
    if (!entry.contains(field)) refuse(fmt::format("{} is missing", field));
  }
  const auto integers = [&](const char* field) {
    const Json& values = entry[field];
    if (!values.is_array())
      refuse(fmt::format("{} = {}: must be an array of integers", field, printable_json(values)));
    for (const Json& value : values) {
      // The parser keeps -0 as a signed integer.
      if (!value.is_number_unsigned() || value.get<uint64_t>() > INT64_MAX) {
        refuse(fmt::format("{} holds {}: must hold integers from 0 to 2^63 - 1", field,
                           printable_json(value)));
      }
    }
    return values.get<std::vector<int64_t>>();
  };

  const Json& dtype = entry["dtype"];
  if (!dtype.is_string()) refuse(fmt::format("dtype = {}: must be a text", printable_json(dtype)));
  const auto* type = std::ranges::find(kTypes, dtype.get_ref<const std::string&>(), &TypeRow::name);
  if (type == std::end(kTypes)) {
    refuse(fmt::format("dtype = {}: must be F64, F32, F16, BF16 or I64; convert the file first",
                       printable_json(dtype)));
  }
  TensorLayout tensor = {.name = name, .type = type->type, .shape = integers("shape")};
  const auto offsets = integers("data_offsets");
  const std::string stated = fmt::format("data_offsets = {}", to_text(offsets));
  if (offsets.size() != 2) refuse(stated + ": must be two");
  tensor.begin = offsets[0];
  tensor.end = offsets[1];
  if (tensor.begin > tensor.end) refuse(stated + ": must not end before they begin");
  if (tensor.end > data_bytes) {
    refuse(
        fmt::format("{}: the file holds only {} bytes of data; it was cut short or its header "
                    "is damaged",
                    stated, data_bytes));
  }
  const auto bytes = tensor_bytes(tensor.type, tensor.shape);
  if (!bytes) refuse(fmt::format("shape = {}: its size overflows 64 bits", to_text(tensor.shape)));
  if (*bytes != tensor.bytes()) {
    refuse(fmt::format("{} hold {} bytes, but {} of shape {} takes {}", stated, tensor.bytes(),
                       type->name, to_text(tensor.shape), *bytes));
  }
  return tensor;
}

std::map<std::string, std::string> read_metadata(const std::string& file, const Json& entry) {
  if (!entry.is_object()) {
    fail(file, fmt::format("{} = {}: must be an object that maps texts to texts", kMetadata,
                           printable_json(entry)));
  }
  std::map<std::string, std::string> metadata;
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string()) {
      fail(file, fmt::format("{} '{}' = {}: must be a text", kMetadata, printable(key),
                             printable_json(value)));
    }
    metadata[key] = value;
  }
  return metadata;
}

// Sorts the tensors by their data and checks that they cover it exactly once.
void check_coverage(std::vector<TensorLayout>& tensors, int64_t data_bytes,
                    const std::string& file) {
  std::ranges::stable_sort(tensors, {},
                           [](const TensorLayout& t) { return std::tie(t.begin, t.end); });
  int64_t covered = 0;
  const std::string* last = nullptr;
  for (const auto& tensor : tensors) {
    if (tensor.begin < covered) {
      fail(file, tensor.name,
           fmt::format("begins at byte {} of the data, before the end {} of tensor '{}'",
                       tensor.begin, covered, printable(*last)));
    }
    if (tensor.begin > covered) {
      fail(file, tensor.name,
           fmt::format("begins at byte {} of the data, but bytes {} to {} belong to no tensor",
                       tensor.begin, covered, tensor.begin));
    }
    covered = tensor.end;
    last = &tensor.name;
  }
  if (covered != data_bytes) {
    fail(file,
         fmt::format("holds {} bytes of data, but its tensors end at {}", data_bytes, covered));
  }
}

}  // namespace

SafetensorsLayout parse_safetensors_header(std::string_view header, int64_t data_bytes,
                                           const std::string& file) {
  if (!header.starts_with('{')) fail(file, "header does not begin with '{'");
  const auto json =
      parse_strict_json<Json>(header, fmt::format("safetensors file {}: header", file),
                              {.depth = 3, .array = kMostDimensions});
  SafetensorsLayout layout;
  for (const auto& [name, entry] : json.items()) {
    if (name == kMetadata) {
      layout.metadata = read_metadata(file, entry);
    } else {
      layout.tensors.push_back(read_entry(file, name, entry, data_bytes));
    }
  }
  layout.data_offset = kSafetensorsLengthBytes + std::ssize(header);
  check_coverage(layout.tensors, data_bytes, file);
  return layout;
}

namespace {

SafetensorsLayout read_layout(const ReadableFile& file) {
  const std::string name = file.path().string();
  std::string first_bytes(static_cast<size_t>(std::min(file.bytes(), kSafetensorsLengthBytes)),
                          '\0');
  file.read(0, std::ssize(first_bytes), first_bytes.data());
  const int64_t length = parse_safetensors_header_length(first_bytes, file.bytes(), name);
  std::string header(static_cast<size_t>(length), '\0');
  file.read(kSafetensorsLengthBytes, length, header.data());
  return parse_safetensors_header(header, file.bytes() - kSafetensorsLengthBytes - length, name);
}

TensorLayout describe(const std::string& file, const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != c10::kStrided) {
    throw std::invalid_argument(fmt::format(
        "{}: tensor '{}' cannot be written: it is not a dense tensor", file, printable(name)));
  }
  const auto type = tensor.scalar_type();
  if (row(type) == std::end(kTypes)) {
    throw std::invalid_argument(fmt::format(
        "{}: tensor '{}' of type {} cannot be written: must be Double, Float, Half, BFloat16 or "
        "Long",
        file, printable(name), c10::toString(type)));
  }
  return {.name = name, .type = type, .shape = tensor.sizes().vec()};
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), layout_(read_layout(file_)) {
  for (size_t i = 0; i < layout_.tensors.size(); ++i) by_name_[layout_.tensors[i].name] = i;
}

const TensorLayout& SafetensorsFile::tensor(const std::string& name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) {
    throw std::invalid_argument(fmt::format("safetensors file {}: has no tensor '{}' among its {}",
                                            path().string(), printable(name),
                                            layout_.tensors.size()));
  }
  return layout_.tensors[found->second];
}

at::Tensor SafetensorsFile::read(const std::string& name) const {
  const TensorLayout& stored = tensor(name);
  const at::Tensor values = [&] {
    try {
      return at::empty(stored.shape, at::TensorOptions().dtype(stored.type));
    } catch (const c10::Error& error) {
      throw std::runtime_error(fmt::format("safetensors file {}: tensor '{}' of {} bytes: {}",
                                           path().string(), printable(name), stored.bytes(),
                                           error.what_without_backtrace()));
    }
  }();
  read_bytes(name, 0, stored.bytes(), values.mutable_data_ptr());
  return values;
}

void SafetensorsFile::read_bytes(const std::string& name, int64_t first, int64_t count,
                                 void* to) const {
  const TensorLayout& stored = tensor(name);
  if (first < 0 || count < 0 || first > stored.bytes() || count > stored.bytes() - first) {
    throw std::out_of_range(
        fmt::format("safetensors file {}: tensor '{}' has {} bytes, not {} "
                    "from byte {} on",
                    path().string(), printable(name), stored.bytes(), count, first));
  }
  try {
    file_.read(layout_.data_offset + stored.begin + first, count, to);
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(fmt::format("tensor '{}': {}", printable(name), error.what()));
  }
}

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors) {
  std::vector<TensorLayout> layouts;
  std::map<std::string, const at::Tensor*> by_name;
  for (const auto& [name, tensor] : tensors) {
    layouts.push_back(describe(path.string(), name, tensor));
    by_name[name] = &tensor;
  }
  const SafetensorsHead head = make_safetensors_head(std::move(layouts), path.string());
  ReplacementFile file(path);
  file.write(head.bytes.data(), std::ssize(head.bytes));
  for (const auto& layout : head.tensors) {
    // One at a time, so that tensors of a device need memory here for the largest only.
    const at::Tensor values = by_name.at(layout.name)->detach().cpu().resolve_neg().contiguous();
    file.write(values.const_data_ptr(), layout.bytes());
  }
  file.commit();
}

}  // namespace tinyllama
