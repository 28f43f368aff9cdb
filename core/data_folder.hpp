// Where the files lie that programs read: fixtures/ and the schemas of results.
#pragma once

#include <filesystem>
#include <string>

namespace tinyllama {

/// The folder that TINY_LLAMA_DATA_DIR names, else share/tiny_llama beside the folder of this
/// program: of an installation, or of a build folder, where it is a link to the checkout. Throws
/// std::invalid_argument, which names the folder, where it is missing or of another version.
std::filesystem::path data_folder();

/// A command of the tools as it is typed where this program is: scripts/report in a checkout, and
/// elsewhere tiny-llama report.
std::string typed(const std::string& command);

}  // namespace tinyllama
