#include "benchmarks/training/tensorboard_events.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <concepts>
#include <tuple>

#include "benchmarks/instruments/context.hpp"

namespace tinyllama::training {
namespace {

double unix_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

constexpr std::array<uint32_t, 256> crc_table() {
  constexpr uint32_t reversed_polynomial = 0x82f63b78;
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < table.size(); ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1) != 0 ? reversed_polynomial : 0);
    }
    table[byte] = value;
  }
  return table;
}

/// A CRC of data that holds CRCs is weak, so TFRecords store it rotated and shifted.
uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8;
}

void append_little_endian(std::string& to, std::unsigned_integral auto value) {
  for (size_t byte = 0; byte < sizeof value; ++byte) {
    to += static_cast<char>(value >> (8 * byte) & 0xff);
  }
}

void append_varint(std::string& to, uint64_t value) {
  for (; value >= 0x80; value >>= 7) to += static_cast<char>((value & 0x7f) | 0x80);
  to += static_cast<char>(value);
}

// The wire types of protocol buffers.
enum class Wire : uint64_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void append_key(std::string& to, uint64_t field, Wire wire) {
  append_varint(to, field << 3 | static_cast<uint64_t>(wire));
}

void append_bytes(std::string& to, uint64_t field, std::string_view bytes) {
  append_key(to, field, Wire::bytes);
  append_varint(to, bytes.size());
  to += bytes;
}

/// Event: wall_time 1, step 2, file_version 3, summary 5.
std::string event_at(int64_t step) {
  std::string event;
  append_key(event, 1, Wire::fixed64);
  append_little_endian(event, std::bit_cast<uint64_t>(unix_seconds()));
  append_key(event, 2, Wire::varint);
  append_varint(event, static_cast<uint64_t>(step));
  return event;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr auto table = crc_table();
  uint32_t value = ~uint32_t{0};
  for (const char byte : bytes) {
    value = table[(value ^ static_cast<uint8_t>(byte)) & 0xff] ^ (value >> 8);
  }
  return ~value;
}

TensorboardEvents::TensorboardEvents(const std::filesystem::path& folder) : descriptor_(-1) {
  const std::string name = fmt::format(
      "events.out.tfevents.{}.{}", static_cast<int64_t>(unix_seconds()), instruments::host_word());
  std::tie(path_, descriptor_) = create_new_file(folder / name, [&](int number) {
    return folder / (number == 0 ? name : fmt::format("{}.{}", name, number));
  });
  std::string event = event_at(0);
  append_bytes(event, 3, "brain.Event:2");
  append(event);
}

void TensorboardEvents::write(
    int64_t step, const std::vector<std::pair<std::string_view, std::optional<double>>>& scalars) {
  // Summary: repeated value 1. Value: tag 1, simple_value 2.
  std::string summary;
  for (const auto& [tag, scalar] : scalars) {
    if (!scalar) continue;
    std::string value;
    append_bytes(value, 1, tag);
    append_key(value, 2, Wire::fixed32);
    append_little_endian(value, std::bit_cast<uint32_t>(static_cast<float>(*scalar)));
    append_bytes(summary, 1, value);
  }
  if (summary.empty()) return;
  std::string event = event_at(step);
  append_bytes(event, 5, summary);
  append(event);
}

void TensorboardEvents::append(std::string_view event) {
  // A TFRecord: length, its CRC, data, its CRC.
  std::string record;
  append_little_endian(record, static_cast<uint64_t>(event.size()));
  append_little_endian(record, masked_crc(record));
  record += event;
  append_little_endian(record, masked_crc(event));
  if (const int error = descriptor_.write(record.data(), std::ssize(record)); error != 0) {
    // Half a record would end every reader. Where this fails too, the first error is the one to
    // tell.
    [[maybe_unused]] const int cut = ::ftruncate(descriptor_.number(), bytes_);
    fail_writing(path_, error);
  }
  bytes_ += std::ssize(record);
}

}  // namespace tinyllama::training
