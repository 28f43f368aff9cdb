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

namespace tinyllama {
namespace {

static_assert(std::endian::native == std::endian::little, "the format's numbers are little-endian");

struct TypeRow {
  ElementType type;
  std::string_view name;
  int64_t bytes;
  c10::ScalarType scalar;
};
constexpr TypeRow kTypes[] = {{ElementType::f16, "F16", 2, c10::ScalarType::Half},
                              {ElementType::bf16, "BF16", 2, c10::ScalarType::BFloat16},
                              {ElementType::f32, "F32", 4, c10::ScalarType::Float},
                              {ElementType::f64, "F64", 8, c10::ScalarType::Double},
                              {ElementType::i64, "I64", 8, c10::ScalarType::Long}};

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

c10::ScalarType scalar_type(ElementType type) {
  return row(type).scalar;
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

namespace {

constexpr const char* kMetadata = "__metadata__";

[[noreturn]] void fail(const std::string& file, const std::string& tensor,
                       const std::string& what) {
  fail(file, fmt::format("tensor '{}': {}", printable(tensor), what));
}

std::string to_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// Builds the layout while the parser reads, so that nothing is nested deeper or grows longer than
// the format has it, and so that keys given twice are seen: a parsed object would keep the last.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(int64_t data_bytes, const std::string& file)
      : data_bytes_(data_bytes), file_(file) {}

  SafetensorsLayout take() { return std::move(layout_); }

  bool null() override { refuse("null"); }
  bool boolean(bool value) override { refuse(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override {
    refuse(value == 0 ? "-0" : std::to_string(value));
  }
  bool number_unsigned(number_unsigned_t value) override;
  bool number_float(number_float_t, const string_t& digits) override { refuse(printable(digits)); }
  bool string(string_t& value) override;
  bool binary(binary_t&) override { refuse("binary data"); }
  bool start_object(size_t) override;
  bool key(string_t& key) override;
  bool end_object() override;
  bool start_array(size_t) override;
  bool end_array() override;
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    fail(file_,
         fmt::format("header is not valid JSON at byte {}: {}", position, printable(error.what())));
  }

 private:
  enum class Place { start, root, metadata, tensor, shape, offsets, end };

  [[noreturn]] void refuse(const std::string& value) const;
  void refuse_repeated(bool is_new, const std::string& where, const std::string& key) const;
  void finish_tensor();

  int64_t data_bytes_;
  const std::string& file_;
  SafetensorsLayout layout_;
  Place place_ = Place::start;
  std::set<std::string> names_;
  std::set<std::string> fields_;  // of the tensor being read
  std::string metadata_key_;
  std::string field_;
  TensorLayout tensor_;
  std::vector<int64_t> offsets_;
};

// A value stands where the format has none like it.
void HeaderReader::refuse(const std::string& value) const {
  switch (place_) {
    case Place::metadata:
      fail(file_,
           fmt::format("{} '{}' = {}: must be a text", kMetadata, printable(metadata_key_), value));
    case Place::root:
      if (tensor_.name == kMetadata) {
        fail(file_,
             fmt::format("{} = {}: must be an object that maps texts to texts", kMetadata, value));
      }
      fail(file_, tensor_.name,
           fmt::format("is {}: must be an object with dtype, shape and data_offsets", value));
    case Place::tensor:
      fail(file_, tensor_.name,
           fmt::format("{} = {}: must be {}", field_, value,
                       field_ == "dtype"   ? "a text"
                       : field_ == "shape" ? "an array of integers"
                                           : "an array of two integers"));
    case Place::shape:
    case Place::offsets:
      fail(file_, tensor_.name,
           fmt::format("{} holds {}: must hold integers from 0 to 2^63 - 1", field_, value));
    default:
      fail(file_, fmt::format("header is {}: must be a JSON object", value));
  }
}

void HeaderReader::refuse_repeated(bool is_new, const std::string& where,
                                   const std::string& key) const {
  if (!is_new) fail(file_, fmt::format("{}: key '{}' occurs twice", where, printable(key)));
}

bool HeaderReader::number_unsigned(number_unsigned_t value) {
  if ((place_ != Place::shape && place_ != Place::offsets) || value > INT64_MAX)
    refuse(std::to_string(value));
  auto& values = place_ == Place::shape ? tensor_.shape : offsets_;
  const int64_t most = place_ == Place::shape ? kMostDimensions : 2;
  if (std::ssize(values) == most)
    fail(file_, tensor_.name, fmt::format("{} holds more than {} numbers", field_, most));
  values.push_back(static_cast<int64_t>(value));
  return true;
}

bool HeaderReader::string(string_t& value) {
  if (place_ == Place::metadata) {
    layout_.metadata[metadata_key_] = value;
    return true;
  }
  if (place_ != Place::tensor || field_ != "dtype") refuse(fmt::format("\"{}\"", printable(value)));
  const auto type = find_element_type(value);
  if (!type) {
    fail(file_, tensor_.name,
         fmt::format("dtype = \"{}\": must be F64, F32, F16, BF16 or I64; convert the file first",
                     printable(value)));
  }
  tensor_.type = *type;
  return true;
}

bool HeaderReader::start_object(size_t) {
  if (place_ == Place::start) {
    place_ = Place::root;
  } else if (place_ == Place::root) {
    place_ = tensor_.name == kMetadata ? Place::metadata : Place::tensor;
  } else {
    refuse("an object");
  }
  return true;
}

bool HeaderReader::key(string_t& key) {
  if (place_ == Place::root) {
    refuse_repeated(names_.insert(key).second, "header", key);
    tensor_ = {.name = key, .shape = {}};
    offsets_.clear();
    fields_.clear();
  } else if (place_ == Place::metadata) {
    refuse_repeated(!layout_.metadata.contains(key), kMetadata, key);
    metadata_key_ = key;
  } else {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      fail(file_, tensor_.name,
           fmt::format("key '{}' is unknown: keys are dtype, shape, data_offsets", printable(key)));
    }
    refuse_repeated(fields_.insert(key).second, fmt::format("tensor '{}'", printable(tensor_.name)),
                    key);
    field_ = key;
  }
  return true;
}

bool HeaderReader::end_object() {
  if (place_ == Place::tensor) finish_tensor();
  place_ = place_ == Place::root ? Place::end : Place::root;
  return true;
}

bool HeaderReader::start_array(size_t) {
  if (place_ != Place::tensor || field_ == "dtype") refuse("an array");
  place_ = field_ == "shape" ? Place::shape : Place::offsets;
  return true;
}

bool HeaderReader::end_array() {
  place_ = Place::tensor;
  return true;
}

void HeaderReader::finish_tensor() {
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    if (!fields_.contains(field)) fail(file_, tensor_.name, fmt::format("{} is missing", field));
  }
  if (offsets_.size() != 2)
    fail(file_, tensor_.name, fmt::format("data_offsets = {}: must be two", to_text(offsets_)));
  tensor_.begin = offsets_[0];
  tensor_.end = offsets_[1];
  if (tensor_.begin > tensor_.end) {
    fail(file_, tensor_.name,
         fmt::format("data_offsets = {}: must not end before they begin", to_text(offsets_)));
  }
  if (tensor_.end > data_bytes_) {
    fail(file_, tensor_.name,
         fmt::format("data_offsets = {}: the file holds only {} bytes of data; it was cut short or "
                     "its header is damaged",
                     to_text(offsets_), data_bytes_));
  }
  const auto bytes = tensor_bytes(tensor_.type, tensor_.shape);
  if (!bytes) {
    fail(file_, tensor_.name,
         fmt::format("shape = {}: its size overflows 64 bits", to_text(tensor_.shape)));
  }
  if (*bytes != tensor_.bytes()) {
    fail(file_, tensor_.name,
         fmt::format("data_offsets = {} hold {} bytes, but {} of shape {} takes {}",
                     to_text(offsets_), tensor_.bytes(), to_string(tensor_.type),
                     to_text(tensor_.shape), *bytes));
  }
  layout_.tensors.push_back(std::move(tensor_));
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
  // The parser would take a zero byte for the end of its input.
  if (const size_t zero = header.find('\0'); zero != std::string_view::npos)
    fail(file, fmt::format("header is not valid JSON at byte {}: zero byte", zero));
  HeaderReader reader(data_bytes, file);
  nlohmann::json::sax_parse(header.begin(), header.end(), &reader);
  SafetensorsLayout layout = reader.take();
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

TensorLayout describe(const std::string& file, const std::string& name, const at::Tensor& tensor,
                      std::optional<c10::ScalarType> type) {
  if (!tensor.defined() || tensor.layout() != c10::kStrided) {
    throw std::invalid_argument(fmt::format(
        "{}: tensor '{}' cannot be written: it is not a dense tensor", file, printable(name)));
  }
  const auto* found =
      std::ranges::find(kTypes, type.value_or(tensor.scalar_type()), &TypeRow::scalar);
  if (found == std::end(kTypes)) {
    throw std::invalid_argument(fmt::format(
        "{}: tensor '{}' of type {} cannot be written: must be Double, Float, Half, BFloat16 or "
        "Long",
        file, printable(name), c10::toString(type.value_or(tensor.scalar_type()))));
  }
  return {.name = name, .type = found->type, .shape = tensor.sizes().vec()};
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), layout_(read_layout(file_)) {
  for (size_t i = 0; i < layout_.tensors.size(); ++i) by_name_[layout_.tensors[i].name] = i;
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> all;
  for (const auto& tensor : layout_.tensors) all.push_back(tensor.name);
  return all;
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
  try {
    const at::Tensor values =
        at::empty(stored.shape, at::TensorOptions().dtype(scalar_type(stored.type)));
    file_.read(layout_.data_offset + stored.begin, stored.bytes(), values.mutable_data_ptr());
    return values;
  } catch (const c10::Error& error) {
    throw std::runtime_error(fmt::format("safetensors file {}: tensor '{}' of {} bytes: {}",
                                         path().string(), printable(name), stored.bytes(),
                                         error.what_without_backtrace()));
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(fmt::format("tensor '{}': {}", printable(name), error.what()));
  }
}

NamedTensors SafetensorsFile::read_all() const {
  NamedTensors all;
  for (const auto& tensor : layout_.tensors) all.emplace_back(tensor.name, read(tensor.name));
  return all;
}

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       std::optional<c10::ScalarType> type) {
  std::vector<TensorLayout> layouts;
  std::map<std::string, const at::Tensor*> by_name;
  for (const auto& [name, tensor] : tensors) {
    layouts.push_back(describe(path.string(), name, tensor, type));
    by_name[name] = &tensor;
  }
  const SafetensorsHead head = make_safetensors_head(std::move(layouts), path.string());
  ReplacementFile file(path);
  file.write(head.bytes.data(), std::ssize(head.bytes));
  for (const auto& layout : head.tensors) {
    // One at a time, so that tensors of a device need memory here for the largest only.
    const at::Tensor values = by_name.at(layout.name)
                                  ->detach()
                                  .to(c10::kCPU, scalar_type(layout.type))
                                  .resolve_neg()
                                  .contiguous();
    file.write(values.const_data_ptr(), layout.bytes());
  }
  file.commit();
}

}  // namespace tinyllama
