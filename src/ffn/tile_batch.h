// TileBatch: the rows of several tiles as one call of the MoE block. Rows and routing are gathered under one
// order, the outputs lie in the same order. Row results do not depend on their neighbours, so merging changes
// no bit. One thread. Buffers are sized at creation.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "afd/tile_frame.h"
#include "base/buffer.h"
#include "ffn/exchange_links.h"
#include "moe/moe_block.h"

namespace tandem {

// What computes the rows of one layer: MoeBlock::run.
using MoeRun = std::function<Status(const MoeRequest&)>;

class TileBatch {
 public:
  // `max_rows` bounds the rows of one gather. `exchange`: says what is this rank's of a part by map; null:
  // there are none.
  static Result<TileBatch> create(const SplitSettings& settings, uint32_t max_rows,
                                  ExchangeLinks* exchange = nullptr);

  // Tiles of one layer with at most max_rows rows together, parts among them only if all carry a routing.
  // Afterwards output(i) holds tile i's [rows,
  // hidden].
  Status run(std::span<const TileView* const> tiles, const MoeRun& run);
  std::span<const std::byte> output(size_t tile) const { return outputs_[tile]; }

  // One tile, rows read where they lie and written where they go: `out` has [rows, hidden] of the reply
  // dtype. The routing is copied first: the peer may still write the memory that a tile lies in, and checks
  // must hold.
  Status run_in_place(const TileView& tile, Buffer out, const MoeRun& run);

 private:
  // Sets the routing of `request`, and what makes it a part if one of the tiles is one.
  Status gather_routing(std::span<const TileView* const> tiles, MoeRequest& request);

  const SplitSettings* settings_ = nullptr;
  ExchangeLinks* exchange_ = nullptr;
  std::vector<float> whole_weights_;  // of one part by map
  uint32_t max_rows_ = 0;
  OwnedBuffer rows_in_;               // [max_rows, hidden]
  OwnedBuffer scales_in_;             // [max_rows, scale_cols]; empty when activations are plain
  OwnedBuffer rows_out_;              // [max_rows, hidden]
  std::vector<int32_t> ids_;          // [max_rows, top_k], or token ids
  std::vector<float> weights_;        // [max_rows, top_k]
  std::vector<uint8_t> shared_rows_;  // [max_rows], of parts
  std::vector<std::span<const std::byte>> outputs_;
};

}  // namespace tandem
