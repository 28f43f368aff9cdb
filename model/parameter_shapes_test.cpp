#include <gtest/gtest.h>

#include "model/cost.hpp"
#include "model/testing.hpp"
#include "model/tiny_llama.hpp"
#include "model/weights.hpp"

namespace tinyllama {
namespace {

TEST(ParameterShapes, AreTheModelsInItsOrder) {
  const ModelConfig config = testing::small_config();
  TensorInitializer initializer(1, Dtype::f32, c10::kCPU);
  const NamedTensors parameters = TinyLlama(config, Variant(), 2, initializer).parameters();
  const auto shapes = parameter_shapes(config);
  ASSERT_EQ(shapes.size(), parameters.size());
  int64_t elements = 0;
  for (size_t i = 0; i < shapes.size(); ++i) {
    EXPECT_EQ(shapes[i].name, parameters[i].first);
    EXPECT_EQ(parameters[i].second.sizes(), c10::IntArrayRef(shapes[i].shape)) << shapes[i].name;
    elements += parameters[i].second.numel();
  }
  EXPECT_EQ(elements, count_parameters(config));
}

}  // namespace
}  // namespace tinyllama
