// The tcp transport's own framing: what stands before every message on the wire. Pure functions, any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/endpoint.h"

namespace tandem {

enum class TcpFrameKind : uint8_t {
  hello = 1,      // value: bytes of the hello that follows; first and only once in each direction
  data = 2,       // value: bytes of the message that follows, 1..slot_bytes; takes one credit of the channel
  credit = 3,     // value: credits given back for the channel, 1..slots_per_channel
  heartbeat = 4,  // value 0
  bye = 5,        // value 0: the sender ends the connection; nothing follows
  // Of ucx only, whose messages do not travel on this connection:
  worker_address = 6,  // value: bytes that follow; second and only once in each direction
  messages_sent = 7,   // value: messages that left on the channel since the start; before bye
  // Behind the hellos where both sides have a key (peer_proof.h), once each in each direction:
  nonce = 8,  // value: bytes that follow, 32
  proof = 9,  // value: bytes that follow, 32
};

inline constexpr uint8_t kLastTcpFrameKind = 9;

// CRC-32 (reflected 0xedb88320) of what crosses a wire once at start or is short.
uint32_t crc32(std::span<const std::byte> bytes);

struct TcpFrame {
  TcpFrameKind kind = TcpFrameKind::heartbeat;
  Channel channel = Channel::control;  // control when the kind has none
  uint32_t value = 0;
};

// Little-endian, 16 bytes: 0 magic u32 | 4 kind u8 | 5 channel u8 | 6 zero u16 | 8 value u32 | 12 CRC-32 of
// bytes 0..11 u32. The CRC finds a reader that has lost its place; the message itself has the frame's checks
// above and TCP's below.
struct TcpFrameLayout {
  static constexpr size_t kHeaderBytes = 16;
  static constexpr uint32_t kMagic = 0x54444e54;  // "TNDT"

  static std::array<std::byte, kHeaderBytes> encode(const TcpFrame& frame);
  // data_loss naming what is wrong. Checks what holds for every connection, not the limits of one.
  static Result<TcpFrame> decode(std::span<const std::byte, kHeaderBytes> bytes);
};

}  // namespace tandem
