#include "model/variant.hpp"

#include <fmt/format.h>

#include <stdexcept>

namespace tinyllama {

Variant Variant::parse(std::string_view text) {
  if (text == "baseline") return {};
  throw std::invalid_argument(fmt::format("variant '{}': must be baseline", text));
}

std::vector<Variant> Variant::all() {
  return {Variant()};
}

std::string Variant::name() const {
  return "baseline";
}

}  // namespace tinyllama
