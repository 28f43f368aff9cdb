// A fake of AMD SMI for tests: the counters of energy of the two dies of one card. A build with
// FAKE_WITHOUT_INIT is no AMD SMI at all.
#include <cstdint>

namespace {

constexpr int kNotFound = 31;  // AMDSMI_STATUS_NOT_FOUND

struct Die {
  uint64_t bus_id;
  uint64_t energy_count;  // of 15.25 uJ each
};
Die dies[] = {{0xc100, 4'000'000}, {0xc911, 0}};
int open_sessions = 0;

}  // namespace

extern "C" {

int fake_open_sessions() {
  return open_sessions;
}

#ifndef FAKE_WITHOUT_INIT
int amdsmi_init(uint64_t flags) {
  constexpr int kInvalid = 1;        // AMDSMI_STATUS_INVAL
  constexpr uint64_t kGpusOnly = 2;  // AMDSMI_INIT_AMD_GPUS
  if (flags != kGpusOnly) return kInvalid;
  ++open_sessions;
  return 0;
}
#endif

int amdsmi_shut_down() {
  --open_sessions;
  return 0;
}

int amdsmi_get_processor_handle_from_bdf(uint64_t bus_id, void** handle) {
  for (Die& die : dies) {
    if (die.bus_id != bus_id) continue;
    *handle = &die;
    return 0;
  }
  return kNotFound;
}

int amdsmi_get_energy_count(void* handle, uint64_t* count, float* microjoules,
                            uint64_t* timestamp) {
  *count = static_cast<Die*>(handle)->energy_count;
  *microjoules = 15.25F;
  *timestamp = 1;
  return 0;
}

}  // extern "C"
