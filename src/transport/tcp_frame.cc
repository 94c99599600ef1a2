#include "transport/tcp_frame.h"

#include "base/reflected_crc.h"
#include "transport/little_endian.h"

namespace tandem {
namespace {

std::unexpected<Error> bad(const std::string& what) {
  return make_error(ErrorCode::data_loss, "tcp frame: " + what);
}

}  // namespace

uint32_t crc32(std::span<const std::byte> bytes) {
  static constexpr CrcTable kTable = make_crc_table(0xedb88320u);
  return reflected_crc(kTable, bytes);
}

std::array<std::byte, TcpFrameLayout::kHeaderBytes> TcpFrameLayout::encode(const TcpFrame& frame) {
  std::array<std::byte, kHeaderBytes> bytes{};
  store_little_endian<uint32_t>(&bytes[0], kMagic);
  bytes[4] = static_cast<std::byte>(frame.kind);
  bytes[5] = static_cast<std::byte>(frame.channel);
  store_little_endian<uint32_t>(&bytes[8], frame.value);
  store_little_endian<uint32_t>(&bytes[12], crc32(std::span(bytes).first(12)));
  return bytes;
}

Result<TcpFrame> TcpFrameLayout::decode(std::span<const std::byte, kHeaderBytes> bytes) {
  if (load_little_endian<uint32_t>(&bytes[0]) != kMagic) return bad("wrong magic");
  if (load_little_endian<uint32_t>(&bytes[12]) != crc32(bytes.first(12)))
    return bad("wrong checksum of the header");
  const auto kind = static_cast<uint8_t>(bytes[4]);
  const auto channel = static_cast<uint8_t>(bytes[5]);
  const TcpFrame frame{static_cast<TcpFrameKind>(kind), static_cast<Channel>(channel),
                       load_little_endian<uint32_t>(&bytes[8])};
  if (kind < 1 || kind > kLastTcpFrameKind) return bad("unknown kind " + std::to_string(kind));
  if (channel >= kNumChannels) return bad("unknown channel " + std::to_string(channel));
  if (load_little_endian<uint16_t>(&bytes[6]) != 0) return bad("reserved bytes are not 0");
  const bool has_channel = frame.kind == TcpFrameKind::data || frame.kind == TcpFrameKind::credit ||
                           frame.kind == TcpFrameKind::messages_sent;
  const bool may_be_0 = frame.kind == TcpFrameKind::messages_sent;
  const bool has_value = has_channel || frame.kind == TcpFrameKind::hello ||
                         frame.kind == TcpFrameKind::worker_address || frame.kind == TcpFrameKind::nonce ||
                         frame.kind == TcpFrameKind::proof;
  if (!has_channel && channel != 0) return bad("kind " + std::to_string(kind) + " with a channel");
  if (!may_be_0 && has_value != (frame.value != 0)) {
    return bad("kind " + std::to_string(kind) + " with value " + std::to_string(frame.value));
  }
  return frame;
}

}  // namespace tandem
