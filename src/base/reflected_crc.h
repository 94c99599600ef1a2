// Reflected CRCs of 32 bits, initial and final value inverted: CRC-32 (zlib's) and CRC-32C, which differ by
// their polynomial. A table and a byte at a time: for short texts and headers, not for bulk. Any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem {

using CrcTable = std::array<uint32_t, 256>;

// `polynomial`: reflected.
constexpr CrcTable make_crc_table(uint32_t polynomial) {
  CrcTable table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? polynomial : 0u);
    table[i] = value;
  }
  return table;
}

// `crc` continues an earlier result; 0 starts.
inline uint32_t reflected_crc(const CrcTable& table, std::span<const std::byte> bytes, uint32_t crc = 0) {
  crc = ~crc;
  for (const std::byte byte : bytes) crc = (crc >> 8) ^ table[(crc ^ static_cast<uint32_t>(byte)) & 0xff];
  return ~crc;
}

}  // namespace tandem
