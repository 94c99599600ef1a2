#include "ffn/call_times.h"

#include <algorithm>
#include <map>

#include "ffn/ffn_scheduler.h"

namespace tandem {

CallTimes account_calls(std::span<const TraceEvent> events, int64_t complete_from_ns) {
  CallTimes times;
  if (events.empty()) return times;
  times.end_ns = events.back().end_ns;
  times.begin_ns = times.end_ns;
  for (const TraceEvent& event : events) times.begin_ns = std::min(times.begin_ns, event.begin_ns);
  times.begin_ns = std::clamp(complete_from_ns, times.begin_ns, times.end_ns);

  struct Span {
    int64_t begin = 0, length = 0;
  };
  std::vector<Span> outer;  // ascending; what lies inside a later one was taken out
  std::map<uint16_t, LayerCalls> layers;
  for (const TraceEvent& event : events) {
    if (event.end_ns <= times.begin_ns) continue;
    const int64_t begin = std::max(event.begin_ns, times.begin_ns);
    int64_t own = event.end_ns - begin;
    while (!outer.empty() && outer.back().begin >= begin) {
      own -= outer.back().length;
      outer.pop_back();
    }
    outer.push_back({begin, event.end_ns - begin});
    if (event.kind == TraceKind::wait) {
      (event.rank != 0 ? times.parts.exchange : times.parts.idle) += own;
      continue;
    }
    const bool prefill = is_prefill(static_cast<RowClass>(event.row_class));
    (prefill ? times.parts.prefill : times.parts.decode) += own;
    ++times.calls;
    times.replayed += event.name;
    times.requests += event.lane;
    times.rows += event.rows;
    times.clients += event.rank;
    LayerCalls& layer = layers[event.layer];
    layer.layer = event.layer;
    ++layer.calls;
    layer.requests += event.lane;
    layer.rows += event.rows;
    layer.clients += event.rank;
    (prefill ? layer.prefill : layer.decode) += own;
  }
  times.parts.between = times.wall_ns();
  for (const Span& span : outer) times.parts.between -= span.length;
  for (const auto& [number, layer] : layers) times.layers.push_back(layer);
  return times;
}

}  // namespace tandem
