// The circumstances of a run that its results carry: commit, library versions, clock settings.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "benchmarks/instruments/device.hpp"
#include "benchmarks/instruments/system_sampler.hpp"
#include "model/plugin.hpp"

namespace tinyllama::instruments {

/// `text` with each absolute path in it shortened: relative to the working folder where it lies
/// below that, else to its last name, so that a result that is passed on does not show its owner's
/// folders. Paths that exist may have blanks and the like in their names.
std::string without_folders(std::string_view text);
/// A word that distinguishes this machine from others without its name: host_0123abcd.
std::string host_word();

/// Clock governor, turbo, transparent huge pages, OMP and MKL environment, determinism, as key ->
/// value; what cannot be read is absent.
std::map<std::string, std::string> system_settings(const Device& device);

/// Settings of a GPU for a result's context: driver, partition, power limit, ECC, version of NCCL
/// or RCCL; what cannot be read is absent.
std::map<std::string, std::string> gpu_settings(Backend backend, const std::string& bus_id,
                                                const SystemSources& sources = {});

/// {name, architecture, backend, memory_bytes, ...}.
nlohmann::ordered_json describe_device(const Device& device);
/// What the results of every program carry: git_commit, git_dirty, device, torch_version, threads,
/// memory_source, settings; and plugins, where there are any.
nlohmann::ordered_json machine_context(const Device& device, std::span<const Plugin> plugins = {});

}  // namespace tinyllama::instruments
