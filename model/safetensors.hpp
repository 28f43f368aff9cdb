// Tensors in and out of safetensors files, the format in which the transformers package keeps
// weights.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/file_io.hpp"
#include "model/parameters.hpp"
#include "model/safetensors_layout.hpp"

namespace tinyllama {

c10::ScalarType scalar_type(ElementType type);

/// A file whose header has been read and checked against its size. Tensors are read when asked for.
class SafetensorsFile {
 public:
  /// Throws std::invalid_argument that names the file, the tensor, the value and the rule for a
  /// file that cannot be read or is not a safetensors file of types F64, F32, F16, BF16 and I64.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  /// Name, type and shape of every tensor, in the order of their data.
  const std::vector<TensorLayout>& tensors() const { return layout_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return layout_.metadata; }
  std::vector<std::string> names() const;
  bool contains(const std::string& name) const { return by_name_.contains(name); }
  /// Throws std::invalid_argument naming file and tensor where there is none of this name.
  const TensorLayout& tensor(const std::string& name) const;

  /// A tensor on the CPU in the stored type, bit for bit. Throws as tensor() does, and
  /// std::runtime_error naming file and tensor where it cannot be read or there is no memory for
  /// it.
  at::Tensor read(const std::string& name) const;
  /// Every tensor, in the order of their data.
  NamedTensors read_all() const;

 private:
  ReadableFile file_;
  SafetensorsLayout layout_;
  std::map<std::string, size_t> by_name_;
};

/// Writes tensors of any device, byte for byte as safetensors.torch.save_file with metadata
/// {"format": "pt"} does. `type`: what every tensor is converted to; its own where none is given.
/// The file appears when it is complete. Throws std::invalid_argument naming file and tensor for a
/// type that is not one of the five, a name given twice or an undefined tensor, and
/// std::runtime_error naming file and cause where it cannot be written.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       std::optional<c10::ScalarType> type = std::nullopt);

}  // namespace tinyllama
