// A fake of ROCm SMI for tests: four cards that report known numbers. A build with
// FAKE_WITHOUT_SOCKET_POWER lacks the function that came with ROCm 6, one with
// FAKE_WITHOUT_INIT is no ROCm SMI at all.
#include <array>
#include <cstdint>

namespace {

constexpr int kInvalid = 1;       // RSMI_STATUS_INVALID_ARGS
constexpr int kNotSupported = 2;  // RSMI_STATUS_NOT_SUPPORTED

struct Card {
  uint64_t bus_id;
  uint32_t busy_percent;
  int64_t edge_millidegrees;
  int64_t junction_millidegrees;  // 0: not reported
  uint64_t average_microwatts;
  bool has_average;
  uint64_t socket_microwatts;  // 0: not reported
};
constexpr std::array<Card, 4> cards = {
    Card{0x300, 11, 41'000, 45'000, 90'000'000, true, 0},
    // 0000:c1:00.0, the second partition of its card
    Card{0x1000c100, 77, 61'000, 68'500, 250'500'000, true, 999'000'000},
    // 0001:c6:1f.7: no junction sensor; tells its power as a socket's
    Card{0x10000c6ff, 88, 52'000, 0, 0, false, 480'000'000},
    // the second die of a card says that it needs no power
    Card{0xc900, 99, 50'000, 51'000, 0, true, 0}};
int open_sessions = 0;

}  // namespace

extern "C" {

int fake_open_sessions() {
  return open_sessions;
}

#ifndef FAKE_WITHOUT_INIT
int rsmi_init(uint64_t) {
  ++open_sessions;
  return 0;
}
#endif

int rsmi_shut_down() {
  --open_sessions;
  return 0;
}

int rsmi_num_monitor_devices(uint32_t* count) {
  *count = cards.size();
  return 0;
}

int rsmi_dev_pci_id_get(uint32_t device, uint64_t* bus_id) {
  if (device >= cards.size()) return kInvalid;
  *bus_id = cards[device].bus_id;
  return 0;
}

int rsmi_dev_busy_percent_get(uint32_t device, uint32_t* percent) {
  *percent = cards[device].busy_percent;
  return 0;
}

int rsmi_dev_temp_metric_get(uint32_t device, uint32_t sensor, int metric, int64_t* millidegrees) {
  constexpr uint32_t edge = 0;
  constexpr uint32_t junction = 1;
  if (metric != 0 || sensor > junction) return kInvalid;
  const Card& card = cards[device];
  *millidegrees = sensor == edge ? card.edge_millidegrees : card.junction_millidegrees;
  return *millidegrees > 0 ? 0 : kNotSupported;
}

int rsmi_dev_power_ave_get(uint32_t device, uint32_t sensor, uint64_t* microwatts) {
  if (sensor != 0) return kInvalid;
  *microwatts = cards[device].average_microwatts;
  return cards[device].has_average ? 0 : kNotSupported;
}

#ifndef FAKE_WITHOUT_SOCKET_POWER
int rsmi_dev_current_socket_power_get(uint32_t device, uint64_t* microwatts) {
  *microwatts = cards[device].socket_microwatts;
  return *microwatts > 0 ? 0 : kNotSupported;
}
#endif

}  // extern "C"
