// A fake of NVML for tests: two cards that report known numbers. A build with
// FAKE_WITHOUT_POWER lacks one function, as older drivers do, and one with
// FAKE_WITHOUT_INIT is no NVML at all.
#include <strings.h>

#include <array>
#include <cstddef>

namespace {

constexpr int kInvalid = 2;       // NVML_ERROR_INVALID_ARGUMENT
constexpr int kNotSupported = 3;  // NVML_ERROR_NOT_SUPPORTED
constexpr int kNotFound = 6;      // NVML_ERROR_NOT_FOUND

struct Card {
  const char* bus_id;
  unsigned int utilization;
  unsigned int sm_clock_MHz;
  unsigned int celsius;  // 0: not reported
  unsigned int milliwatts;
};
std::array<Card, 2> cards = {Card{"0000:3b:00.0", 10, 1410, 0, 61'500},
                             Card{"0000:5e:00.0", 90, 1980, 64, 655'250}};
int open_sessions = 0;

}  // namespace

extern "C" {

struct Utilization {
  unsigned int gpu;
  unsigned int memory;
};

int fake_open_sessions() {
  return open_sessions;
}

#ifndef FAKE_WITHOUT_INIT
int nvmlInit_v2() {
  ++open_sessions;
  return 0;
}
#endif

int nvmlShutdown() {
  --open_sessions;
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  if (index >= cards.size()) return kInvalid;
  *device = &cards[index];
  return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  for (Card& card : cards) {
    if (::strcasecmp(card.bus_id, bus_id) != 0) continue;
    *device = &card;
    return 0;
  }
  return kNotFound;
}

int nvmlDeviceGetUtilizationRates(void* device, Utilization* use) {
  *use = {static_cast<Card*>(device)->utilization, 1};
  return 0;
}

int nvmlDeviceGetClockInfo(void* device, int type, unsigned int* megahertz) {
  constexpr int sm = 1;
  *megahertz = type == sm ? static_cast<Card*>(device)->sm_clock_MHz : 1;
  return 0;
}

int nvmlDeviceGetTemperature(void* device, int sensor, unsigned int* celsius) {
  *celsius = static_cast<Card*>(device)->celsius;
  return sensor == 0 && *celsius > 0 ? 0 : kNotSupported;
}

int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* millijoules) {
  *millijoules = 2ULL * static_cast<Card*>(device)->milliwatts;
  return 0;
}

// The second card is at its limit of power and too hot.
#ifdef FAKE_OF_VERSION_11
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
#else
int nvmlDeviceGetCurrentClocksEventReasons(void* device, unsigned long long* reasons) {
#endif
  *reasons = device == &cards[1] ? 0x4 | 0x20 : 0x1;
  return 0;
}

int nvmlDeviceGetEnforcedPowerLimit(void* device, unsigned int* milliwatts) {
  *milliwatts = device == &cards[1] ? 700'000 : 450'500;
  return 0;
}

int nvmlDeviceGetEccMode(void* device, unsigned int* current, unsigned int* pending) {
  *current = device == &cards[1] ? 1 : 0;
  *pending = 0;
  return 0;
}

#ifndef FAKE_WITHOUT_POWER
int nvmlDeviceGetPowerUsage(void* device, unsigned int* milliwatts) {
  *milliwatts = static_cast<Card*>(device)->milliwatts;
  return 0;
}
#endif

}  // extern "C"
