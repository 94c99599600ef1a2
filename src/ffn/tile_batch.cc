#include "ffn/tile_batch.h"

#include <algorithm>
#include <cstring>

namespace tandem {

Result<TileBatch> TileBatch::create(const SplitSettings& settings, uint32_t max_rows,
                                    ExchangeLinks* exchange) {
  TileBatch batch;
  batch.settings_ = &settings;
  batch.max_rows_ = max_rows;
  batch.exchange_ = exchange;
  const size_t values = size_t{max_rows} * settings.hidden_size;
  TANDEM_ASSIGN(batch.rows_in_, OwnedBuffer::allocate(dtype_bytes(settings.activation_dtype, values)));
  if (is_quantized(settings.activation_format)) {
    const size_t scale_bytes = scale_row_bytes(settings.activation_format, settings.hidden_size);
    TANDEM_ASSIGN(batch.scales_in_, OwnedBuffer::allocate(max_rows * scale_bytes));
  }
  TANDEM_ASSIGN(batch.rows_out_, OwnedBuffer::allocate(dtype_bytes(settings.reply_dtype, values)));
  batch.ids_.resize(size_t{max_rows} * settings.top_k);
  batch.weights_.resize(batch.ids_.size());
  batch.shared_rows_.resize(max_rows);
  if (exchange != nullptr) batch.whole_weights_.reserve(batch.ids_.size());
  batch.outputs_.reserve(max_rows);  // a tile has at least one row
  return batch;
}

Status TileBatch::gather_routing(std::span<const TileView* const> tiles, MoeRequest& request) {
  size_t count = 0;
  uint32_t rows = 0;
  for (const TileView* tile : tiles) {
    if (const auto* tokens = std::get_if<TokenIds>(&tile->routing)) {
      std::ranges::copy(tokens->ids, ids_.begin() + static_cast<std::ptrdiff_t>(count));
      count += tokens->ids.size();
    } else if (const auto* routing = std::get_if<RoutingView>(&tile->routing)) {
      std::ranges::copy(routing->ids, ids_.begin() + static_cast<std::ptrdiff_t>(count));
      std::ranges::copy(routing->weights, weights_.begin() + static_cast<std::ptrdiff_t>(count));
      if (tile->part.by_map()) {
        const auto ids = std::span<const int32_t>(ids_).subspan(count, routing->ids.size());
        const auto weights = std::span(weights_).subspan(count, routing->ids.size());
        whole_weights_.assign(weights.begin(), weights.end());
        const RoutingView whole{ids, whole_weights_, settings_->top_k};
        TANDEM_TRY(check_routing_values(whole, tile->header.rows, *settings_, tile->part));
        TANDEM_TRY(exchange_->take_own(tile->header.layer, tile->header.rows, whole, weights));
      }
      count += routing->ids.size();
    }
    // A whole row wants its shared experts here.
    const std::span<uint8_t> shared = std::span(shared_rows_).subspan(rows, tile->header.rows);
    std::ranges::fill(shared, tile->part.is_partial() ? 0 : 1);
    std::ranges::copy(tile->part.shared_rows, shared.begin());
    rows += tile->header.rows;
    request.partial = request.partial || tile->part.is_partial();
  }
  if (request.partial) request.shared_rows = std::span(shared_rows_).first(rows);
  if (settings_->gate_on_attention || request.partial) {
    request.routing =
        RoutingView{std::span(ids_).first(count), std::span(weights_).first(count), settings_->top_k};
  } else if (settings_->token_ids) {
    request.routing = TokenIds{std::span(ids_).first(count)};
  } else {
    request.routing = NoRouting{};
  }
  return {};
}

Status TileBatch::run(std::span<const TileView* const> tiles, const MoeRun& run) {
  const size_t row_bytes = dtype_bytes(settings_->activation_dtype, settings_->hidden_size);
  uint32_t rows = 0;
  for (const TileView* tile : tiles) rows += tile->header.rows;
  if (tiles.empty() || rows > max_rows_) {
    return make_error(ErrorCode::internal,
                      "tile batch: " + std::to_string(rows) + " rows, at most " + std::to_string(max_rows_));
  }
  const size_t scale_bytes = scale_row_bytes(settings_->activation_format, settings_->hidden_size);
  size_t done = 0;
  for (const TileView* tile : tiles) {
    gather_rows(tile->in, tile->part.row_index, tile->header.rows, settings_->hidden_size,
                rows_in_.data() + done * row_bytes, scales_in_.data() + done * scale_bytes);
    done += tile->header.rows;
  }
  MoeRequest request;
  request.layer = tiles.front()->header.layer;
  request.rows = rows;
  request.in = {settings_->activation_dtype, rows_in_.data(), settings_->hidden_size};
  if (is_quantized(settings_->activation_format)) {
    request.in.format = settings_->activation_format;
    request.in.scales = scales_in_.data();
    request.in.scale_stride = scale_cols(settings_->activation_format, settings_->hidden_size);
  }
  TANDEM_TRY(gather_routing(tiles, request));
  request.out = {rows_out_.data(), dtype_bytes(settings_->reply_dtype, size_t{rows} * settings_->hidden_size),
                 MemorySpace::host};
  TANDEM_TRY(run(request));
  outputs_.clear();
  const std::byte* from = rows_out_.data();
  for (const TileView* tile : tiles) {
    const size_t bytes =
        dtype_bytes(settings_->reply_dtype, size_t{tile->header.rows} * settings_->hidden_size);
    outputs_.emplace_back(from, bytes);
    from += bytes;
  }
  return {};
}

Status TileBatch::run_in_place(const TileView& tile, Buffer out, const MoeRun& run) {
  const TileView* one = &tile;
  MoeRequest request;
  request.layer = tile.header.layer;
  request.rows = tile.header.rows;
  request.in = tile.in;
  TANDEM_TRY(gather_routing({&one, 1}, request));
  request.out = out;
  return run(request);
}

}  // namespace tandem
