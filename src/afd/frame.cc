#include "afd/frame.h"

#include <bit>
#include <type_traits>

#include "base/reflected_crc.h"
#include "transport/little_endian.h"

namespace tandem {
namespace {

// Payloads are written and read as they lie in memory.
static_assert(std::endian::native == std::endian::little,
              "frames are little-endian; this host would need swapping");

template <class T>
void put(std::byte* out, size_t offset, T value) {
  if constexpr (std::is_enum_v<T>) {
    put(out, offset, static_cast<std::underlying_type_t<T>>(value));
  } else {
    store_little_endian(out + offset, value);
  }
}

template <class T>
T get(const std::byte* in, size_t offset) {
  if constexpr (std::is_enum_v<T>) {
    return static_cast<T>(get<std::underlying_type_t<T>>(in, offset));
  } else {
    return load_little_endian<T>(in + offset);
  }
}

constexpr CrcTable kCrcTable = make_crc_table(0x82f63b78u);

// One list of fields serves both directions, so that they cannot disagree about an offset.
template <class Header, class Field>
void each_header_field(Header& h, Field field) {
  field(4, h.major);
  field(5, h.minor);
  field(6, h.header_bytes);
  field(8, h.kind);
  field(10, h.flags);
  field(12, h.total_bytes);
  field(16, h.session);
  field(24, h.incarnation);
  field(28, h.step);
  field(32, h.layer);
  field(34, h.lane);
  field(36, h.tile);
  field(38, h.tiles);
  field(40, h.map_epoch);
  field(44, h.rows);
  field(48, h.capacity);
  field(52, h.attempt);
  field(54, h.row_class);
  field(55, h.descriptors);
  field(56, h.program);
  field(60, h.header_crc);
}

template <class D, class Field>
void each_descriptor_field(D& d, Field field) {
  field(0, d.role);
  field(2, d.dtype);
  field(3, d.log2_block);
  field(4, d.rows);
  field(8, d.cols);
  field(12, d.row_stride);
  field(16, d.offset);
  field(20, d.bytes);
  field(24, d.flags);
}

}  // namespace

std::string_view frame_kind_name(FrameKind kind) {
  switch (kind) {
    case FrameKind::hello:
      return "hello";
    case FrameKind::hello_ack:
      return "hello_ack";
    case FrameKind::refuse:
      return "refuse";
    case FrameKind::canary:
      return "canary";
    case FrameKind::canary_echo:
      return "canary_echo";
    case FrameKind::ffn_request:
      return "ffn_request";
    case FrameKind::ffn_reply:
      return "ffn_reply";
    case FrameKind::cancel:
      return "cancel";
    case FrameKind::drain:
      return "drain";
    case FrameKind::goodbye:
      return "goodbye";
  }
  return "unknown";
}

std::string_view payload_role_name(PayloadRole role) {
  switch (role) {
    case PayloadRole::activation:
      return "activation";
    case PayloadRole::activation_scale:
      return "activation_scale";
    case PayloadRole::token_ids:
      return "token_ids";
    case PayloadRole::expert_ids:
      return "expert_ids";
    case PayloadRole::expert_weights:
      return "expert_weights";
    case PayloadRole::output:
      return "output";
    case PayloadRole::reply_times:
      return "reply_times";
    case PayloadRole::error_code:
      return "error_code";
    case PayloadRole::error_text:
      return "error_text";
    case PayloadRole::settings:
      return "settings";
    case PayloadRole::pieces:
      return "pieces";
    case PayloadRole::shared_rows:
      return "shared_rows";
  }
  return "unknown";
}

void encode_header(const FrameHeader& header, std::span<std::byte, kHeaderBytes> out) {
  put(out.data(), 0, kFrameMagic);
  each_header_field(header, [&](size_t offset, const auto& value) { put(out.data(), offset, value); });
}

FrameHeader decode_header(std::span<const std::byte, kHeaderBytes> in) {
  FrameHeader header;
  each_header_field(header, [&](size_t offset, auto& value) {
    value = get<std::remove_cvref_t<decltype(value)>>(in.data(), offset);
  });
  return header;
}

uint32_t decode_magic(std::span<const std::byte, kHeaderBytes> in) {
  return get<uint32_t>(in.data(), 0);
}

void encode_descriptor(const Descriptor& descriptor, std::span<std::byte, kDescriptorBytes> out) {
  each_descriptor_field(descriptor,
                        [&](size_t offset, const auto& value) { put(out.data(), offset, value); });
  put(out.data(), 28, uint32_t{0});  // reserved
}

Descriptor decode_descriptor(std::span<const std::byte, kDescriptorBytes> in) {
  Descriptor descriptor;
  each_descriptor_field(descriptor, [&](size_t offset, auto& value) {
    value = get<std::remove_cvref_t<decltype(value)>>(in.data(), offset);
  });
  return descriptor;
}

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc) {
  return reflected_crc(kCrcTable, bytes, crc);
}

uint32_t header_checksum(std::span<const std::byte> header_and_descriptors) {
  const uint32_t crc = crc32c(header_and_descriptors.first(kHeaderBytes - sizeof(uint32_t)));
  return crc32c(header_and_descriptors.subspan(kHeaderBytes), crc);
}

}  // namespace tandem
