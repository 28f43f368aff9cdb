// Ctrl-C and SIGTERM: the first one ends the run after the current case, with everything written;
// the second one kills.
#pragma once

namespace tinyllama::console {

void install_interrupt_handler();
bool interrupted();
/// What a signal would do, for faults after which measuring on makes no sense (a full disk).
void request_interrupt();

}  // namespace tinyllama::console
