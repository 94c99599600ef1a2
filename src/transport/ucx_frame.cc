#include "transport/ucx_frame.h"

#include "transport/little_endian.h"

namespace tandem {
namespace {

std::unexpected<Error> bad(const std::string& what) {
  return make_error(ErrorCode::data_loss, "ucx frame: " + what);
}

}  // namespace

std::array<std::byte, UcxFrameLayout::kBytes> UcxFrameLayout::encode(const UcxFrame& frame) {
  std::array<std::byte, kBytes> bytes{};
  store_little_endian<uint32_t>(&bytes[0], kMagic);
  bytes[4] = static_cast<std::byte>(frame.kind);
  bytes[5] = static_cast<std::byte>(frame.channel);
  store_little_endian<uint32_t>(&bytes[8], frame.sequence);
  store_little_endian<uint32_t>(&bytes[12], frame.bytes);
  for (size_t i = 0; i < kNumChannels; ++i) store_little_endian<uint32_t>(&bytes[16 + 4 * i], frame.freed[i]);
  store_little_endian<uint32_t>(&bytes[28], frame.starved);
  return bytes;
}

Result<UcxFrame> UcxFrameLayout::decode(std::span<const std::byte> bytes) {
  if (bytes.size() != kBytes) return bad("header of " + std::to_string(bytes.size()) + " bytes");
  if (load_little_endian<uint32_t>(&bytes[0]) != kMagic) return bad("wrong magic");
  const auto kind = static_cast<uint8_t>(bytes[4]);
  const auto channel = static_cast<uint8_t>(bytes[5]);
  UcxFrame frame{static_cast<UcxFrameKind>(kind),
                 static_cast<Channel>(channel),
                 load_little_endian<uint32_t>(&bytes[8]),
                 load_little_endian<uint32_t>(&bytes[12]),
                 {},
                 load_little_endian<uint32_t>(&bytes[28])};
  for (size_t i = 0; i < kNumChannels; ++i) frame.freed[i] = load_little_endian<uint32_t>(&bytes[16 + 4 * i]);
  if (kind < 1 || kind > 3) return bad("unknown kind " + std::to_string(kind));
  if (channel >= kNumChannels) return bad("unknown channel " + std::to_string(channel));
  if (load_little_endian<uint16_t>(&bytes[6]) != 0) return bad("reserved bytes are not 0");
  if (frame.starved >> kNumChannels != 0) return bad("unknown channel without credit");
  const bool is_data = frame.kind == UcxFrameKind::data;
  if (!is_data && (channel != 0 || frame.sequence != 0))
    return bad("kind " + std::to_string(kind) + " with a channel");
  if (is_data != (frame.bytes != 0)) {
    return bad("kind " + std::to_string(kind) + " with " + std::to_string(frame.bytes) + " bytes");
  }
  return frame;
}

}  // namespace tandem
