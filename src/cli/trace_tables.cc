// The dead times of a trace as tables for a terminal.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

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
constexpr std::array kColumns = {
    Column{"attention_ns", "attention"}, Column{"experts_ns", "experts"}, Column{"queue_ns", "queue"},
    Column{"exchange_ns", "exchange"},   Column{"wire_ns", "wire"},       Column{"bubble_ns", "bubble"},
    Column{"other_lanes_ns", "others"},  Column{"loop_ns", "loop"},       Column{"idle_ns", "idle"},
    Column{"unaccounted_ns", "unknown"},
};

// Nanoseconds in the order of kColumns.
struct Parts {
  std::array<int64_t, kColumns.size()> ns{};
  Parts() = default;
  explicit Parts(const Json& json) {
    for (size_t i = 0; i < kColumns.size(); ++i) ns[i] = json.value(kColumns[i].key, int64_t{0});
  }
  void add(const Parts& other) {
    for (size_t i = 0; i < ns.size(); ++i) ns[i] += other.ns[i];
  }
  int64_t total() const {
    int64_t sum = 0;
    for (const int64_t part : ns) sum += part;
    return sum;
  }
};

std::string heading(const std::string& first) {
  std::string text = fmt::format("  {:<22}{:>10}", first, "ms");
  for (const Column& column : kColumns) text += fmt::format("{:>10}", column.heading);
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

std::string rank_tables(const Json& rank) {
  const double wall = rank.at("wall_ns").get<double>();
  std::string text = fmt::format(
      "{} {}: {:.2f} ms from the first step to the end of the last; {} steps, {} exchanges, {} events\n",
      rank.at("role").get<std::string>(), rank.at("rank").get<int64_t>(), wall * 1e-6,
      rank.at("steps").get<uint64_t>(), rank.at("exchanges").get<uint64_t>(),
      rank.at("events").get<uint64_t>());
  const auto note = [&](const char* key, const char* what) {
    if (const auto count = rank.at(key).get<uint64_t>(); count > 0)
      text += fmt::format("  {} {}\n", count, what);
  };
  note("dropped_events", "older events did not fit the ring (--trace-events): the window begins behind them");
  note("cancelled_steps", "steps were cancelled or failed");
  note("failed_exchanges", "exchanges failed: the wait for them is bubble");
  note("corrected_answers", "answers claimed more time than their round trip took: cut down to it");
  if (wall == 0) return text;

  const Parts whole(rank.at("parts"));
  text += heading("") + row("whole rank", whole);
  for (const Json& lane : rank.at("lanes")) {
    text +=
        row(fmt::format("lane {} {}", lane.at("lane").get<int64_t>(), lane.at("class").get<std::string>()),
            Parts(lane.at("parts")));
  }
  std::map<int64_t, std::pair<std::string, Parts>> layers;
  for (const Json& layer : rank.at("layers")) {
    auto& entry = layers[layer_order(layer.at("layer"))];
    entry.first = layer_name(layer.at("layer"));
    entry.second.add(Parts(layer.at("parts")));
  }
  text += heading("layers, all lanes");
  for (const auto& [order, entry] : layers) text += row(entry.first, entry.second);

  std::map<std::string, Parts> answers;
  for (const Json& answer : rank.at("answers")) {
    const Json& ffn = answer.at("ffn_rank");
    answers[ffn.is_string() ? "this process" : "FFN rank " + ffn.dump()].add(Parts(answer.at("parts")));
  }
  if (!answers.empty()) text += heading("round trips, by rank");
  for (const auto& [name, parts] : answers) {
    text += row(name, parts);
    text += fmt::format("  {:<22}  its experts computed for this rank in {:.1f} % of the time\n", "",
                        100 * static_cast<double>(parts.ns[1]) / wall);
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
    for (const Json& rank : ranks) text += (text.empty() ? "" : "\n") + rank_tables(rank);
    return text;
  } catch (const nlohmann::json::exception&) {
    return make_error(ErrorCode::data_loss, "the trace's dead times are not as tandem writes them");
  }
}

}  // namespace tandem
