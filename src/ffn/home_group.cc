#include "ffn/home_group.h"

#include <algorithm>
#include <bit>

namespace tandem {
namespace {

constexpr uint32_t kMinRows = kMaxTileRows;  // buffers of small groups are not resized

}  // namespace

Status HomeGroup::make_room(OwnedBuffer& buffer, uint32_t rows, size_t row_bytes) {
  if (buffer.size() >= rows * row_bytes) return {};
  TANDEM_ASSIGN(buffer, OwnedBuffer::allocate(std::bit_ceil(std::max(rows, kMinRows)) * row_bytes));
  return {};
}

Status HomeGroup::prepare(const SplitSettings& settings, uint32_t max_rows, size_t max_parts) {
  const size_t row_bytes = dtype_bytes(settings.activation_dtype, settings.hidden_size);
  const size_t reply_bytes = dtype_bytes(settings.reply_dtype, settings.hidden_size);
  prepared = true;
  tiles.reserve(max_rows);  // a tile has at least one row
  TANDEM_TRY(make_room(values, max_rows, row_bytes));
  if (is_quantized(settings.activation_format))
    TANDEM_TRY(
        make_room(scales, max_rows, scale_row_bytes(settings.activation_format, settings.hidden_size)));
  ids.reserve(size_t{max_rows} * settings.top_k);
  weights.reserve(ids.capacity());
  if (settings.token_ids) tokens.reserve(max_rows);
  dispatched.reserve(max_parts, max_rows, settings.top_k, settings.num_experts);
  shared_rows.reserve(max_rows);
  parts.resize(max_parts);
  for (Part& part : parts) TANDEM_TRY(make_room(part.sums, max_rows, reply_bytes));
  return make_room(out, max_rows, reply_bytes);
}

Status HomeGroup::take(std::span<WaitingTile> from, const SplitSettings& settings) {
  const FrameHeader& first = from.front().tile.header;
  layer = first.layer;
  row_class = static_cast<RowClass>(first.row_class);
  tiles.clear();
  for (WaitingTile& tile : from) tiles.push_back(std::move(tile));
  return gather(settings);
}

Status HomeGroup::gather(const SplitSettings& settings) {
  rows = 0;
  replays = true;
  for (const WaitingTile& tile : tiles) {
    rows += tile.tile.header.rows;
    replays = replays && settings.is_captured(tile.tile.header.program);
  }
  ids.clear();
  weights.clear();
  tokens.clear();
  for (const WaitingTile& waiting : tiles) {
    if (const auto* sent = std::get_if<TokenIds>(&waiting.tile.routing))
      tokens.insert(tokens.end(), sent->ids.begin(), sent->ids.end());
    const auto* routed = std::get_if<RoutingView>(&waiting.tile.routing);
    if (routed == nullptr) continue;
    ids.insert(ids.end(), routed->ids.begin(), routed->ids.end());
    weights.insert(weights.end(), routed->weights.begin(), routed->weights.end());
  }
  in = tiles.front().tile.in;
  if (tiles.size() == 1) return {};
  const size_t row_bytes = dtype_bytes(settings.activation_dtype, settings.hidden_size);
  const size_t scale_bytes = scale_row_bytes(settings.activation_format, settings.hidden_size);
  TANDEM_TRY(make_room(values, rows, row_bytes));
  if (scale_bytes > 0) TANDEM_TRY(make_room(scales, rows, scale_bytes));
  size_t done = 0;
  for (const WaitingTile& waiting : tiles) {
    const TileView& tile = waiting.tile;
    gather_rows(tile.in, {}, tile.header.rows, settings.hidden_size, values.data() + done * row_bytes,
                scale_bytes > 0 ? scales.data() + done * scale_bytes : nullptr);
    done += tile.header.rows;
  }
  in = {settings.activation_dtype, values.data(), settings.hidden_size};
  if (scale_bytes > 0) {
    in.format = settings.activation_format;
    in.scales = scales.data();
    in.scale_stride = scale_cols(settings.activation_format, settings.hidden_size);
  }
  return {};
}

}  // namespace tandem
