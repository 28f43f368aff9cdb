// Of what, and with what, a program was built; and whether that libtorch is the one it runs with.
#pragma once

#include <string>
#include <string_view>

namespace tinyllama::console {

/// For --version: project version, commit, libtorch, build type, a line each.
std::string version_text(const std::string& program);

/// 2.13.0, of the libtorch that this process has loaded, as that says itself; empty where it does
/// not.
std::string loaded_libtorch();

/// Throws std::runtime_error that names both versions where `loaded`, of the libtorch that this
/// process has, is another than `built`: its classes are laid out otherwise.
void refuse_other_libtorch(std::string_view built, std::string_view loaded);
void refuse_other_libtorch();

}  // namespace tinyllama::console
