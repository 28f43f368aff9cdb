// The parser of a safetensors header.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <tuple>

#include "model/safetensors_layout.hpp"

namespace tinyllama {
namespace {

constexpr const char* kMetadata = "__metadata__";

[[noreturn]] void fail(const std::string& file, const std::string& what) {
  throw std::invalid_argument(fmt::format("safetensors file {}: {}", file, what));
}

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

}  // namespace tinyllama
