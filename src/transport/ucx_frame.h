// UcxFrameLayout: the header of every UCX active message of a connection. Pure functions, any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/endpoint.h"

namespace tandem {

enum class UcxFrameKind : uint8_t {
  hello = 1,   // the first in each direction: the path works; no bytes
  data = 2,    // one message of a channel
  credit = 3,  // only the fields below; no bytes
};

struct UcxFrame {
  UcxFrameKind kind = UcxFrameKind::credit;
  Channel channel = Channel::control;  // of data, else control
  // Of data: counts the messages of the channel from 0. UCX promises no order among active messages, so the
  // receiver restores it.
  uint32_t sequence = 0;
  uint32_t bytes = 0;                          // of the message
  std::array<uint32_t, kNumChannels> freed{};  // slots that the sender of this frame has given back since the
                                               // start, by channel, modulo 2^32: the latest counts
  uint32_t starved = 0;  // bit i: channel i has no credit; tell the next slot that is given back at once
};

// Little-endian, 32 bytes: 0 magic u32 | 4 kind u8 | 5 channel u8 | 6 zero u16 | 8 sequence u32 | 12 bytes
// u32 | 16 freed u32 x 3 | 28 starved u32.
struct UcxFrameLayout {
  static constexpr size_t kBytes = 32;
  static constexpr uint32_t kMagic = 0x55444e54;  // "TNDU"

  static std::array<std::byte, kBytes> encode(const UcxFrame& frame);
  // data_loss naming what is wrong. Checks what holds for every connection, not the limits of one.
  static Result<UcxFrame> decode(std::span<const std::byte> bytes);
};

}  // namespace tandem
