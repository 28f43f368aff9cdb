#include "benchmarks/distributed/slurm_node_list.hpp"

#include <stdexcept>

namespace tinyllama::distributed {

std::string first_slurm_node(std::string_view list) {
  std::string node;
  size_t at = 0;
  while (at < list.size() && list[at] != ',') {
    if (list[at] != '[') {
      node += list[at++];
      continue;
    }
    // "[01-04,07]": the first number, with its zeros.
    const size_t close = list.find(']', at);
    const size_t end = list.find_first_of(",-]", at);
    if (close == std::string_view::npos || end == at + 1)
      throw std::invalid_argument("must be a list of hosts such as node[01-04],login");
    node += list.substr(at + 1, end - at - 1);
    at = close + 1;
  }
  if (node.empty())
    throw std::invalid_argument("must be a list of hosts such as node[01-04],login");
  return node;
}

}  // namespace tinyllama::distributed
