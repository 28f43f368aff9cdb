#include "benchmarks/harness/result_document.hpp"

namespace tinyllama::harness {

std::string ResultDocument::text() const {
  Json root;
  root["context"] = context;
  root["benchmarks"] = Json::array();
  for (const auto& result : results) {
    for (const auto& entry : result.entries) root["benchmarks"].push_back(entry);
  }
  return root.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tinyllama::harness
