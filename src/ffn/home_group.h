// HomeGroup: the rows of one group of home tiles, from gathering to answering, with the buffers that this
// takes. Kept and used again. A prepared one was sized for its largest group at creation and allocates
// nothing afterwards; another one grows with the groups that it meets. For HomeGroups; the compute thread's.
#pragma once

#include <vector>

#include "base/buffer.h"
#include "ffn/exchange_links.h"
#include "ffn/tile_queue.h"

namespace tandem {

struct HomeGroup {
  // What one rank owes to the group.
  struct Part {
    bool asked = false;
    Ticket ticket = 0;
    OwnedBuffer sums;  // [rows of the part, hidden] of the reply dtype; all rows with allgather
  };

  // Makes room for groups of at most `max_rows` rows over at most `max_parts` ranks.
  Status prepare(const SplitSettings& settings, uint32_t max_rows, size_t max_parts);
  // Grows `buffer` to `rows` rows of `row_bytes` each; what it held is lost if it grows.
  static Status make_room(OwnedBuffer& buffer, uint32_t rows, size_t row_bytes);

  // Takes the tiles over, sets layer, class and rows, and gathers rows and routings. The rows of one tile
  // stay where they lie, in the request's slot. On error the tiles are taken over all the same.
  Status take(std::span<WaitingTile> from, const SplitSettings& settings);
  // The second half of it: again when tiles have gone.
  Status gather(const SplitSettings& settings);
  RoutingView routing(uint32_t top_k) const { return {ids, weights, top_k}; }

  bool prepared = false;
  std::vector<WaitingTile> tiles;
  LayerIndex layer = 0;
  RowClass row_class = RowClass::decode;
  uint32_t rows = 0;
  uint32_t serial = 0;
  bool replays = false;        // every tile named a capture size: so do the parts
  OwnedBuffer values, scales;  // [rows, hidden]: as they came, tile after tile
  ActivationView in;
  std::vector<int32_t> ids;     // [rows, top_k]
  std::vector<float> weights;   // [rows, top_k]
  std::vector<int32_t> tokens;  // [rows], where token ids travel
  Prepared dispatched;
  std::vector<uint8_t> shared_rows;  // [rows]: 1; the home adds the shared experts of all its rows
  ExchangeKind kind = ExchangeKind::alltoall;
  std::vector<Part> parts;  // as dispatched.parts
  TileView own;             // what this rank computes
  uint32_t unanswered = 0;
  OwnedBuffer out;  // [rows, hidden] of the reply dtype
  Instant started, own_done;
};

}  // namespace tandem
