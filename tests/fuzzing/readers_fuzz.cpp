// Every reader of the programs on whatever bytes: what it does not refuse by a documented exception
// with a message that names the file has to be usable. libFuzzer calls it with what it made up
// (tests/campaign/sanitizers.py), readers_test with the files of corpus/, whole and damaged.
#include "tests/fuzzing/readers_fuzz.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <streambuf>

#include "benchmarks/console/option_grammar.hpp"
#include "benchmarks/distributed/launch.hpp"
#include "benchmarks/harness/journal.hpp"
#include "benchmarks/harness/options.hpp"
#include "benchmarks/harness/recorded_operators.hpp"
#include "benchmarks/harness/replay_work.hpp"
#include "benchmarks/harness/serve.hpp"
#include "benchmarks/instruments/peaks.hpp"
#include "benchmarks/scaling/options.hpp"
#include "benchmarks/training/token_data.hpp"
#include "benchmarks/training/train_options.hpp"
#include "model/config.hpp"
#include "model/cost.hpp"
#include "model/published_models.hpp"
#include "model/safetensors.hpp"
#include "model/weights.hpp"

namespace tinyllama::fuzzing {
namespace {

constexpr size_t kLongestMessage = 20'000;
// Larger tensors would make the fuzzer slow and find nothing.
constexpr int64_t kMostBytesRead = 1 << 16;

std::vector<std::string> split(std::string_view bytes, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : bytes) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

/// A file in memory with a path, rewritten for each input.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(::memfd_create("input", MFD_CLOEXEC)) {
    if (descriptor_ < 0) throw std::runtime_error("memfd_create failed");
  }
  std::filesystem::path path() const { return fmt::format("/proc/self/fd/{}", descriptor_); }
  void write(std::string_view bytes) const {
    if (::ftruncate(descriptor_, 0) != 0 ||
        ::pwrite(descriptor_, bytes.data(), bytes.size(), 0) != std::ssize(bytes)) {
      throw std::runtime_error("a file in memory cannot be written");
    }
  }

 private:
  int descriptor_;
};

const std::filesystem::path& file_with(std::string_view bytes) {
  static const MemoryFile file;
  static const std::filesystem::path path = file.path();
  file.write(bytes);
  return path;
}

/// A folder with links to files in memory: one for each name.
class MemoryFolder {
 public:
  explicit MemoryFolder(const std::vector<std::string>& names) : files_(names.size()) {
    std::string pattern = std::filesystem::temp_directory_path() / "tiny_llama_fuzz_XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
    for (size_t i = 0; i < names.size(); ++i)
      std::filesystem::create_symlink(files_[i].path(), path_ / names[i]);
  }
  ~MemoryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  MemoryFolder(const MemoryFolder&) = delete;
  MemoryFolder& operator=(const MemoryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  void write(size_t file, std::string_view bytes) const { files_.at(file).write(bytes); }

 private:
  std::filesystem::path path_;
  std::vector<MemoryFile> files_;
};

// --help is printed, hundreds of times a second.
class Muted {
 public:
  Muted() : before_(std::cout.rdbuf(&nothing_)) {}
  ~Muted() { std::cout.rdbuf(before_); }
  Muted(const Muted&) = delete;
  Muted& operator=(const Muted&) = delete;

 private:
  struct Nothing : std::streambuf {
    int overflow(int c) override { return c; }
    std::streamsize xsputn(const char*, std::streamsize count) override { return count; }
  } nothing_;
  std::streambuf* before_;
};

template <typename Parse>
void parse_arguments(std::string_view bytes, Parse parse) {
  const Muted muted;
  const std::vector<std::string> arguments = split(bytes, '\n');
  std::vector<const char*> argv = {"program"};
  for (const auto& argument : arguments) argv.push_back(argument.c_str());
  parse(static_cast<int>(argv.size()), argv.data());
}

console::SizeFiles size_files() {
  return console::SizeFiles::in(TINY_LLAMA_SOURCE_DIR "/fixtures");
}

void read_bench_options(std::string_view bytes) {
  parse_arguments(bytes, [](int argc, const char* const* argv) {
    harness::parse_options(argc, argv, {"rms_norm", "attention", "peak"});
  });
}

void read_train_options(std::string_view bytes) {
  static const auto sizes = size_files();
  parse_arguments(bytes, [](int argc, const char* const* argv) {
    const auto options = training::parse_train_options(argc, argv, sizes);
    if (!options) return;
    options->operator_steps();
    options->flops_steps();
    options->memory_steps();
    options->workload();
  });
}

void read_scaling_options(std::string_view bytes) {
  static const auto sizes = size_files();
  parse_arguments(bytes, [](int argc, const char* const* argv) {
    const auto options = scaling::parse_scaling_options(argc, argv, 4, sizes);
    if (!options) return;
    options->workload();
    scaling::agreement_of(*options);
  });
}

// The first line says what the others are.
void read_grammar(std::string_view bytes) {
  const std::string_view kind = bytes.substr(0, bytes.find('\n'));
  const std::string text(bytes.substr(std::min(kind.size() + 1, bytes.size())));
  if (kind == "numbers") {
    for (const int64_t number : console::parse_numbers("--option", text)) {
      if (number < 1) throw std::logic_error("a number below 1");
    }
  } else if (kind == "names") {
    console::parse_names("--option", text);
  } else if (kind == "memory") {
    if (console::parse_memory_size("--option", text) < 1) throw std::logic_error("no byte");
  } else if (kind == "pattern") {
    const auto finds = console::parse_pattern("--option", text);
    finds("ffn/forward_backward/fused+foreach_adamw/small/amp_bf16/batch:16/seq:1024");
  } else if (kind == "node") {
    distributed::first_slurm_node(text);
  } else {
    const std::vector<std::string> lines = split(text, '\n');
    distributed::read_launch_environment([&](const char* name) -> std::optional<std::string> {
      for (const std::string& line : lines) {
        const size_t equals = line.find('=');
        if (line.substr(0, equals) == name && equals != std::string::npos)
          return line.substr(equals + 1);
      }
      return std::nullopt;
    });
  }
}

void read_sizes(std::string_view bytes) {
  for (const auto& size : load_problem_sizes(file_with(bytes)))
    check_batch_and_seq(size.batch, size.seq);
}

void read_models(std::string_view bytes) {
  const PublishedModels models(file_with(bytes));
  for (const std::string& name : models.names()) {
    if (!models.contains(name)) throw std::logic_error("a name that is none");
    const PublishedModel model = models.read(name);
    check_batch_and_seq(model.size.batch, model.size.seq);
  }
}

void read_peaks(std::string_view bytes) {
  instruments::DeviceDescription device;
  device.name = "AMD Instinct MI250X / MI250";
  device.multiprocessors = 110;
  const auto peaks = instruments::find_datasheet_peaks(file_with(bytes), device);
  if (peaks && !(peaks->memory_bandwidth > 0)) throw std::logic_error("no bandwidth");
}

void read_config(std::string_view bytes) {
  const ModelConfig config = read_checkpoint_config(file_with(bytes));
  if (config != ModelConfig(config.dimensions())) throw std::logic_error("other dimensions");
  // What was read can be written, by its features and with its own keys, and is read the same.
  for (const std::string& original : {std::string(), std::string(bytes)}) {
    std::string fault = "another model is read from what was written";
    try {
      const auto text = checkpoint_config_text(config, c10::ScalarType::Float, original);
      if (parse_checkpoint_config("written", text) == config) continue;
    } catch (const std::invalid_argument& error) {
      fault = error.what();
    }
    throw std::logic_error(fault);
  }
}

// Every rule of the format, and the agreement with an ordinary parser of JSON.
void check_rules(const SafetensorsLayout& layout, std::string_view header,
                 int64_t available_bytes) {
  const auto expect = [](bool holds, const char* rule) {
    if (!holds) throw std::logic_error(rule);
  };
  // An ordinary parser takes it for the end.
  expect(header.find('\0') == std::string_view::npos, "a zero byte");
  const auto json = nlohmann::json::parse(header);
  const bool has_metadata = json.contains("__metadata__");
  expect(json.size() == layout.tensors.size() + (has_metadata ? 1 : 0), "tensors lost");
  if (has_metadata) expect(json["__metadata__"] == nlohmann::json(layout.metadata), "metadata");
  int64_t covered = 0;
  for (const auto& tensor : layout.tensors) {
    const auto& entry = json.at(tensor.name);
    const std::string_view type = safetensors_type_name(tensor.type);
    expect(entry.size() == 3 && entry["dtype"] == type, "dtype");
    expect(entry["shape"] == nlohmann::json(tensor.shape), "shape");
    expect(entry["data_offsets"] == nlohmann::json({tensor.begin, tensor.end}), "offsets");
    __extension__ unsigned __int128 bytes = type.ends_with("16") ? 2 : type == "F32" ? 4 : 8;
    for (const int64_t size : tensor.shape) {
      expect(size >= 0, "a negative size");
      bytes *= static_cast<uint64_t>(size);
      expect(bytes <= INT64_MAX, "an overflow");
    }
    expect(tensor.begin == covered && tensor.end >= tensor.begin, "a hole or an overlap");
    expect(bytes == static_cast<uint64_t>(tensor.end - tensor.begin), "size of the data");
    covered = tensor.end;
  }
  expect(covered == available_bytes, "data that belong to no tensor");
}

void read_safetensors(std::string_view bytes) {
  const SafetensorsFile file(file_with(bytes));
  const auto header = bytes.substr(
      kSafetensorsLengthBytes,
      static_cast<size_t>(parse_safetensors_header_length(bytes, std::ssize(bytes), "file")));
  const std::string_view data = bytes.substr(kSafetensorsLengthBytes + header.size());
  check_rules(parse_safetensors_header(header, std::ssize(data), "file"), header, std::ssize(data));
  for (const auto& tensor : file.tensors()) {
    if (tensor.bytes() > kMostBytesRead) continue;
    const at::Tensor values = file.read(tensor.name);
    const std::string_view stored = data.substr(static_cast<size_t>(tensor.begin), values.nbytes());
    const auto* read = static_cast<const char*>(values.const_data_ptr());
    if (values.sizes() != c10::ArrayRef<int64_t>(tensor.shape) ||
        std::ssize(stored) != tensor.bytes() || !std::equal(stored.begin(), stored.end(), read)) {
      throw std::logic_error("other values than the file's");
    }
  }
}

// config.json, the index and a file of it, with a byte 0x1e between them; no index where it is
// empty.
void read_weights(std::string_view bytes) {
  static const MemoryFolder whole({"config.json", "model.safetensors"});
  static const MemoryFolder shards(
      {"config.json", "model.safetensors.index.json", "a.safetensors"});
  auto parts = split(bytes, '\x1e');
  // a tensor may hold such a byte
  const size_t tensors =
      std::min(bytes.size(), parts[0].size() + (parts.size() > 1 ? parts[1].size() : 0) + 2);
  const std::string index = parts.size() > 1 ? parts[1] : "";
  const MemoryFolder& folder = index.empty() ? whole : shards;
  folder.write(0, parts[0]);
  if (!index.empty()) folder.write(1, index);
  folder.write(index.empty() ? 1 : 2, bytes.substr(tensors));
  const Weights weights(folder.path());
  if (count_parameters(weights.config()) * 2 > kMostBytesRead) return;
  weights.fingerprint();
  NamedTensors parameters;
  for (const auto& [name, values] : weights.read_all())
    parameters.emplace_back(name, at::empty(values.sizes(), c10::ScalarType::Double));
  weights.copy_to(parameters, c10::ScalarType::BFloat16);
  for (const auto& [name, values] : parameters) {
    if (!at::isfinite(values).all().item<bool>()) throw std::logic_error(name + " is not finite");
  }
}

void read_tokens(std::string_view bytes) {
  static const ModelConfig config(ModelDimensions{.vocab_size = 256});
  if (bytes.empty()) return;
  const auto seq = static_cast<int64_t>(static_cast<unsigned char>(bytes.front()));
  const auto data = training::text_file_data(file_with(bytes.substr(1)), config,
                                             {.batch = 2, .seq = seq, .seed = 1});
  for (const auto& batch : {data->train_batch(3, 0), data->evaluation_batch(1)}) {
    if (batch.tokens.sizes() != c10::IntArrayRef({2, seq})) throw std::logic_error("other sizes");
  }
}

void read_journal(std::string_view bytes) {
  const auto& file = file_with(bytes);
  const harness::JournalContents contents = harness::Journal::read(file);
  const harness::Json now = {{"seed", 42}, {"device", {{"name", "a device"}}}, {"threads", 2}};
  harness::check_same_circumstances(file, contents.header, now, {"seed", "device", "threads"});
  static const auto device = instruments::Device::select("cpu");
  instruments::MeasuredPeaks peaks(device);
  try {
    if (contents.header.contains("peaks")) peaks.restore(contents.header.at("peaks"));
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(file.string() + error.what());  // as the suite does
  }
  const std::string text = harness::ResultDocument{contents.header, contents.results}.text();
  if (!nlohmann::json::accept(text)) throw std::logic_error("the result is no JSON");
}

void read_trace(std::string_view bytes) {
  const auto& file = file_with(bytes);
  const harness::RecordedTrace trace = harness::read_recorded_trace(file);
  try {
    for (const harness::ReplayCase& replay : harness::plan_replay(trace).cases)
      if (replay.count < 1 || replay.flops < 0 || replay.bytes < 0)
        throw std::logic_error("a figure below 0");
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(file.string() + error.what());  // as run_replay() does
  }
}

void read_request(std::string_view bytes) {
  harness::parse_serve_request(std::string(bytes), 10);
}

struct Reader {
  std::function<void(std::string_view)> read;
  bool has_file;
};

const std::map<std::string, Reader>& readers() {
  static const std::map<std::string, Reader> all = {
      {"bench_options", {read_bench_options, false}},
      {"train_options", {read_train_options, false}},
      {"scaling_options", {read_scaling_options, false}},
      {"grammar", {read_grammar, false}},
      {"request", {read_request, false}},
      {"sizes", {read_sizes, true}},
      {"models", {read_models, true}},
      {"peaks", {read_peaks, true}},
      {"config", {read_config, true}},
      {"safetensors", {read_safetensors, true}},
      {"weights", {read_weights, true}},
      {"tokens", {read_tokens, false}},
      {"journal", {read_journal, true}},
      {"trace", {read_trace, true}}};
  return all;
}

std::string fault_of_message(std::string_view message, bool has_file) {
  if (message.empty()) return "an exception without a message";
  if (message.size() > kLongestMessage) return "an endless message";
  if (!has_file) return "";
  const bool has_control =
      std::ranges::any_of(message, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  if (has_control) return "a message with control characters";
  const bool names_file = message.find("/proc/self/fd/") != std::string_view::npos ||
                          message.find("tiny_llama_fuzz_") != std::string_view::npos;
  return names_file ? "" : "a message that names no file";
}

}  // namespace

std::vector<std::string> reader_names() {
  std::vector<std::string> names;
  for (const auto& [name, reader] : readers()) names.push_back(name);
  return names;
}

Reading read_with(const std::string& reader, std::string_view bytes) {
  const auto& [read, has_file] = readers().at(reader);
  try {
    read(bytes);
    return {};
  } catch (const std::invalid_argument& error) {
    const std::string fault = fault_of_message(error.what(), has_file);
    return {true, fault.empty() ? "" : fmt::format("{}: {}", fault, error.what())};
  } catch (const std::exception& error) {
    return {true, fmt::format("another exception: {}", error.what())};
  }
}

}  // namespace tinyllama::fuzzing

// What libFuzzer calls; the reader is named by TINY_LLAMA_READER.
extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  static const std::string reader = [] {
    const char* name = std::getenv("TINY_LLAMA_READER");
    return std::string(name == nullptr ? "" : name);
  }();
  const std::string fault =
      tinyllama::fuzzing::read_with(reader, {reinterpret_cast<const char*>(data), size}).fault;
  if (!fault.empty()) {
    std::fprintf(stderr, "%s: %s\n", reader.c_str(), fault.c_str());
    std::abort();
  }
  return 0;
}
