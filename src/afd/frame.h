// Frame: the bytes that attention and FFN ranks exchange, as docs/protocol.md specifies them. A frame is a
// 64-byte header, then 32-byte descriptors, then payloads that start on multiples of 64. Everything is
// little-endian. This file is the vocabulary and the encoding of the two fixed structures; where payloads lie
// is FrameLayout's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/dtype.h"

namespace tandem {

inline constexpr uint32_t kFrameMagic = 0x44464154;  // "TAFD" in memory order
inline constexpr uint8_t kProtocolMajor = 1;         // a difference is refused
inline constexpr uint8_t kProtocolMinor = 0;  // a higher one may add optional descriptors and nothing else
inline constexpr size_t kHeaderBytes = 64;
inline constexpr size_t kDescriptorBytes = 32;
inline constexpr size_t kPayloadAlignment = 64;  // a payload row may be streamed by a kernel as it lies
inline constexpr size_t kMaxDescriptors = 8;     // a request needs at most 5; room for optional ones
inline constexpr uint32_t kMaxTileRows = 64;     // the unit of transfer: one tile of one layer
inline constexpr size_t kMaxFrameBytes = size_t{1}
                                         << 30;  // far above 64 rows of any model; keeps all sums in 32 bits
inline constexpr size_t kMaxErrorTextBytes = 2048;  // one line of text; longer ones are cut by the sender

enum class FrameKind : uint16_t {
  hello = 1,         // attention -> FFN: who I am, settings
  hello_ack = 2,     // FFN -> attention: who I am, settings, pieces held
  refuse = 3,        // either way: why the connection ends
  canary = 4,        // attention -> FFN: a largest frame of one payload kind
  canary_echo = 5,   // FFN -> attention: the same bytes back
  ffn_request = 16,  // A2E
  ffn_reply = 17,    // E2A
  cancel = 18,       // attention -> FFN: drop what still waits of one request
  drain = 19,        // FFN -> attention: send nothing new, what waits is still answered
  goodbye = 20,      // either way: a wanted end
};

enum class PayloadRole : uint16_t {
  activation = 1,        // [rows, hidden]
  activation_scale = 2,  // [rows, ceil(hidden / block)]; int8: [rows, 1]
  token_ids = 3,         // i32 [rows, 1]
  expert_ids = 4,        // i32 [rows, top_k]
  expert_weights = 5,    // f32 [rows, top_k], final
  output = 6,            // [rows, hidden]
  reply_times = 7,       // u32 [1, 4]: queue, compute, exchange, residence, microseconds
  error_code = 8,        // u32 [1, 1]: WireError
  error_text = 9,        // u8 [1, length], UTF-8
  settings = 10,         // u8 [1, length]: "key=value" lines
  pieces = 11,           // u32 [count, 6]: layer, expert begin, expert end, row begin, row end, unit
  shared_rows = 12,      // u8 [rows, 1]: 1 where the receiver adds the row's shared experts
};

// Error codes on the wire: fixed numbers, whatever the process-internal ErrorCode becomes.
enum class WireError : uint32_t {
  invalid_argument = 1,
  out_of_range = 2,
  unsupported = 3,
  resource_exhausted = 4,
  unavailable = 5,
  deadline_exceeded = 6,
  cancelled = 7,
  data_loss = 8,
  internal = 9,
};

std::string_view frame_kind_name(FrameKind kind);  // "ffn_request"; "unknown" for a number without a name
std::string_view payload_role_name(PayloadRole role);

// FrameHeader::flags. Other bits are refused.
//
// partial: the rows want the receiver's own experts only. The routing is there wherever the gate is, slots of
// other ranks weigh 0, and the receiver never sends the rows on.
inline constexpr uint16_t kFramePartial = 1;
// by_map, with partial: the routing is the rows' whole one; the receiver takes its part of it by the expert
// map that `map_epoch` names and answers all rows, with 0 where it has nothing to add.
inline constexpr uint16_t kFrameByMap = 2;
inline constexpr uint16_t kKnownFrameFlags = kFramePartial | kFrameByMap;

struct FrameHeader {
  uint8_t major = kProtocolMajor, minor = kProtocolMinor;
  uint16_t header_bytes = kHeaderBytes;
  FrameKind kind = FrameKind::goodbye;
  uint16_t flags = 0;        // kFramePartial, kFrameByMap
  uint32_t total_bytes = 0;  // header, descriptors, payloads
  uint64_t session = 0;      // given by the FFN rank in its hello_ack; 0 before
  uint32_t incarnation = 0;  // of the FFN rank that opened the session; 0 before
  uint32_t step = 0;
  uint16_t layer = 0, lane = 0;
  uint16_t tile = 0, tiles = 0;  // tile < tiles
  uint32_t map_epoch = 0;
  uint32_t rows = 0, capacity = 0;  // rows <= capacity; of this tile
  uint16_t attempt = 0;             // tells two submissions of one (step, layer, lane) apart
  uint8_t row_class = 0;            // RowClass
  uint8_t descriptors = 0;
  uint32_t program = 0;     // 0: eager
  uint32_t header_crc = 0;  // CRC-32C of header and descriptors with this field left out

  bool operator==(const FrameHeader&) const = default;
};

inline constexpr uint32_t kMustUnderstand = 1;  // Descriptor::flags, bit 0; the other bits are zero

struct Descriptor {
  PayloadRole role = PayloadRole::activation;
  DType dtype = DType::none;
  uint8_t log2_block = 0;  // activation_scale: log2 of the values of a row that share one scale; 0 otherwise
  uint32_t rows = 0, cols = 0;
  uint32_t row_stride = 0;  // bytes between rows
  uint32_t offset = 0;      // from the start of the frame
  uint32_t bytes = 0;       // rows * row_stride
  uint32_t flags = 0;

  bool operator==(const Descriptor&) const = default;
};

// Fixed positions, no interpretation: every value of a field survives the round trip.
void encode_header(const FrameHeader& header, std::span<std::byte, kHeaderBytes> out);
FrameHeader decode_header(std::span<const std::byte, kHeaderBytes> in);  // the magic is not looked at
uint32_t decode_magic(std::span<const std::byte, kHeaderBytes> in);
void encode_descriptor(const Descriptor& descriptor, std::span<std::byte, kDescriptorBytes> out);
Descriptor decode_descriptor(std::span<const std::byte, kDescriptorBytes> in);

// CRC-32C (Castagnoli, reflected, initial and final value inverted). `crc` continues an earlier result; 0
// starts.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

// The checksum of an encoded header followed by its descriptors: bytes [0, 60) and [64, 64 + 32 n).
uint32_t header_checksum(std::span<const std::byte> header_and_descriptors);

}  // namespace tandem
