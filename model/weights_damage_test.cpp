// Files that were damaged on their way: each kind is refused, and the message names file and
// tensor.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/file_testing.hpp"
#include "model/proof_record.hpp"
#include "model/weights.hpp"

namespace tinyllama {
namespace {

// Every kind of damage that the proof claims to be refused, with the tensor that has to be named.
TEST(WeightsDamage, EveryKindOfDamageIsRefusedByFileAndTensor) {
  testing::ProofRecord proof({"Weights in and out",
                              "damaged weights not refused by file and tensor",
                              "ten kinds of damage made by hand", 0});
  const testing::TemporaryFolder folder;
  const std::string k_proj = "model.layers.0.self_attn.k_proj.weight";
  const auto refuses = [&](const std::string& damage, const std::string& file,
                           const std::string& tensor, const std::string& reason) {
    testing::write_bytes(folder.path() / "model.safetensors", file);
    const std::string message = testing::error_of([&] { Weights{folder.path()}; });
    const bool named =
        message.find((folder.path() / "model.safetensors").string()) != std::string::npos &&
        message.find(tensor) != std::string::npos && message.find(reason) != std::string::npos;
    proof.expect(named ? 0 : 1, damage + ": " + message);
  };
  const ModelConfig config({.vocab_size = 11,
                            .hidden_dim = 12,
                            .n_layers = 1,
                            .n_heads = 6,
                            .n_kv_heads = 3,
                            .intermediate_dim = 7});
  NamedTensors tensors;
  for (const auto& [name, shape] : parameter_shapes(config))
    tensors.emplace_back(name, at::zeros(shape));
  save_weights(folder.path(), config, tensors);
  const std::string good = testing::read_bytes(folder.path() / "model.safetensors");
  const auto header_bytes = static_cast<size_t>(*reinterpret_cast<const int64_t*>(good.data()));
  const std::string data = good.substr(8 + header_bytes);
  const auto header = nlohmann::ordered_json::parse(good.substr(8, header_bytes));
  const auto with_header = [&](const std::string& text) {
    const auto length = static_cast<int64_t>(text.size());
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data;
  };
  const auto edited = [&](auto edit) {
    auto copy = header;
    edit(copy);
    return with_header(copy.dump());
  };
  const int64_t begin = header.at(k_proj).at("data_offsets").at(0).get<int64_t>();
  const int64_t end = header.at(k_proj).at("data_offsets").at(1).get<int64_t>();
  const auto offsets = [&](int64_t first, int64_t last) {
    return edited([&](auto& h) { h[k_proj]["data_offsets"] = std::vector<int64_t>{first, last}; });
  };

  refuses("truncated", good.substr(0, good.size() - 4), "tensor '", "the file holds only");
  refuses("header longer than the file", with_header(header.dump()).substr(0, 100), "",
          "longer than the file");
  refuses("overlapping offsets", offsets(begin - 4, end - 4), k_proj, "before the end");
  refuses("a hole", offsets(begin + 4, end + 4), k_proj, "belong to no");
  refuses("offsets out of range", offsets(begin, begin + (int64_t{1} << 40)), k_proj,
          "the file holds only");
  refuses("an unknown dtype", edited([&](auto& h) { h[k_proj]["dtype"] = "F8_E4M3"; }), k_proj,
          "must be F64, F32, F16, BF16 or I64");
  refuses("a wrong shape", edited([&](auto& h) {
            h[k_proj]["shape"] = std::vector<int64_t>{12, 6};
          }),
          k_proj, "has shape [12, 6]");
  refuses("a missing tensor", edited([&](auto& h) {
            h["other"] = h[k_proj];
            h.erase(k_proj);
          }),
          k_proj, "is missing");
  refuses("an extra tensor", edited([&](auto& h) {
            h["other"] = h[k_proj];
            h["other"]["shape"] = std::vector<int64_t>{0};
            h["other"]["data_offsets"] = std::vector<size_t>(2, data.size());
          }),
          "tensor 'other'", "is not part of the model");
  const std::string text = header.dump();
  const std::string entry = "\"" + k_proj + "\":" + header.at(k_proj).dump();
  refuses("a key twice", with_header(text.substr(0, text.size() - 1) + "," + entry + "}"), k_proj,
          "occurs twice");
}

}  // namespace
}  // namespace tinyllama
