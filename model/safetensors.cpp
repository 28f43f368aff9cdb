#include "model/safetensors.hpp"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace tinyllama {
namespace {

static_assert(std::endian::native == std::endian::little, "the format's numbers are little-endian");

constexpr std::pair<ElementType, c10::ScalarType> kScalarTypes[] = {
    {ElementType::f16, c10::ScalarType::Half},
    {ElementType::bf16, c10::ScalarType::BFloat16},
    {ElementType::f32, c10::ScalarType::Float},
    {ElementType::f64, c10::ScalarType::Double},
    {ElementType::i64, c10::ScalarType::Long}};

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
  const auto* found = std::ranges::find(kScalarTypes, type.value_or(tensor.scalar_type()),
                                        &std::pair<ElementType, c10::ScalarType>::second);
  if (found == std::end(kScalarTypes)) {
    throw std::invalid_argument(fmt::format(
        "{}: tensor '{}' of type {} cannot be written: must be Double, Float, Half, BFloat16 or "
        "Long",
        file, printable(name), c10::toString(type.value_or(tensor.scalar_type()))));
  }
  return {.name = name, .type = found->first, .shape = tensor.sizes().vec()};
}

}  // namespace

c10::ScalarType scalar_type(ElementType type) {
  return kScalarTypes[static_cast<size_t>(type)].second;
}

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
