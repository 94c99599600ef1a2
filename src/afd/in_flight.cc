#include "afd/in_flight.h"

#include <algorithm>

namespace tandem {
namespace {

// A word of bits: 4096 rows. No decode step has more, and whichever entry it takes first, it allocates
// nothing.
constexpr size_t kFewTiles = 64;

}  // namespace

uint32_t InFlightRequest::tile_rows(uint32_t tile) const {
  return std::min(kMaxTileRows, request.rows - tile_begin(tile));
}

InFlightTable::InFlightTable(size_t capacity) : entries_(capacity) {
  for (InFlightRequest& entry : entries_) entry.got.reserve(kFewTiles);
}

InFlightRequest* InFlightTable::open(const FfnRequest& request, Instant at) {
  const auto free = std::ranges::find_if(entries_, [](const InFlightRequest& entry) { return !entry.used; });
  if (free == entries_.end()) return nullptr;
  InFlightRequest& entry = *free;
  const uint64_t serial = next_serial_++;
  entry.used = true;
  entry.writing = false;
  entry.ticket = serial * entries_.size() + static_cast<uint64_t>(free - entries_.begin());
  entry.attempt = static_cast<uint16_t>(serial);
  entry.request = request;
  entry.part = {};
  entry.tiles = (request.rows + kMaxTileRows - 1) / kMaxTileRows;
  entry.sent = entry.answered = 0;
  entry.got.assign(entry.tiles, false);
  entry.times = entry.last = {};
  entry.submitted = at;
  ++in_flight_;
  unsent_tiles_ += entry.tiles;
  return &entry;
}

void InFlightTable::close(InFlightRequest& entry) {
  unsent_tiles_ -= entry.tiles - entry.sent;
  if (entry.is_prefill()) prefill_unanswered_ -= entry.sent - entry.answered;
  entry.used = false;
  entry.request = {};
  entry.part = {};
  --in_flight_;
}

InFlightRequest* InFlightTable::find(Ticket ticket) {
  if (entries_.empty()) return nullptr;
  InFlightRequest& entry = entries_[ticket % entries_.size()];
  return entry.used && entry.ticket == ticket ? &entry : nullptr;
}

InFlightRequest* InFlightTable::next_to_send(uint32_t max_prefill) {
  if (unsent_tiles_ == 0) return nullptr;
  InFlightRequest* best = nullptr;
  for (InFlightRequest& entry : entries_) {
    if (!entry.used || entry.sent == entry.tiles) continue;
    if (entry.is_prefill() && prefill_unanswered_ >= max_prefill) continue;
    const auto rank = [](const InFlightRequest& r) { return std::pair(r.is_prefill(), r.ticket); };
    if (best == nullptr || rank(entry) < rank(*best)) best = &entry;
  }
  return best;
}

void InFlightTable::mark_sent(InFlightRequest& entry) {
  ++entry.sent;
  --unsent_tiles_;
  if (entry.is_prefill()) ++prefill_unanswered_;
}

InFlightRequest* InFlightTable::match(const FrameHeader& reply) {
  for (InFlightRequest& entry : entries_) {
    if (!entry.used || entry.attempt != reply.attempt || entry.request.step != reply.step ||
        entry.request.layer != reply.layer || entry.request.lane != reply.lane ||
        entry.tiles != reply.tiles) {
      continue;
    }
    const bool expected =
        reply.tile < entry.sent && !entry.got[reply.tile] && reply.rows == entry.tile_rows(reply.tile);
    return expected ? &entry : nullptr;
  }
  return nullptr;
}

bool InFlightTable::mark_answered(InFlightRequest& entry, uint32_t tile, const FfnTimes& times) {
  entry.got[tile] = true;
  ++entry.answered;
  if (entry.is_prefill()) --prefill_unanswered_;
  entry.times.queue_us = std::max(entry.times.queue_us, times.queue_us);
  entry.times.compute_us = std::max(entry.times.compute_us, times.compute_us);
  entry.times.exchange_us = std::max(entry.times.exchange_us, times.exchange_us);
  entry.times.residence_us = std::max(entry.times.residence_us, times.residence_us);
  entry.last = times;
  return entry.answered == entry.tiles;
}

}  // namespace tandem
