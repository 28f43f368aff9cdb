// The circumstances of a run that its results carry: commit, library versions, clock settings.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "benchmarks/instruments/device.hpp"
#include "benchmarks/instruments/system_sampler.hpp"

namespace tinyllama::instruments {

struct SourceVersion {
  std::string commit;  ///< of the checkout this program was built from, "unknown" without git
  bool dirty = false;  ///< tracked files differ from that commit
};
/// Of the checkout when this program was built.
SourceVersion source_version();

std::string torch_version();

/// `text` with each absolute path in it relative to the working folder where it lies below that,
/// else by its last name alone: a file that is passed on does not tell its owner's folders. Those
/// that are there may have blanks and the like in their names.
std::string without_folders(std::string_view text);
/// A word that tells this machine from others and does not name it: host_0123abcd.
std::string host_word();

/// Clock governor, turbo, transparent huge pages, OMP and MKL environment, determinism; key ->
/// value, absent readings absent.
std::map<std::string, std::string> system_settings(const Device& device);

/// What results say of a GPU beside the device: driver, partition, limit of power, ECC, version of
/// NCCL or RCCL; what cannot be read is absent.
std::map<std::string, std::string> gpu_settings(Backend backend, const std::string& bus_id,
                                                const SystemSources& sources = {});

/// {name, architecture, backend, memory_bytes, ...}.
nlohmann::ordered_json describe_device(const Device& device);
/// What the results of every program carry: git_commit, git_dirty, device, torch_version, threads,
/// memory_source, settings.
nlohmann::ordered_json machine_context(const Device& device);

}  // namespace tinyllama::instruments
