// A fake of NVML for tests: a card that reports known numbers, and one in MIG mode. A build with
// FAKE_OF_OLD_DRIVER lacks two functions and has one by its older name, and one with
// FAKE_WITHOUT_INIT is no NVML at all.
#include <strings.h>

namespace {

constexpr int kNotFound = 6;  // NVML_ERROR_NOT_FOUND

int card = 0;
int card_in_mig_mode = 0;
int open_sessions = 0;

}  // namespace

extern "C" {

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

int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  *device = ::strcasecmp("0000:5f:00.0", bus_id) == 0 ? &card_in_mig_mode : &card;
  return *device == &card_in_mig_mode || ::strcasecmp("0000:5e:00.0", bus_id) == 0 ? 0 : kNotFound;
}

int nvmlDeviceGetMigMode(void* device, unsigned int* current, unsigned int* pending) {
  *current = *pending = device == &card_in_mig_mode ? 1 : 0;
  return 0;
}

struct Utilization {
  unsigned int gpu;
  unsigned int memory;
};

int nvmlDeviceGetUtilizationRates(void*, Utilization* use) {
  *use = {90, 1};
  return 0;
}

int nvmlDeviceGetClockInfo(void*, int type, unsigned int* megahertz) {
  constexpr int sm = 1;
  *megahertz = type == sm ? 1980 : 1;
  return 0;
}

int nvmlDeviceGetTemperature(void*, int sensor, unsigned int* celsius) {
  *celsius = sensor == 0 ? 64 : 1;
  return 0;
}

#ifdef FAKE_OF_OLD_DRIVER
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
#else
int nvmlDeviceGetPowerUsage(void*, unsigned int* milliwatts) {
  *milliwatts = 655'250;
  return 0;
}

int nvmlDeviceGetTotalEnergyConsumption(void*, unsigned long long* millijoules) {
  *millijoules = 1'310'500;
  return 0;
}

int nvmlDeviceGetCurrentClocksEventReasons(void*, unsigned long long* reasons) {
#endif
  *reasons = 0x4 | 0x20;  // at its limit of power, and too hot
  return 0;
}

int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned int* milliwatts) {
  *milliwatts = 700'000;
  return 0;
}

int nvmlDeviceGetEccMode(void*, unsigned int* current, unsigned int* pending) {
  *current = 1;
  *pending = 0;
  return 0;
}

}  // extern "C"
