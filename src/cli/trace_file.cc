#include "cli/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "attention/dead_time.h"
#include "cli/trace_spans.h"
#include "ffn/call_times.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kHead = R"({"displayTimeUnit":"ns","traceEvents":[)";
constexpr std::string_view kTail = R"(],"otherData":{"dead_time":)";

// The parts of times, in the order of tables.
struct PartName {
  const char* key;
  int64_t TimeParts::*part;
};
constexpr std::array kParts = {
    PartName{"attention_ns", &TimeParts::attention},
    PartName{"experts_ns", &TimeParts::experts},
    PartName{"queue_ns", &TimeParts::queue},
    PartName{"exchange_ns", &TimeParts::exchange},
    PartName{"wire_ns", &TimeParts::wire},
    PartName{"bubble_ns", &TimeParts::bubble},
    PartName{"other_lanes_ns", &TimeParts::other_lanes},
    PartName{"loop_ns", &TimeParts::loop},
    PartName{"idle_ns", &TimeParts::idle},
    PartName{"unaccounted_ns", &TimeParts::unaccounted},
};

Json parts_json(const TimeParts& parts) {
  Json json;
  for (const PartName& part : kParts) json[part.key] = parts.*part.part;
  return json;
}

Json layer_json(uint16_t layer) {
  return layer == kNoTraceLayer ? Json() : Json(layer);
}

Json dead_time_json(const TraceWindow& window, const TracedRank& rank) {
  const DeadTime time = account_dead_time(window.events, window.complete_from_ns);
  Json lanes = Json::array(), layers = Json::array(), answers = Json::array();
  for (const LaneTime& lane : time.lanes) {
    lanes.push_back({{"lane", lane.lane},
                     {"class", row_class_name(lane.row_class)},
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
          {"base_wall_ns", window.base_wall_ns},
          {"wall_ns", time.wall_ns()},
          {"events", window.events.size()},
          {"dropped_events", window.dropped},
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

Json calls_json(const TraceWindow& window, const TracedRank& rank) {
  const CallTimes times = account_calls(window.events, window.complete_from_ns);
  Json layers = Json::array();
  for (const LayerCalls& layer : times.layers) {
    layers.push_back({{"layer", layer.layer},
                      {"calls", layer.calls},
                      {"requests", layer.requests},
                      {"rows", layer.rows},
                      {"clients", layer.clients},
                      {"decode_ns", layer.decode},
                      {"prefill_ns", layer.prefill}});
  }
  return {{"role", rank.role},
          {"rank", rank.rank},
          {"base_wall_ns", window.base_wall_ns},
          {"wall_ns", times.wall_ns()},
          {"events", window.events.size()},
          {"dropped_events", window.dropped},
          {"calls", times.calls},
          {"replayed_calls", times.replayed},
          {"requests", times.requests},
          {"rows", times.rows},
          {"clients", times.clients},
          {"parts",
           {{"decode_ns", times.parts.decode},
            {"prefill_ns", times.parts.prefill},
            {"exchange_ns", times.parts.exchange},
            {"idle_ns", times.parts.idle},
            {"between_ns", times.parts.between}}},
          {"layers", std::move(layers)}};
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
  if (offset_ns == 0 || !line.starts_with(kTimedLine)) return line;
  double microseconds = 0;
  const char* begin = line.data() + kTimedLine.size();
  const auto [end, error] = std::from_chars(begin, line.data() + line.size(), microseconds);
  if (error != std::errc()) return line;
  return fmt::format("{}{:.3f}{}", kTimedLine, microseconds + static_cast<double>(offset_ns) * 1e-3,
                     std::string_view(end, line.data() + line.size()));
}

void write(const TraceRing& ring, const TraceWindow& window, const TracedRank& rank,
           const std::function<void(std::string_view)>& out) {
  out(kHead);
  std::string_view separator = "\n";
  write_spans(ring, window, rank, [&](const std::string& line) {
    out(separator);
    out(line);
    separator = ",\n";
  });
  out(fmt::format("\n{}[{}]}}}}\n", kTail,
                  (rank.role == "ffn" ? calls_json(window, rank) : dead_time_json(window, rank)).dump()));
}

}  // namespace

Status write_trace(const std::string& path, const TraceRing& ring, const TracedRank& rank) {
  File file(std::fopen(path.c_str(), "w"));
  if (!file) return cannot_write(path);
  write(ring, ring.window(), rank,
        [&](std::string_view text) { std::fwrite(text.data(), 1, text.size(), file.get()); });
  return close(std::move(file), path);
}

std::string trace_text(const TraceRing& ring, const TraceWindow& window, const TracedRank& rank) {
  std::string all;
  write(ring, window, rank, [&](std::string_view text) { all += text; });
  return all;
}

Status join_traces(const std::vector<std::string>& parts, const std::string& path) {
  Json times = Json::array();
  std::vector<int64_t> started;
  for (const std::string& part : parts) {
    TANDEM_ASSIGN(const Json ranks, read_trace(part, [](const std::string&) {}));
    if (ranks.empty() || !ranks.front().is_object() || !ranks.front().contains("base_wall_ns") ||
        !ranks.front().at("base_wall_ns").is_number_integer())
      return no_trace(part);
    started.push_back(ranks.front().at("base_wall_ns").get<int64_t>());
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

TemporaryFiles::~TemporaryFiles() {
  std::error_code ignored;
  for (const std::string& path : paths) std::filesystem::remove(path, ignored);
}

Result<std::string> read_dead_times(const std::string& path) {
  TANDEM_ASSIGN(const Json times, read_trace(path, [](const std::string&) {}));
  return times.dump();
}

}  // namespace tandem
