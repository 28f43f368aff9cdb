// Whether anybody listens at an address, before a library is asked to talk to it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace tinyllama::distributed {

/// Waits for `patience` at most until a TCP connection to the address can be made, and closes it.
/// Empty where one was; else why the last try failed. A name that has to be looked up may take
/// longer than the patience.
std::string await_listener(const std::string& address, uint16_t port,
                           std::chrono::milliseconds patience);

}  // namespace tinyllama::distributed
