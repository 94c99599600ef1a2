// The dead times of a trace as tables for a terminal.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "cli/trace_file.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

// What is unknown beyond this says that the trace is not to be trusted.
constexpr double kMostUnknown = 0.02;

struct Column {
  const char* key;
  const char* heading;
};
using Columns = std::span<const Column>;
constexpr std::array kColumns = {
    Column{"attention_ns", "attention"}, Column{"experts_ns", "experts"}, Column{"queue_ns", "queue"},
    Column{"exchange_ns", "exchange"},   Column{"wire_ns", "wire"},       Column{"bubble_ns", "bubble"},
    Column{"other_lanes_ns", "others"},  Column{"loop_ns", "loop"},       Column{"idle_ns", "idle"},
    Column{"unaccounted_ns", "unknown"},
};
constexpr size_t kExperts = 1;
constexpr std::array kCallColumns = {
    Column{"decode_ns", "decode"}, Column{"prefill_ns", "prefill"}, Column{"exchange_ns", "exchange"},
    Column{"idle_ns", "idle"},     Column{"between_ns", "between"},
};

// Nanoseconds in the order of the columns.
struct Parts {
  std::vector<int64_t> ns;
  Parts() = default;
  Parts(Columns columns, const Json& json) {
    for (const Column& column : columns) ns.push_back(json.value(column.key, int64_t{0}));
  }
  void add(const Parts& other) {
    ns.resize(other.ns.size());
    for (size_t i = 0; i < ns.size(); ++i) ns[i] += other.ns[i];
  }
  int64_t total() const {
    int64_t sum = 0;
    for (const int64_t part : ns) sum += part;
    return sum;
  }
};

std::string heading(const std::string& first, Columns columns = kColumns) {
  std::string text = fmt::format("  {:<22}{:>10}", first, "ms");
  for (const Column& column : columns) text += fmt::format("{:>10}", column.heading);
  return text + "\n";
}

std::string row(const std::string& name, const Parts& parts) {
  const int64_t total = parts.total();
  std::string text = fmt::format("  {:<22}{:>10.2f}", name, static_cast<double>(total) * 1e-6);
  for (const int64_t part : parts.ns) {
    text += part == 0
                ? fmt::format("{:>10}", "-")
                : fmt::format("{:>8.1f} %", 100 * static_cast<double>(part) / static_cast<double>(total));
  }
  return text + "\n";
}

std::string layer_name(const Json& layer) {
  return layer.is_null() ? "embedding, head" : "layer " + std::to_string(layer.get<int64_t>());
}

// Layers ascending, what belongs to none last.
int64_t layer_order(const Json& layer) {
  return layer.is_null() ? INT64_MAX : layer.get<int64_t>();
}

std::string count_note(const Json& rank, const char* key, const char* what) {
  const auto count = rank.at(key).get<uint64_t>();
  return count == 0 ? "" : fmt::format("  {} {}\n", count, what);
}

constexpr const char* kDropped =
    "older events did not fit the ring (--trace-events) or the reply: the window begins behind them";

std::string call_tables(const Json& rank) {
  const auto calls = rank.at("calls").get<uint64_t>();
  std::string text = fmt::format(
      "FFN {}: {:.2f} ms from the first event to the end of the last; {} calls ({} replayed), {} rows of {} "
      "requests, {:.2f} clients a call, {} events\n",
      rank.at("rank").get<int64_t>(), rank.at("wall_ns").get<double>() * 1e-6, calls,
      rank.at("replayed_calls").get<uint64_t>(), rank.at("rows").get<uint64_t>(),
      rank.at("requests").get<uint64_t>(),
      calls == 0 ? 0.0 : rank.at("clients").get<double>() / static_cast<double>(calls),
      rank.at("events").get<uint64_t>());
  text += count_note(rank, "dropped_events", kDropped);
  if (rank.at("wall_ns").get<int64_t>() == 0) return text;
  text += heading("", kCallColumns) + row("whole rank", Parts(kCallColumns, rank.at("parts")));
  text += heading("calls by layer", Columns(kCallColumns).first(2));
  for (const Json& layer : rank.at("layers")) {
    const double count = layer.at("calls").get<double>();
    std::string line = row(layer_name(layer.at("layer")), Parts(Columns(kCallColumns).first(2), layer));
    line.pop_back();
    text +=
        line + fmt::format("   {} calls of {:.1f} rows, {:.2f} clients\n", count,
                           layer.at("rows").get<double>() / count, layer.at("clients").get<double>() / count);
  }
  return text;
}

std::string rank_tables(const Json& rank) {
  const double wall = rank.at("wall_ns").get<double>();
  std::string text = fmt::format(
      "{} {}: {:.2f} ms from the first step to the end of the last; {} steps, {} exchanges, {} events\n",
      rank.at("role").get<std::string>(), rank.at("rank").get<int64_t>(), wall * 1e-6,
      rank.at("steps").get<uint64_t>(), rank.at("exchanges").get<uint64_t>(),
      rank.at("events").get<uint64_t>());
  text += count_note(rank, "dropped_events", kDropped);
  text += count_note(rank, "cancelled_steps", "steps were cancelled or failed");
  text += count_note(rank, "failed_exchanges", "exchanges failed: the wait for them is bubble");
  text += count_note(rank, "corrected_answers",
                     "answers claimed more time than their round trip took: cut down to it");
  if (wall == 0) return text;

  const Parts whole(kColumns, rank.at("parts"));
  text += heading("") + row("whole rank", whole);
  for (const Json& lane : rank.at("lanes")) {
    text +=
        row(fmt::format("lane {} {}", lane.at("lane").get<int64_t>(), lane.at("class").get<std::string>()),
            Parts(kColumns, lane.at("parts")));
  }
  std::map<int64_t, std::pair<std::string, Parts>> layers;
  for (const Json& layer : rank.at("layers")) {
    auto& entry = layers[layer_order(layer.at("layer"))];
    entry.first = layer_name(layer.at("layer"));
    entry.second.add(Parts(kColumns, layer.at("parts")));
  }
  text += heading("layers, all lanes");
  for (const auto& [order, entry] : layers) text += row(entry.first, entry.second);

  std::map<std::string, Parts> answers;
  for (const Json& answer : rank.at("answers")) {
    const Json& ffn = answer.at("ffn_rank");
    answers[ffn.is_string() ? "this process" : "FFN rank " + ffn.dump()].add(
        Parts(kColumns, answer.at("parts")));
  }
  if (!answers.empty()) text += heading("round trips, by rank");
  for (const auto& [name, parts] : answers) {
    text += row(name, parts);
    text += fmt::format("  {:<22}  its experts computed for this rank in {:.1f} % of the time\n", "",
                        100 * static_cast<double>(parts.ns[kExperts]) / wall);
  }
  if (static_cast<double>(whole.ns.back()) > kMostUnknown * wall)
    text += fmt::format("  {:.1f} % of the time is unknown: events are missing\n",
                        100 * static_cast<double>(whole.ns.back()) / wall);
  return text;
}

}  // namespace

Result<std::string> dead_time_tables(const std::string& dead_times) {
  try {
    const Json ranks = Json::parse(dead_times);
    std::string text;
    for (const Json& rank : ranks)
      text += (text.empty() ? "" : "\n") + (rank.at("role") == "ffn" ? call_tables(rank) : rank_tables(rank));
    return text;
  } catch (const nlohmann::json::exception&) {
    return make_error(ErrorCode::data_loss, "the trace's dead times are not as tandem writes them");
  }
}

}  // namespace tandem
