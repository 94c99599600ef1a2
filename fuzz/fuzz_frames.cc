// Frames of the wire protocol. First byte: settings (0 to 2: no routing, token ids, routing), bit 7: size and
// checksum are repaired first, so that what stands behind them is reached. What parses lies inside its bytes,
// writes the same header again, and what reads as a request holds values in range.
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "afd/frame_testing.h"
#include "afd/tile_frame.h"
#include "fuzzing.h"

namespace {

using namespace tandem;
using fuzz::require;

void check_places(const FrameView& view) {
  size_t end = kHeaderBytes + kDescriptorBytes * view.header.descriptors;
  for (const Descriptor& d : view.descriptors()) {
    require(d.offset >= end && d.offset % kPayloadAlignment == 0,
            "payloads follow each other on multiples of 64");
    require(size_t{d.rows} * d.row_stride == d.bytes, "bytes are rows of a stride");
    end = size_t{d.offset} + d.bytes;
  }
  require(end == view.bytes.size(), "the frame ends with its last payload");
}

void check_request(const TileView& tile, const SplitSettings& settings) {
  require(tile.header.rows <= kMaxTileRows, "a tile has at most 64 rows");
  require(settings.is_moe_layer(tile.header.layer), "its layer has experts");
  if (const auto* routing = std::get_if<RoutingView>(&tile.routing)) {
    require(routing->ids.size() == size_t{tile.header.rows} * settings.top_k, "top_k ids a row");
    for (const int32_t id : routing->ids) {
      require(id >= 0 && static_cast<uint32_t>(id) < settings.num_experts, "expert ids are in range");
    }
  }
  if (const auto* tokens = std::get_if<TokenIds>(&tile.routing)) {
    for (const int32_t id : tokens->ids) {
      require(id >= 0 && static_cast<uint32_t>(id) < settings.vocab_size, "token ids are in range");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const SplitSettings settings = settings_of_mode((data[0] & 0x7f) % kRoutingModes);
  std::vector<std::byte> frame(size - 1);
  if (size > 1) std::memcpy(frame.data(), data + 1, size - 1);
  if ((data[0] & 0x80) != 0) repair_frame(frame);
  // Exactly as many bytes, as aligned as a slot: a read past the end is an error.
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<std::byte, Free> exact(
      static_cast<std::byte*>(std::aligned_alloc(64, std::max<size_t>((frame.size() + 63) / 64 * 64, 64))));
  std::memset(exact.get(), 0xee, std::max<size_t>((frame.size() + 63) / 64 * 64, 64));
  if (!frame.empty()) std::memcpy(exact.get(), frame.data(), frame.size());
  const auto view = parse_frame({exact.get(), frame.size()});
  if (!view) {
    require(!view.error().message.empty(), "a refusal says why");
    return 0;
  }
  check_places(*view);
  std::array<std::byte, kHeaderBytes> again;
  encode_header(view->header, again);
  require(std::memcmp(again.data(), frame.data(), kHeaderBytes) == 0, "a header writes its bytes again");
  if (const auto tile = read_request(*view, settings)) check_request(*tile, settings);
  if (const auto reply = read_reply(*view, settings)) {
    require(reply->status || clean_error_text(reply->status.error().message) == reply->status.error().message,
            "texts of others are cleaned");
  }
  return 0;
}
