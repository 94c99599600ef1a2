// Makes magic, size and checksum of a mutated frame right, so that the checks behind them are reached.
#pragma once

#include <cstring>
#include <vector>

#include "afd/frame.h"

namespace tandem::fuzz {

inline void repair_frame(std::vector<std::byte>& frame) {
  if (frame.size() < kHeaderBytes) return;
  const auto size = static_cast<uint32_t>(frame.size());
  std::memcpy(frame.data(), "TAFD", 4);
  std::memcpy(frame.data() + 12, &size, 4);
  const size_t table = kHeaderBytes + kDescriptorBytes * static_cast<size_t>(frame[55]);
  if (table > frame.size()) return;
  const uint32_t crc = header_checksum(std::span(frame).first(table));
  std::memcpy(frame.data() + 60, &crc, 4);
}

}  // namespace tandem::fuzz
