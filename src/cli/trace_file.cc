#include "cli/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <tuple>

#include "attention/dead_time.h"
#include "moe/ffn_port.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

// Process ids in the file: ranks, not processes of a system. No deployment has as many attention ranks.
constexpr uint32_t kFirstFfnProcess = 10001;
// Thread ids: lanes from 1 on; an FFN rank has those of each attention rank beside each other.
constexpr uint32_t kThreadsOfARank = 1000, kEngineThread = 999;

constexpr std::string_view kHead = R"({"displayTimeUnit":"ns","traceEvents":[)";
constexpr std::string_view kTail = R"(],"otherData":{"dead_time":)";
constexpr std::string_view kTimed = R"({"ts":)";

const char* class_name(uint8_t row_class) {
  constexpr std::array kNames = {"decode", "draft", "prefill", "profile"};
  return row_class < kNames.size() ? kNames[row_class] : "other";
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
  Slices(const TraceRing& ring, const std::vector<TraceEvent>& events, const TracedRank& rank)
      : ring_(ring), rank_(rank), process_(static_cast<uint32_t>(rank.rank) + 1) {
    for (const TraceEvent& event : events) add(event);
    for_each_exchange(events, [this](const TraceEvent& exchange, std::span<const TraceEvent> answers) {
      for (const TraceEvent& answer : answers) add_answer(exchange, answer);
    });
    // A span before those inside it.
    std::ranges::sort(slices_, {}, [](const Slice& slice) {
      return std::tuple(slice.process, slice.thread, slice.begin, -slice.end, slice.kind);
    });
  }

  // One JSON object a line, with commas between them.
  void write(std::FILE* file) {
    const char* separator = "\n";
    const auto line = [&](const std::string& text) {
      std::fputs(separator, file);
      std::fwrite(text.data(), 1, text.size(), file);
      separator = ",\n";
    };
    for (const auto& [process, name] : processes_) {
      line(fmt::format(R"({{"ph":"M","name":"process_name","pid":{},"args":{{"name":"{}"}}}})", process,
                       name));
      line(fmt::format(R"({{"ph":"M","name":"process_sort_index","pid":{},"args":{{"sort_index":{}}}}})",
                       process, process));
    }
    for (const auto& [key, name] : threads_)
      line(fmt::format(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}})",
                       key.first, key.second, name));
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
                         fmt::format("lane {}: {}", event.lane, class_name(event.row_class)));
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

  // Microseconds from the start of the recording, with what ring and lanes have measured: nanoseconds.
  static std::string microseconds(int64_t nanoseconds) {
    const char* sign = nanoseconds < 0 ? "-" : "";
    const int64_t size = nanoseconds < 0 ? -nanoseconds : nanoseconds;
    return fmt::format("{}{}.{:03}", sign, size / 1000, size % 1000);
  }

  std::string text_of(const Slice& slice) const {
    const TraceEvent& event = slice.event;
    const std::string layer =
        event.layer == kNoTraceLayer ? std::string("null") : std::to_string(event.layer);
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
        name = fmt::format("{} step", class_name(event.row_class));
        category = "step";
        args = fmt::format(R"("step":{},"rows":{},"cancelled":{})", event.step, event.rows, event.rank != 0);
        break;
      case Slice::Kind::operation:
        name = ring_.names()[event.name];
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
    return fmt::format(R"({}{},"dur":{},"ph":"X","name":"{}","cat":"{}","pid":{},"tid":{},"args":{{{}}}}})",
                       kTimed, microseconds(slice.begin - ring_.started_ns()),
                       microseconds(slice.end - slice.begin), name, category, slice.process, slice.thread,
                       args);
  }

  const TraceRing& ring_;
  const TracedRank& rank_;
  const uint32_t process_;
  std::vector<Slice> slices_;
  std::map<uint16_t, int64_t> last_operation_;  // by lane: its end
  std::map<uint32_t, std::string> processes_;
  std::map<std::pair<uint32_t, uint32_t>, std::string> threads_;
};

// The parts of times, in the order of tables.
struct PartName {
  const char* key;
  const char* heading;
  int64_t TimeParts::* part;
};
constexpr std::array kParts = {
    PartName{"attention_ns", "attention", &TimeParts::attention},
    PartName{"experts_ns", "experts", &TimeParts::experts},
    PartName{"queue_ns", "queue", &TimeParts::queue},
    PartName{"exchange_ns", "exchange", &TimeParts::exchange},
    PartName{"wire_ns", "wire", &TimeParts::wire},
    PartName{"bubble_ns", "bubble", &TimeParts::bubble},
    PartName{"other_lanes_ns", "others", &TimeParts::other_lanes},
    PartName{"loop_ns", "loop", &TimeParts::loop},
    PartName{"idle_ns", "idle", &TimeParts::idle},
    PartName{"unaccounted_ns", "unknown", &TimeParts::unaccounted},
};

Json parts_json(const TimeParts& parts) {
  Json json;
  for (const PartName& part : kParts) json[part.key] = parts.*part.part;
  return json;
}

Json layer_json(uint16_t layer) {
  return layer == kNoTraceLayer ? Json() : Json(layer);
}

Json dead_time_json(const TraceRing& ring, const DeadTime& time, const TracedRank& rank, size_t events) {
  Json lanes = Json::array(), layers = Json::array(), answers = Json::array();
  for (const LaneTime& lane : time.lanes) {
    lanes.push_back({{"lane", lane.lane},
                     {"class", class_name(lane.row_class)},
                     {"steps", lane.steps},
                     {"rows", lane.rows},
                     {"parts", parts_json(lane.parts)}});
  }
  for (const LayerTime& layer : time.layers)
    layers.push_back(
        {{"lane", layer.lane}, {"layer", layer_json(layer.layer)}, {"parts", parts_json(layer.parts)}});
  for (const AnswerTime& answer : time.answers) {
    answers.push_back({{"lane", answer.lane},
                       {"layer", layer_json(answer.layer)},
                       {"ffn_rank", answer.rank == kTraceLocal ? Json("local") : Json(answer.rank)},
                       {"answers", answer.answers},
                       {"last", answer.last},
                       {"parts", parts_json(answer.parts)}});
  }
  return {{"role", rank.role},
          {"rank", rank.rank},
          {"started_wall_ns", ring.started_wall_ns()},
          {"wall_ns", time.wall_ns()},
          {"events", events},
          {"dropped_events", ring.dropped()},
          {"steps", time.steps},
          {"cancelled_steps", time.cancelled_steps},
          {"exchanges", time.exchanges},
          {"failed_exchanges", time.failed_exchanges},
          {"corrected_answers", time.corrected},
          {"parts", parts_json(time.rank)},
          {"lanes", std::move(lanes)},
          {"layers", std::move(layers)},
          {"answers", std::move(answers)}};
}

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

std::unexpected<Error> cannot_write(const std::string& path) {
  return make_error(ErrorCode::unavailable, "cannot write the trace to " + path);
}

Status close(File file, const std::string& path) {
  const bool failed = std::ferror(file.get()) != 0;
  if (std::fclose(file.release()) != 0 || failed) return cannot_write(path);
  return {};
}

std::unexpected<Error> no_trace(const std::string& path) {
  return make_error(ErrorCode::invalid_argument, path + " is not a trace that tandem wrote to its end");
}

// Reads a file line by line: events are handed on, the dead times are returned.
template <class OnEvent>
Result<Json> read_trace(const std::string& path, OnEvent on_event) {
  std::ifstream file(path);
  if (!file) return make_error(ErrorCode::not_found, "cannot open the trace " + path);
  std::string line;
  if (!std::getline(file, line) || line != kHead) return no_trace(path);
  while (std::getline(file, line)) {
    if (!line.starts_with(kTail)) {
      if (line.ends_with(',')) line.pop_back();
      on_event(line);
      continue;
    }
    if (!line.ends_with("}}")) break;
    const size_t begin = kTail.size();
    Json json = Json::parse(line.substr(begin, line.size() - begin - 2), nullptr, false);
    if (json.is_array()) return json;
    break;
  }
  return no_trace(path);
}

// An event of a file whose times began `offset_ns` later.
std::string shifted(const std::string& line, int64_t offset_ns) {
  if (offset_ns == 0 || !line.starts_with(kTimed)) return line;
  double microseconds = 0;
  const char* begin = line.data() + kTimed.size();
  const auto [end, error] = std::from_chars(begin, line.data() + line.size(), microseconds);
  if (error != std::errc()) return line;
  return fmt::format("{}{:.3f}{}", kTimed, microseconds + static_cast<double>(offset_ns) * 1e-3,
                     std::string_view(end, line.data() + line.size()));
}

}  // namespace

Status write_trace(const std::string& path, const TraceRing& ring, const TracedRank& rank) {
  const std::vector<TraceEvent> events = ring.events();
  const DeadTime time = account_dead_time(events, ring.dropped_until_ns());
  File file(std::fopen(path.c_str(), "w"));
  if (!file) return cannot_write(path);
  std::fwrite(kHead.data(), 1, kHead.size(), file.get());
  Slices(ring, events, rank).write(file.get());
  const std::string tail =
      fmt::format("\n{}[{}]}}}}\n", kTail, dead_time_json(ring, time, rank, events.size()).dump());
  std::fwrite(tail.data(), 1, tail.size(), file.get());
  return close(std::move(file), path);
}

Status join_traces(const std::vector<std::string>& parts, const std::string& path) {
  Json times = Json::array();
  std::vector<int64_t> started;
  for (const std::string& part : parts) {
    TANDEM_ASSIGN(const Json ranks, read_trace(part, [](const std::string&) {}));
    if (ranks.empty() || !ranks.front().is_object() || !ranks.front().contains("started_wall_ns") ||
        !ranks.front().at("started_wall_ns").is_number_integer())
      return no_trace(part);
    started.push_back(ranks.front().at("started_wall_ns").get<int64_t>());
    for (const Json& rank : ranks) times.push_back(rank);
  }
  if (parts.empty()) return make_error(ErrorCode::invalid_argument, "no trace to join into " + path);
  const int64_t first = std::ranges::min(started);
  File file(std::fopen(path.c_str(), "w"));
  if (!file) return cannot_write(path);
  std::fwrite(kHead.data(), 1, kHead.size(), file.get());
  const char* separator = "\n";
  for (size_t i = 0; i < parts.size(); ++i) {
    TANDEM_TRY(read_trace(parts[i], [&](const std::string& line) {
      std::fputs(separator, file.get());
      std::fputs(shifted(line, started[i] - first).c_str(), file.get());
      separator = ",\n";
    }));
  }
  std::fputs(fmt::format("\n{}{}}}}}\n", kTail, times.dump()).c_str(), file.get());
  return close(std::move(file), path);
}

Result<std::string> read_dead_times(const std::string& path) {
  TANDEM_ASSIGN(const Json times, read_trace(path, [](const std::string&) {}));
  return times.dump();
}

}  // namespace tandem
