// Where the tensors of a safetensors file lie: its header, read and written. Bytes and numbers
// only, no tensor library.
//
// The format (https://github.com/huggingface/safetensors, "Format"): 8 bytes, the length N of the
// header as a little-endian integer; N bytes of JSON that begin with '{' and may end in spaces,
// {"__metadata__": {text: text}, name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}};
// then the data, which the tensors cover without overlap and without holes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tinyllama {

/// The types that this reader takes, in the order of safetensors' own enumeration: its writer puts
/// the last of them first.
enum class ElementType { f16, bf16, f32, f64, i64 };
/// As in a header: "F16", "BF16", "F32", "F64", "I64".
std::string_view to_string(ElementType type);
/// Nothing for a name that is none of these.
std::optional<ElementType> find_element_type(std::string_view name);
int64_t element_bytes(ElementType type);

/// Bytes of a tensor; nothing where they overflow 64 bits.
std::optional<int64_t> tensor_bytes(ElementType type, const std::vector<int64_t>& shape);

struct TensorLayout {
  std::string name;
  ElementType type = ElementType::f32;
  std::vector<int64_t> shape;
  int64_t begin = 0;  ///< of its bytes, counted from the start of the data
  int64_t end = 0;

  int64_t bytes() const { return end - begin; }
  auto operator<=>(const TensorLayout&) const = default;
};

struct SafetensorsLayout {
  std::vector<TensorLayout> tensors;  ///< in the order of their data
  std::map<std::string, std::string> metadata;
  int64_t data_offset = 0;  ///< where in the file the data begin
};

inline constexpr int64_t kSafetensorsLengthBytes = 8;
inline constexpr int64_t kLargestSafetensorsHeader = 100'000'000;
/// More dimensions than libtorch's own operators take.
inline constexpr int64_t kMostDimensions = 64;

/// Length of the header in bytes. `first_bytes`: the first 8 of the file, or all of a shorter one.
/// Throws std::invalid_argument that names the file, the length and the rule.
int64_t parse_safetensors_header_length(std::string_view first_bytes, int64_t file_bytes,
                                        const std::string& file);

/// Reads a header of a file with `data_bytes` bytes behind it. Throws std::invalid_argument that
/// names the file, the tensor, the value and the rule for everything that is not the format: JSON
/// of any other form, a key given twice, a type this reader does not take, sizes that overflow,
/// and tensors whose bytes lie outside the data, overlap, leave holes or do not fit their shape.
SafetensorsLayout parse_safetensors_header(std::string_view header, int64_t data_bytes,
                                           const std::string& file);

struct SafetensorsHead {
  std::string bytes;                  ///< the file up to the data: length and header
  std::vector<TensorLayout> tensors;  ///< in the order of their data, with begin and end
};

/// Lays out tensors, of which begin and end are ignored, byte for byte as the Python package does:
/// types in descending order, then names in ascending; metadata {"format": "pt"}; the header padded
/// with spaces to a multiple of 8. Throws std::invalid_argument that names the file and the tensor
/// for a name given twice, reserved or not UTF-8, sizes that overflow or too long a header.
SafetensorsHead make_safetensors_head(std::vector<TensorLayout> tensors, const std::string& file);

/// For messages: printable ASCII of a text from a file, other bytes as \xNN, cut where it is long.
std::string printable(std::string_view text, size_t longest = 200);

}  // namespace tinyllama
