#include "cli/trace_spans.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <vector>

#include "attention/dead_time.h"

namespace tandem {
namespace {

// Process ids in the file: ranks, not processes of a system. No deployment has as many attention ranks.
// An FFN rank's own record has a process of its own beside what attention ranks say of it.
constexpr uint32_t kFirstFfnProcess = 10001, kFirstFfnRecord = 20001;
// Thread ids: lanes from 1 on; an FFN rank has those of each attention rank beside each other.
constexpr uint32_t kThreadsOfARank = 1000, kEngineThread = 999;

// With what was measured: nanoseconds.
std::string microseconds(int64_t nanoseconds) {
  const char* sign = nanoseconds < 0 ? "-" : "";
  const int64_t size = nanoseconds < 0 ? -nanoseconds : nanoseconds;
  return fmt::format("{}{}.{:03}", sign, size / 1000, size % 1000);
}

std::string layer_text(uint16_t layer) {
  return layer == kNoTraceLayer ? "null" : std::to_string(layer);
}

// What viewers show instead of a process or thread id; of a process `thread` is 0.
std::string name_line(const char* what, int64_t process, int64_t thread, const std::string& name) {
  const std::string of_thread = thread == 0 ? std::string() : fmt::format(R"("tid":{},)", thread);
  return fmt::format(R"({{"ph":"M","name":"{}","pid":{},{}"args":{{"name":"{}"}}}})", what, process,
                     of_thread, name);
}

std::string sort_line(int64_t process) {
  return fmt::format(R"({{"ph":"M","name":"process_sort_index","pid":{},"args":{{"sort_index":{}}}}})",
                     process, process);
}

// Nanoseconds from the file's begin; `args`: the inside of a JSON object.
std::string span_line(int64_t begin, int64_t length, const std::string& name, const std::string& category,
                      int64_t process, int64_t thread, const std::string& args) {
  return fmt::format(R"({}{},"dur":{},"ph":"X","name":"{}","cat":"{}","pid":{},"tid":{},"args":{{{}}}}})",
                     kTimedLine, microseconds(begin), microseconds(length), name, category, process, thread,
                     args);
}

// A span on one thread of the file.
struct Slice {
  enum class Kind : uint8_t {
    step,
    operation,
    experts_here,
    wait,
    loop,
    sleep,
    answer,
    queue,
    experts,
    exchange
  };
  uint32_t process = 0, thread = 0;
  int64_t begin = 0, end = 0;
  Kind kind = Kind::step;
  TraceEvent event;  // what it is made of
};

class Slices {
 public:
  Slices(const TraceRing& ring, const TraceWindow& window, const TracedRank& rank)
      : names_(ring.names()),
        base_ns_(window.base_ns),
        rank_(rank),
        process_(static_cast<uint32_t>(rank.rank) + 1) {
    for (const TraceEvent& event : window.events) add(event);
    for_each_exchange(window.events, [this](const TraceEvent& exchange, std::span<const TraceEvent> answers) {
      for (const TraceEvent& answer : answers) add_answer(exchange, answer);
    });
    // A span before those inside it.
    std::ranges::sort(slices_, {}, [](const Slice& slice) {
      return std::tuple(slice.process, slice.thread, slice.begin, -slice.end, slice.kind);
    });
  }

  void write(const OnLine& line) {
    for (const auto& [process, name] : processes_) {
      line(name_line("process_name", process, 0, name));
      line(sort_line(process));
    }
    for (const auto& [key, name] : threads_) line(name_line("thread_name", key.first, key.second, name));
    for (const Slice& slice : slices_) line(text_of(slice));
  }

 private:
  void put(uint32_t process, uint32_t thread, int64_t begin, int64_t end, Slice::Kind kind,
           const TraceEvent& event) {
    slices_.push_back({process, thread, begin, end, kind, event});
  }

  void name_lane(const TraceEvent& event) {
    processes_[process_] =
        rank_.role == "attention" ? fmt::format("attention rank {}", rank_.rank) : rank_.role;
    threads_.try_emplace({process_, event.lane + 1u},
                         fmt::format("lane {}: {}", event.lane, row_class_name(event.row_class)));
  }

  void add(const TraceEvent& event) {
    const uint32_t lane = event.lane + 1u;
    switch (event.kind) {
      case TraceKind::step:
        name_lane(event);
        return put(process_, lane, event.begin_ns, event.end_ns, Slice::Kind::step, event);
      case TraceKind::operation:
        name_lane(event);
        last_operation_[event.lane] = event.end_ns;
        return put(process_, lane, event.begin_ns, event.end_ns, Slice::Kind::operation, event);
      case TraceKind::exchange: {
        if (event.rank == kTraceLocal)
          return put(process_, lane, event.begin_ns, event.arrived_ns, Slice::Kind::experts_here, event);
        const int64_t begin = std::max(event.begin_ns, last_operation_[event.lane]);
        if (begin < event.end_ns) put(process_, lane, begin, event.end_ns, Slice::Kind::wait, event);
        return;
      }
      case TraceKind::loop:
      case TraceKind::sleep:
        threads_[{process_, kEngineThread}] = "engine";
        return put(process_, kEngineThread, event.begin_ns, event.end_ns,
                   event.kind == TraceKind::loop ? Slice::Kind::loop : Slice::Kind::sleep, event);
      case TraceKind::reply:
      case TraceKind::call:
      case TraceKind::wait:
        return;
    }
  }

  void add_answer(const TraceEvent& exchange, const TraceEvent& answer) {
    if (answer.rank == kTraceLocal || answer.rank == kTraceNobody) return;
    const AnswerParts parts = answer_parts(answer, exchange.begin_ns);
    const uint32_t process = kFirstFfnProcess + answer.rank;
    const uint32_t thread = static_cast<uint32_t>(rank_.rank) * kThreadsOfARank + answer.lane + 1u;
    processes_[process] = fmt::format("FFN rank {} (placed by attention's clock)", answer.rank);
    threads_[{process, thread}] = fmt::format("for attention rank {}, lane {}", rank_.rank, answer.lane);
    TraceEvent event = answer;
    event.begin_ns = exchange.begin_ns;
    event.layer = exchange.layer;
    int64_t at = exchange.begin_ns + parts.wire_there;
    put(process, thread, at, at + parts.queue + parts.experts + parts.exchange, Slice::Kind::answer, event);
    const auto part = [&](int64_t length, Slice::Kind kind) {
      if (length > 0) put(process, thread, at, at + length, kind, event);
      at += length;
    };
    part(parts.queue, Slice::Kind::queue);
    part(parts.experts, Slice::Kind::experts);
    part(parts.exchange, Slice::Kind::exchange);
  }

  std::string text_of(const Slice& slice) const {
    const TraceEvent& event = slice.event;
    const std::string layer = layer_text(event.layer);
    std::string name, category, args;
    const auto times = [&] {
      return fmt::format(
          R"("layer":{},"ffn_rank":{},"queue_us":{},"compute_us":{},"exchange_us":{},"residence_us":{},"round_trip_us":{})",
          layer, event.rank == kTraceNobody ? "null" : std::to_string(event.rank), event.queue_us,
          event.compute_us, event.exchange_us, event.residence_us,
          microseconds(event.arrived_ns - event.begin_ns));
    };
    switch (slice.kind) {
      case Slice::Kind::step:
        name = fmt::format("{} step", row_class_name(event.row_class));
        category = "step";
        args = fmt::format(R"("step":{},"rows":{},"cancelled":{})", event.step, event.rows, event.rank != 0);
        break;
      case Slice::Kind::operation:
        name = names_[event.name];
        category = "attention";
        args = fmt::format(R"("layer":{},"step":{})", layer, event.step);
        break;
      case Slice::Kind::experts_here:
        name = "experts";
        category = "ffn";
        args = fmt::format(R"("layer":{})", layer);
        break;
      case Slice::Kind::wait:
        name = "wait";
        category = "wait";
        args = times();
        break;
      case Slice::Kind::loop:
        name = category = "loop";
        break;
      case Slice::Kind::sleep:
        name = category = "sleep";
        break;
      case Slice::Kind::answer:
        name = event.layer == kNoTraceLayer ? "no layer" : fmt::format("layer {}", event.layer);
        category = "ffn";
        args = times();
        break;
      case Slice::Kind::queue:
        name = category = "queue";
        break;
      case Slice::Kind::experts:
        name = "experts";
        category = "ffn";
        break;
      case Slice::Kind::exchange:
        name = category = "exchange";
        break;
    }
    return span_line(slice.begin - base_ns_, slice.end - slice.begin, name, category, slice.process,
                     slice.thread, args);
  }

  const std::vector<std::string>& names_;
  const int64_t base_ns_;
  const TracedRank& rank_;
  const uint32_t process_;
  std::vector<Slice> slices_;
  std::map<uint16_t, int64_t> last_operation_;  // by lane: its end
  std::map<uint32_t, std::string> processes_;
  std::map<std::pair<uint32_t, uint32_t>, std::string> threads_;
};

// An FFN rank's own record: one thread, on which a decode call may lie inside a prompt's.
void write_calls(const TraceWindow& window, const TracedRank& rank, const OnLine& line) {
  const int64_t process = kFirstFfnRecord + rank.rank;
  line(name_line("process_name", process, 0, fmt::format("FFN rank {} (its own record)", rank.rank)));
  line(sort_line(process));
  line(name_line("thread_name", process, 1, "calls of the experts"));
  std::vector<TraceEvent> events = window.events;
  std::ranges::sort(events, {},
                    [](const TraceEvent& event) { return std::pair(event.begin_ns, -event.end_ns); });
  for (const TraceEvent& event : events) {
    const bool call = event.kind == TraceKind::call;
    const std::string name = call ? fmt::format("layer {} {}", event.layer, row_class_name(event.row_class))
                                  : std::string(event.rank != 0 ? "other ranks" : "idle");
    const std::string args =
        call ? fmt::format(R"("layer":{},"rows":{},"requests":{},"clients":{},"replayed":{})", event.layer,
                           event.rows, event.lane, event.rank, event.name != 0)
             : std::string();
    line(span_line(event.begin_ns - window.base_ns, event.end_ns - event.begin_ns, name,
                   call ? "ffn" : "wait", process, 1, args));
  }
}

}  // namespace

const char* row_class_name(uint8_t row_class) {
  constexpr std::array kNames = {"decode", "draft", "prefill", "profile"};
  return row_class < kNames.size() ? kNames[row_class] : "other";
}

void write_spans(const TraceRing& ring, const TraceWindow& window, const TracedRank& rank,
                 const OnLine& line) {
  if (rank.role == "ffn") return write_calls(window, rank, line);
  Slices(ring, window, rank).write(line);
}

}  // namespace tandem
