// CallTimes: where the time of an FFN rank went, from the events of its TraceRing. A pure function of them.
// The parts of a window add up to it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/trace_ring.h"

namespace tandem {

// Nanoseconds.
struct CallParts {
  int64_t decode = 0, prefill = 0;  // in calls of the experts of such rows (drafts are decode)
  int64_t exchange = 0;             // no call, and other FFN ranks owe answers
  int64_t idle = 0;                 // no call, and nobody asks for one
  int64_t between = 0;              // replies, sums of other ranks' answers, choosing what is next

  int64_t total() const { return decode + prefill + exchange + idle + between; }
};

struct LayerCalls {
  uint16_t layer = 0;
  uint64_t calls = 0, requests = 0, rows = 0, clients = 0;  // clients: summed over calls
  int64_t decode = 0, prefill = 0;                          // nanoseconds
};

struct CallTimes {
  int64_t begin_ns = 0, end_ns = 0;  // from the first event's begin to the last one's end
  CallParts parts;
  uint64_t calls = 0, replayed = 0, requests = 0, rows = 0, clients = 0;
  std::vector<LayerCalls> layers;  // ascending

  int64_t wall_ns() const { return end_ns - begin_ns; }
};

// `events` in the order of TraceRing::events, of an FFN rank. Nothing before `complete_from_ns` is counted.
CallTimes account_calls(std::span<const TraceEvent> events, int64_t complete_from_ns = INT64_MIN);

}  // namespace tandem
