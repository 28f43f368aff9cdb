// Helpers of the tests of checkpoints: tensors, and a folder of them.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "model/weights.hpp"
#include "tests/fuzzing/file_testing.hpp"

namespace tinyllama::testing {

/// Every value of every parameter is another one.
inline NamedTensors counted_parameters(const ModelConfig& config,
                                       c10::ScalarType type = c10::ScalarType::Float) {
  NamedTensors all;
  double first = 1;
  for (const auto& [name, shape] : parameter_shapes(config)) {
    const int64_t count = c10::multiply_integers(shape);
    const at::Tensor tensor =
        at::arange(count, c10::ScalarType::Double).add(first).div(64).view(shape).to(type);
    first += static_cast<double>(count);
    all.emplace_back(name, tensor);
  }
  return all;
}

inline const at::Tensor& named(const NamedTensors& tensors, const std::string& name) {
  for (const auto& [each, tensor] : tensors)
    if (each == name) return tensor;
  throw std::out_of_range(name);
}

/// A folder for a checkpoint.
class CheckpointTest : public ::testing::Test {
 protected:
  void put_config(const ModelConfig& config) const {
    write_bytes(folder_ / "config.json", checkpoint_config_text(config, c10::ScalarType::Float));
  }
  void put(const ModelConfig& config, const NamedTensors& tensors) const {
    put_config(config);
    write_safetensors(folder_ / "model.safetensors", tensors);
  }
  // Zeros that take no room on the disk, but for these values. Returns the head of the file.
  SafetensorsHead put_sparse(
      const ModelConfig& config,
      const std::vector<std::tuple<std::string, int64_t, float>>& values = {}) const {
    put_config(config);
    std::vector<TensorLayout> layouts;
    for (const auto& [name, shape] : parameter_shapes(config))
      layouts.push_back({name, c10::ScalarType::Float, shape});
    SafetensorsHead head = make_safetensors_head(std::move(layouts), "a test's");
    write_bytes(file_, head.bytes);
    const auto data = static_cast<int64_t>(head.bytes.size());
    std::filesystem::resize_file(file_, data + head.tensors.back().end);
    std::fstream out(file_, std::ios::in | std::ios::out | std::ios::binary);
    for (const auto& [name, index, value] : values) {
      const auto tensor = std::ranges::find(head.tensors, name, &TensorLayout::name);
      out.seekp(data + tensor->begin + index * static_cast<int64_t>(sizeof value));
      out.write(reinterpret_cast<const char*>(&value), sizeof value);
    }
    return head;
  }
  void expect_refused(std::initializer_list<std::string> parts) const {
    expect_error([&] { Weights{folder_}; }, {folder_.string()});
    expect_error([&] { Weights{folder_}; }, parts);
  }

  TemporaryFolder temporary_;
  std::filesystem::path folder_ = temporary_.path();
  std::filesystem::path file_ = folder_ / "model.safetensors";
};

}  // namespace tinyllama::testing
