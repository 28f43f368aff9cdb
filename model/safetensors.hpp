// Tensors in and out of safetensors files, the format in which the transformers package keeps
// weights.
//
// The format (https://github.com/huggingface/safetensors, "Format"): 8 bytes, the length N of the
// header as a little-endian integer; N bytes of JSON that begin with '{' and may end in spaces,
// {"__metadata__": {text: text}, name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}};
// then the data, which the tensors cover without overlap and without holes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/file_io.hpp"
#include "model/parameters.hpp"

namespace tinyllama {

/// As in a header: "F16", "BF16", "F32", "F64", "I64"; empty for a type that this reader does not
/// take.
std::string_view safetensors_type_name(c10::ScalarType type);

/// For messages: [2, 3].
std::string to_text(c10::ArrayRef<int64_t> shape);

/// Bytes of a tensor; nothing where they overflow 64 bits.
std::optional<int64_t> tensor_bytes(c10::ScalarType type, const std::vector<int64_t>& shape);

struct TensorLayout {
  std::string name;
  c10::ScalarType type = c10::ScalarType::Float;
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
inline constexpr size_t kMostDimensions = 64;

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

/// A file whose header has been read and checked against its size. Tensors, or parts of them, are
/// read when asked for. They are not mapped into memory: a mapped file that becomes shorter, or
/// whose disk fails, kills the program by a signal, where reading has an error that names it;
/// reading 470 MB into memory that is there takes no longer than to touch the pages of a mapping.
class SafetensorsFile {
 public:
  /// Throws std::invalid_argument that names the file, the tensor, the value and the rule for a
  /// file that cannot be read or is not a safetensors file of types F64, F32, F16, BF16 and I64.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  /// Name, type and shape of every tensor, in the order of their data.
  const std::vector<TensorLayout>& tensors() const { return layout_.tensors; }
  bool contains(const std::string& name) const { return by_name_.contains(name); }
  /// Throws std::invalid_argument naming file and tensor where there is none of this name.
  const TensorLayout& tensor(const std::string& name) const;

  /// A tensor on the CPU in the stored type, bit for bit. Throws as tensor() does, and
  /// std::runtime_error naming file and tensor where it cannot be read or there is no memory for
  /// it.
  at::Tensor read(const std::string& name) const;
  /// So many of a tensor's bytes, counted from its first, into `to`. Throws as read() does;
  /// std::out_of_range where the tensor has no such bytes.
  void read_bytes(const std::string& name, int64_t first, int64_t count, void* to) const;

 private:
  ReadableFile file_;
  SafetensorsLayout layout_;
  std::map<std::string, size_t> by_name_;
};

/// Writes tensors of any device, byte for byte as safetensors.torch.save_file with metadata
/// {"format": "pt"} does. The file appears when it is complete. Throws std::invalid_argument naming
/// file and tensor for a type that is not one of the five, a name given twice or an undefined
/// tensor, and std::runtime_error naming file and cause where it cannot be written.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors);

}  // namespace tinyllama
