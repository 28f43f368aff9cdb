// Slurm's short form of a list of hosts: "node[01-04,07],login".
#pragma once

#include <string>
#include <string_view>

namespace tinyllama::distributed {

/// The first host of the list, "node01" above. Throws std::invalid_argument naming the rule where
/// the text is no such list.
std::string first_slurm_node(std::string_view list);

}  // namespace tinyllama::distributed
