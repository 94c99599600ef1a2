// InFlightTable: the requests that an attention rank has handed to a connector and whose replies are not all
// there: which tiles still have to be sent, which were answered, and which reply belongs to whom. A plain
// data structure: its owner locks. Sized at creation; entries do not move; requests of at most 64 tiles
// allocate nothing, larger ones nothing once the largest was seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "afd/frame.h"
#include "afd/tile_frame.h"
#include "base/clock.h"
#include "moe/ffn_port.h"

namespace tandem {

struct InFlightRequest {
  bool used = false;
  bool writing =
      false;  // somebody copies a reply into request.out without the lock: not to be closed meanwhile
  Ticket ticket = 0;
  uint16_t attempt = 0;
  FfnRequest request;
  RequestPart part;       // which rows of request.in, and how they travel
  uint32_t tiles = 0;     // of kMaxTileRows rows, the last one may have fewer
  uint32_t sent = 0;      // tiles [0, sent) were sent
  uint32_t answered = 0;  // how many
  std::vector<bool> got;  // [tiles]
  FfnTimes times;         // of the slowest tile, each part on its own
  FfnTimes last;          // of the tile that was answered last
  Instant submitted;

  bool is_prefill() const {
    return request.row_class == RowClass::prefill || request.row_class == RowClass::profile;
  }
  uint32_t tile_begin(uint32_t tile) const { return tile * kMaxTileRows; }
  uint32_t tile_rows(uint32_t tile) const;
};

class InFlightTable {
 public:
  // Tickets differ over all tables of the process's life only within one table.
  explicit InFlightTable(size_t capacity);

  // Null when `capacity` requests are in flight. request.rows > 0.
  InFlightRequest* open(const FfnRequest& request, Instant at);
  void close(InFlightRequest& entry);
  InFlightRequest* find(Ticket ticket);

  // The request whose next tile goes out first: decode before prefill, then in order of submission. Prefill
  // tiles are held back while `max_prefill` of them are unanswered, so that a decode tile finds a credit.
  // Null when there is none.
  InFlightRequest* next_to_send(uint32_t max_prefill);
  void mark_sent(InFlightRequest& entry);

  // The request that a reply answers: same step, layer, lane, attempt, tile count and row count, tile sent
  // and not yet answered. Null: a late or foreign reply, to be dropped.
  InFlightRequest* match(const FrameHeader& reply);
  // Returns true when this was the last tile.
  bool mark_answered(InFlightRequest& entry, uint32_t tile, const FfnTimes& times);

  size_t in_flight() const { return in_flight_; }
  size_t capacity() const { return entries_.size(); }
  std::vector<InFlightRequest>& entries() { return entries_; }

 private:
  std::vector<InFlightRequest> entries_;
  size_t in_flight_ = 0;
  size_t unsent_tiles_ = 0;
  uint32_t prefill_unanswered_ = 0;
  uint64_t next_serial_ = 1;
};

}  // namespace tandem
