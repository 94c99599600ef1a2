// For tests and fuzz targets of frames and handshakes: settings of a model that is none, and the repair of
// frames that were changed on purpose.
#pragma once

#include <cstring>
#include <span>

#include "afd/frame.h"
#include "afd/split_settings.h"

namespace tandem {

inline SplitSettings small_settings() {
  SplitSettings settings;
  settings.model_fingerprint = 0xabcdef;
  settings.hidden_size = 24;
  settings.num_layers = 4;
  settings.vocab_size = 100;
  settings.num_experts = 8;
  settings.top_k = 2;
  settings.moe_intermediate_size = 32;
  settings.moe_layers = {1, 2, 3};
  return settings;
}

// What requests carry beside their rows. The seeds of fuzz_frames are of these numbers.
inline constexpr unsigned kRoutingModes = 3;  // 0: nothing, 1: token ids, 2: expert ids and weights
inline SplitSettings settings_of_mode(unsigned mode) {
  SplitSettings settings = small_settings();
  settings.hidden_size = 40;
  settings.token_ids = mode == 1;
  settings.gate_on_attention = mode == 2;
  return settings;
}

// Makes the checksum right, so that the checks behind it are reached. Nothing where the table does not fit.
inline void repair_checksum(std::span<std::byte> frame) {
  if (frame.size() < kHeaderBytes) return;
  const size_t table = kHeaderBytes + kDescriptorBytes * static_cast<size_t>(frame[55]);
  if (table > frame.size()) return;
  const uint32_t crc = header_checksum(frame.first(table));
  std::memcpy(&frame[60], &crc, sizeof crc);
}

// Also its size.
inline void repair_size(std::span<std::byte> frame) {
  if (frame.size() < kHeaderBytes) return;
  const auto size = static_cast<uint32_t>(frame.size());
  std::memcpy(&frame[12], &size, sizeof size);
}

// And its magic: all that a mutation destroys without meaning anything by it.
inline void repair_frame(std::span<std::byte> frame) {
  if (frame.size() < kHeaderBytes) return;
  std::memcpy(frame.data(), &kFrameMagic, sizeof kFrameMagic);
  repair_size(frame);
  repair_checksum(frame);
}

}  // namespace tandem
