// Canaries: the largest request and reply of a session, sent before any work (handshake.h).
#include <algorithm>
#include <array>
#include <cstring>

#include "afd/handshake.h"
#include "afd/tile_frame.h"
#include "base/bf16.h"

namespace tandem {

namespace {

uint32_t scattered(size_t i) {
  return static_cast<uint32_t>(i) * 2654435761u;
}

// [kMaxTileRows, hidden] of the session's activation dtype. Every byte of a value takes many values, and all
// of them are finite numbers.
std::vector<std::byte> canary_rows(const SplitSettings& settings) {
  const size_t values = size_t{kMaxTileRows} * settings.hidden_size;
  std::vector<std::byte> rows(dtype_bytes(settings.activation_dtype, values));
  for (size_t i = 0; i < values; ++i) {
    const float value = static_cast<float>(scattered(i) % 65521) / 257.0f - 127.0f;
    if (settings.activation_dtype == DType::f32) {
      std::memcpy(&rows[i * sizeof value], &value, sizeof value);
    } else if (settings.activation_dtype == DType::bf16) {
      const bf16 rounded = to_bf16(value);
      std::memcpy(&rows[i * sizeof rounded], &rounded, sizeof rounded);
    } else {  // one byte a value; 0x7f and 0xff would be NaN in e4m3
      rows[i] = static_cast<std::byte>((scattered(i) >> 7) % 0x7f | (i & 1) << 7);
    }
  }
  return rows;
}

// Of these rows: powers of two, 2^-22 and up, in either encoding. Empty where the format has none.
std::vector<std::byte> canary_scales(const SplitSettings& settings) {
  const ActivationFormat format = settings.activation_format;
  std::vector<std::byte> scales(kMaxTileRows * scale_row_bytes(format, settings.hidden_size));
  const size_t count = size_t{kMaxTileRows} * scale_cols(format, settings.hidden_size);
  for (size_t i = 0; i < count; ++i) {
    const auto exponent = static_cast<uint32_t>(105 + i % 24);
    if (scale_dtype(format) == DType::f8_e8m0) {
      scales[i] = static_cast<std::byte>(exponent);
    } else {
      const uint32_t bits = exponent << 23;
      std::memcpy(&scales[i * sizeof bits], &bits, sizeof bits);
    }
  }
  return scales;
}

Result<std::vector<std::byte>> reply_canary(const FrameHeader& header, const SplitSettings& settings) {
  const std::array<PayloadShape, 1> shape = {
      PayloadShape{PayloadRole::output, settings.reply_dtype, header.rows, settings.hidden_size}};
  TANDEM_ASSIGN(const FrameLayout layout, FrameLayout::create(header, shape));
  std::vector<std::byte> frame(layout.total_bytes());
  layout.encode(frame);
  const auto output = layout.payload(frame, PayloadRole::output);
  for (size_t i = 0; i < output.size(); ++i) output[i] = static_cast<std::byte>(scattered(i) >> 13);
  return frame;
}

Result<std::vector<std::byte>> request_canary(const FrameHeader& header, const SplitSettings& settings) {
  const std::vector<std::byte> rows = canary_rows(settings), scales = canary_scales(settings);
  const bool part = (header.flags & kFramePartial) != 0;
  const bool routed = settings.gate_on_attention || part;
  const uint32_t id_limit = routed ? settings.num_experts : settings.vocab_size;
  std::vector<int32_t> ids(size_t{kMaxTileRows} * std::max(settings.top_k, 1u));
  std::vector<float> weights(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>((i * 40503u) % id_limit);
    weights[i] = static_cast<float>(i % 7 + 1) / 8.0f;
  }
  TileView tile{.header = header,
                .in = {.dtype = settings.activation_dtype,
                       .data = rows.data(),
                       .row_stride = settings.hidden_size,
                       .format = settings.activation_format,
                       .scales = scales.empty() ? nullptr : scales.data(),
                       .scale_stride = scale_cols(settings.activation_format, settings.hidden_size)},
                .routing = NoRouting{}};
  if (routed) tile.routing = RoutingView{ids, weights, settings.top_k};
  if (settings.token_ids && !routed) tile.routing = TokenIds{std::span(ids).first(kMaxTileRows)};
  std::array<uint8_t, kMaxTileRows> shared_rows{};
  for (size_t row = 0; row < kMaxTileRows; ++row) shared_rows[row] = row % 3 == 0 ? 1 : 0;
  const bool with_shared_rows = part && settings.shared_experts_on_ffn();
  if (with_shared_rows) tile.part.shared_rows = shared_rows;
  TANDEM_ASSIGN(const FrameLayout layout, request_layout(header, settings, with_shared_rows));
  std::vector<std::byte> frame(layout.total_bytes());
  write_request(tile, layout, settings, frame);
  return frame;
}

}  // namespace

Result<std::vector<std::byte>> make_canary(const SplitSettings& settings, uint64_t session,
                                           uint32_t incarnation, uint16_t index, bool part) {
  FrameHeader header;
  header.kind = FrameKind::canary;
  header.session = session;
  header.incarnation = incarnation;
  header.layer = settings.moe_layers.front();
  header.tile = index;
  header.tiles = kNumCanaries;
  header.rows = header.capacity = kMaxTileRows;
  if (part) header.flags = kFramePartial;
  return index == 1 ? reply_canary(header, settings) : request_canary(header, settings);
}

std::vector<std::byte> echo_canary(std::span<const std::byte> canary) {
  std::vector<std::byte> echo(canary.begin(), canary.end());
  const auto head = std::span(echo).first<kHeaderBytes>();
  FrameHeader header = decode_header(head);
  header.kind = FrameKind::canary_echo;
  encode_header(header, head);
  header.header_crc =
      header_checksum(std::span(echo).first(kHeaderBytes + kDescriptorBytes * header.descriptors));
  encode_header(header, head);
  return echo;
}

}  // namespace tandem
