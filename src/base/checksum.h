// checksum64: XXH64, by its published specification, of bytes in memory: finds damage, at more than a core's
// share of the memory bandwidth and without special instructions. No defence against somebody who makes a
// collision. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace tandem {

uint64_t checksum64(std::span<const std::byte> bytes, uint64_t seed = 0);

inline uint64_t checksum64(std::string_view text, uint64_t seed = 0) {
  return checksum64(std::as_bytes(std::span(text)), seed);
}

}  // namespace tandem
