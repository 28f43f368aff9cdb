// Which engine of c10d carries the messages between ranks.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "benchmarks/distributed/launch_environment.hpp"
#include "benchmarks/distributed/rendezvous.hpp"
#include "benchmarks/instruments/device.hpp"

namespace tinyllama::distributed {

/// NCCL (RCCL) for tensors on a GPU where this program was built with it, else Gloo. Throws
/// std::invalid_argument where neither was built in, std::runtime_error where the ranks cannot be
/// connected.
c10::intrusive_ptr<c10d::Backend> connect(const Rendezvous& rendezvous,
                                          const instruments::Device& device);

/// Whether this program can talk between processes at all.
bool has_backend();

/// Which one connect() would choose: "gloo" or "nccl".
std::string backend_of(const instruments::Device& device);

/// One of these files is compiled for each: with it, and for machines without its headers.
c10::intrusive_ptr<c10d::Backend> connect_gloo(const Rendezvous& rendezvous);
bool has_gloo();
c10::intrusive_ptr<c10d::Backend> connect_nccl(const Rendezvous& rendezvous);
bool has_nccl();

}  // namespace tinyllama::distributed
