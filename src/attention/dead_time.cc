#include "attention/dead_time.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

namespace tandem {
namespace {

// What the engine's thread did, without a gap or an overlap over the window.
struct Piece {
  enum class Kind : uint8_t { operation, loop, sleep, nothing };
  int64_t begin = 0, end = 0;
  Kind kind = Kind::nothing;
  uint16_t lane = 0, layer = kNoTraceLayer;
};

struct Exchange {
  int64_t submitted = 0, arrived = 0;
  uint16_t layer = kNoTraceLayer;
  bool local = false, failed = false;
  AnswerParts parts;
};

struct Step {
  int64_t begin = 0, end = 0;
};

struct LaneEvents {
  std::vector<Exchange> exchanges;  // one at a time, ascending
  std::vector<Step> steps;          // ascending, disjoint; the last may not be done
  uint8_t row_class = 0;
  uint64_t ended_steps = 0, rows = 0;
  std::optional<int64_t> open_since;  // of a step whose end has not come
  // Of a walk over pieces, which ascend: the first that has not ended. The views walk each for itself.
  struct Cursor {
    size_t exchange = 0, step = 0;
  };
  Cursor of_rank, of_lane;
  TimeParts parts;
  TimeParts before_operation;  // since the last operation of the lane: of the layer that comes next
};

class Account {
 public:
  Account(std::span<const TraceEvent> events, int64_t complete_from) : events_(events) {
    find_window(complete_from);
    if (result_.end_ns <= result_.begin_ns) return;
    collect();
    lay_out_pieces();
    for (const Piece& piece : pieces_) {
      count_rank(piece);
      for (auto& [lane, mine] : lanes_) count_lane(lane, mine, piece);
    }
    finish();
  }
  DeadTime take() { return std::move(result_); }

 private:
  void find_window(int64_t complete_from) {
    int64_t first = INT64_MAX, last = INT64_MIN;
    for (const TraceEvent& event : events_) {
      if (!is_of_a_step(event)) continue;
      first = std::min(first, event.begin_ns);
      last = std::max(last, event.end_ns);
    }
    if (last == INT64_MIN) return;
    result_.begin_ns = std::min(std::max(first, complete_from), last);
    result_.end_ns = last;
  }

  static bool is_of_a_step(const TraceEvent& event) {
    return event.kind == TraceKind::step || event.kind == TraceKind::operation ||
           event.kind == TraceKind::exchange;
  }

  void collect() {
    for (const TraceEvent& event : events_) {
      if (event.kind == TraceKind::step) {
        add_step(event);
      } else if (is_of_a_step(event)) {
        LaneEvents& lane = lanes_[event.lane];
        if (!lane.open_since) lane.open_since = event.begin_ns;
        if (lane.steps.empty()) lane.row_class = event.row_class;
      }
    }
    for (auto& [number, lane] : lanes_) {
      if (lane.open_since) lane.steps.push_back({*lane.open_since, result_.end_ns});
    }
    for_each_exchange(events_, [this](const TraceEvent& event, std::span<const TraceEvent> answers) {
      add_exchange(event, answers);
    });
  }

  void add_exchange(const TraceEvent& event, std::span<const TraceEvent> answers) {
    Exchange exchange;
    exchange.submitted = event.begin_ns;
    exchange.arrived = std::max(event.begin_ns, event.arrived_ns);
    exchange.layer = event.layer;
    exchange.local = event.rank == kTraceLocal;
    exchange.failed = event.rank == kTraceNobody;
    if (!exchange.failed) exchange.parts = answer_parts(event, event.begin_ns);
    lanes_[event.lane].exchanges.push_back(exchange);
    if (exchange.submitted < result_.begin_ns || exchange.arrived > result_.end_ns) return;
    ++result_.exchanges;
    if (exchange.failed) {
      ++result_.failed_exchanges;
      return;
    }
    for (const TraceEvent& answer : answers) add_answer(event, answer, exchange);
  }

  void add_answer(const TraceEvent& event, const TraceEvent& answer, const Exchange& exchange) {
    AnswerTime& row = answers_[{event.lane, event.layer, answer.rank}];
    const AnswerParts parts = answer_parts(answer, exchange.submitted);
    result_.corrected += parts.corrected ? 1 : 0;
    ++row.answers;
    row.last += answer.rank == event.rank ? 1 : 0;
    row.parts.experts += parts.experts;
    row.parts.queue += parts.queue;
    row.parts.exchange += parts.exchange;
    row.parts.wire += parts.wire_there + parts.wire_back;
    row.parts.bubble += exchange.arrived - std::max(exchange.submitted, answer.arrived_ns);
  }

  void add_step(const TraceEvent& event) {
    LaneEvents& lane = lanes_[event.lane];
    lane.open_since.reset();
    if (event.end_ns <= result_.begin_ns) return;
    if (lane.steps.empty()) lane.row_class = event.row_class;
    // A head that runs again continues the step: its rows were counted.
    lane.rows += event.rows;
    lane.steps.push_back({event.begin_ns, event.end_ns});
    ++lane.ended_steps;
    ++result_.steps;
    result_.cancelled_steps += event.rank != 0 ? 1 : 0;
  }

  // ---- the thread's own time ----

  void add_piece(Piece piece) {
    piece.begin = std::max(piece.begin, std::max(covered_, result_.begin_ns));
    piece.end = std::min(piece.end, result_.end_ns);
    if (piece.end <= piece.begin) return;
    const int64_t gap = std::max(covered_, result_.begin_ns);
    if (gap < piece.begin) pieces_.push_back({gap, piece.begin, Piece::Kind::nothing});
    covered_ = piece.end;
    pieces_.push_back(piece);
  }

  void lay_out_pieces() {
    std::vector<Piece> operations, around;
    for (const TraceEvent& event : events_) {
      Piece piece{event.begin_ns, event.end_ns, Piece::Kind::operation, event.lane, event.layer};
      if (event.kind == TraceKind::operation) operations.push_back(piece);
      if (event.kind != TraceKind::loop && event.kind != TraceKind::sleep) continue;
      piece.kind = event.kind == TraceKind::loop ? Piece::Kind::loop : Piece::Kind::sleep;
      around.push_back(piece);
    }
    covered_ = result_.begin_ns;
    auto next = operations.begin();
    for (Piece span : around) {
      for (; next != operations.end() && next->begin < span.end; ++next) {
        if (span.begin < next->begin) {
          Piece before = span;
          before.end = next->begin;
          add_piece(before);
        }
        add_piece(*next);
        span.begin = std::max(span.begin, next->end);
      }
      add_piece(span);
    }
    for (; next != operations.end(); ++next) add_piece(*next);
    if (covered_ < result_.end_ns) pieces_.push_back({covered_, result_.end_ns, Piece::Kind::nothing});
  }

  // ---- what a time counts as ----

  // [begin, end) of a round trip, by its parts.
  static TimeParts of_exchange(const Exchange& exchange, int64_t begin, int64_t end) {
    TimeParts parts;
    if (exchange.failed) {
      parts.bubble = end - begin;
      return parts;
    }
    int64_t at = exchange.submitted;
    const auto take = [&](int64_t length, int64_t& into) {
      const int64_t from = std::max(at, begin), to = std::min(at + length, end);
      if (to > from) into += to - from;
      at += length;
    };
    take(exchange.parts.wire_there, parts.wire);
    take(exchange.parts.queue, parts.queue);
    take(exchange.parts.experts, parts.experts);
    take(exchange.parts.exchange, parts.exchange);
    take(exchange.parts.wire_back, parts.wire);
    return parts;
  }

  // The exchange that is out at `at`, or the next one; null: there is none.
  static const Exchange* exchange_from(const LaneEvents& lane, LaneEvents::Cursor& cursor, int64_t at) {
    const std::vector<Exchange>& all = lane.exchanges;
    while (cursor.exchange < all.size() && all[cursor.exchange].arrived <= at) ++cursor.exchange;
    return cursor.exchange < all.size() ? &all[cursor.exchange] : nullptr;
  }
  static const Step* step_from(const LaneEvents& lane, LaneEvents::Cursor& cursor, int64_t at) {
    const std::vector<Step>& all = lane.steps;
    while (cursor.step < all.size() && all[cursor.step].end <= at) ++cursor.step;
    return cursor.step < all.size() ? &all[cursor.step] : nullptr;
  }

  // An operation's time is attention's, but for experts that computed within it.
  static TimeParts of_operation(const LaneEvents& lane, LaneEvents::Cursor& cursor, const Piece& piece) {
    TimeParts parts;
    int64_t at = piece.begin;
    while (at < piece.end) {
      const Exchange* exchange = exchange_from(lane, cursor, at);
      if (exchange == nullptr || !exchange->local || exchange->submitted >= piece.end) break;
      const int64_t from = std::max(at, exchange->submitted), to = std::min(piece.end, exchange->arrived);
      parts.attention += from - at;
      parts.add(of_exchange(*exchange, from, to));
      at = to;
    }
    parts.attention += piece.end - at;
    return parts;
  }

  void count_lane(uint16_t lane, LaneEvents& mine, const Piece& piece) {
    if (piece.kind == Piece::Kind::operation && piece.lane == lane) {
      const TimeParts parts = of_operation(mine, mine.of_lane, piece);
      TimeParts& layer = layers_[{lane, piece.layer}];
      layer.add(parts);
      layer.add(mine.before_operation);
      mine.parts.add(parts);
      mine.before_operation = {};
      return;
    }
    for (int64_t at = piece.begin; at < piece.end;) {
      int64_t until = piece.end;
      const Step* step = step_from(mine, mine.of_lane, at);
      if (step == nullptr || step->begin > at) {
        flush(lane, mine);
        if (step != nullptr) until = std::min(until, step->begin);
        mine.parts.idle += until - at;
        at = until;
        continue;
      }
      until = std::min(until, step->end);
      const Exchange* exchange = exchange_from(mine, mine.of_lane, at);
      if (exchange != nullptr && exchange->submitted <= at) {
        until = std::min(until, exchange->arrived);
        const TimeParts parts = of_exchange(*exchange, at, until);
        layers_[{lane, exchange->layer}].add(parts);
        mine.parts.add(parts);
        at = until;
        continue;
      }
      if (exchange != nullptr) until = std::min(until, std::max(at + 1, exchange->submitted));
      TimeParts parts;
      (piece.kind == Piece::Kind::operation ? parts.other_lanes
       : piece.kind == Piece::Kind::loop    ? parts.loop
       : piece.kind == Piece::Kind::sleep   ? parts.bubble
                                            : parts.unaccounted) = until - at;
      mine.before_operation.add(parts);
      mine.parts.add(parts);
      at = until;
    }
  }

  // No operation of the step follows.
  void flush(uint16_t lane, LaneEvents& mine) {
    if (mine.before_operation.total() == 0) return;
    layers_[{lane, kNoTraceLayer}].add(mine.before_operation);
    mine.before_operation = {};
  }

  void count_rank(const Piece& piece) {
    TimeParts& rank = result_.rank;
    if (piece.kind == Piece::Kind::operation) {
      LaneEvents& mine = lanes_[piece.lane];
      return rank.add(of_operation(mine, mine.of_rank, piece));
    }
    int64_t at = piece.begin;
    while (at < piece.end) {
      // Submitting is an operation: whatever is out within this piece was out at its beginning.
      const Exchange* first = nullptr;
      for (auto& [lane, mine] : lanes_) {
        const Exchange* exchange = exchange_from(mine, mine.of_rank, at);
        if (exchange == nullptr || exchange->submitted > at) continue;
        if (first == nullptr || exchange->arrived < first->arrived) first = exchange;
      }
      if (first == nullptr) break;
      const int64_t until = std::min(piece.end, first->arrived);
      rank.add(of_exchange(*first, at, until));
      at = until;
    }
    const int64_t left = piece.end - at;
    if (left == 0) return;
    const bool in_step = std::ranges::any_of(lanes_, [&](auto& entry) {
      const Step* step = step_from(entry.second, entry.second.of_rank, at);
      return step != nullptr && step->begin <= at;
    });
    (piece.kind == Piece::Kind::loop    ? rank.loop
     : piece.kind == Piece::Kind::sleep ? (in_step ? rank.bubble : rank.idle)
                                        : rank.unaccounted) += left;
  }

  void finish() {
    for (auto& [lane, mine] : lanes_) {
      flush(lane, mine);
      if (!mine.steps.empty())
        result_.lanes.push_back({lane, mine.row_class, mine.ended_steps, mine.rows, mine.parts});
    }
    for (const auto& [key, parts] : layers_) {
      if (parts.total() > 0) result_.layers.push_back({key.first, key.second, parts});
    }
    for (const auto& [key, row] : answers_) {
      result_.answers.push_back(row);
      std::tie(result_.answers.back().lane, result_.answers.back().layer, result_.answers.back().rank) = key;
    }
  }

  std::span<const TraceEvent> events_;
  DeadTime result_;
  std::map<uint16_t, LaneEvents> lanes_;
  std::map<std::pair<uint16_t, uint16_t>, TimeParts> layers_;               // lane, layer
  std::map<std::tuple<uint16_t, uint16_t, uint16_t>, AnswerTime> answers_;  // lane, layer, rank
  std::vector<Piece> pieces_;
  int64_t covered_ = 0;
};

}  // namespace

void TimeParts::add(const TimeParts& other) {
  attention += other.attention;
  experts += other.experts;
  queue += other.queue;
  exchange += other.exchange;
  wire += other.wire;
  bubble += other.bubble;
  other_lanes += other.other_lanes;
  loop += other.loop;
  idle += other.idle;
  unaccounted += other.unaccounted;
}

void for_each_exchange(std::span<const TraceEvent> events, const OnExchange& on_exchange) {
  std::map<uint16_t, std::vector<TraceEvent>> replies;  // to the request that a lane has out
  for (const TraceEvent& event : events) {
    if (event.kind == TraceKind::reply) replies[event.lane].push_back(event);
    if (event.kind == TraceKind::step) replies[event.lane].clear();
    if (event.kind != TraceKind::exchange) continue;
    std::vector<TraceEvent>& mine = replies[event.lane];
    on_exchange(event, mine.empty() ? std::span(&event, 1) : std::span<const TraceEvent>(mine));
    mine.clear();
  }
}

AnswerParts answer_parts(const TraceEvent& answer, int64_t submitted_ns) {
  constexpr int64_t kMicrosecond = 1000;
  AnswerParts parts;
  const int64_t round_trip = std::max<int64_t>(0, answer.arrived_ns - submitted_ns);
  if (answer.rank == kTraceLocal) {  // in this process: there is nothing between the two
    parts.experts = round_trip;
    return parts;
  }
  const int64_t said = answer.residence_us * kMicrosecond;
  const int64_t residence = std::min(said, round_trip);
  parts.experts = std::min(answer.compute_us * kMicrosecond, residence);
  parts.exchange = std::min(answer.exchange_us * kMicrosecond, residence - parts.experts);
  parts.queue = residence - parts.experts - parts.exchange;
  parts.wire_there = (round_trip - residence) / 2;
  parts.wire_back = round_trip - residence - parts.wire_there;
  parts.corrected = said > round_trip;
  return parts;
}

DeadTime account_dead_time(std::span<const TraceEvent> events, int64_t complete_from_ns) {
  return Account(events, complete_from_ns).take();
}

}  // namespace tandem
