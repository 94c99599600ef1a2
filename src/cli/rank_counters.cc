#include "cli/rank_counters.h"

#include <nlohmann/json.hpp>

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const RankCounters& counters) {
  Json json = {{"role", counters.role}, {"rank", counters.rank}};
  if (!counters.missing.empty()) {
    json["missing"] = counters.missing;
    return json;
  }
  json["collects"] = counters.collects;
  json["wait_seconds"] = counters.wait_seconds;
  json["router_calls"] = counters.router_calls;
  json["router_seconds"] = counters.router_seconds;
  return json;
}

}  // namespace

RankCounters counters_of(const std::string& role, int64_t rank, const EngineStats& stats) {
  return {
      role, rank, {}, stats.ffn_submits, stats.ffn_wait_seconds, stats.router_calls, stats.router_seconds};
}

RankCounters counters_of(int64_t rank, const FfnStats& stats) {
  return {"ffn",
          rank,
          {},
          stats.groups,
          static_cast<double>(stats.wait_us) * 1e-6,
          stats.router_calls,
          static_cast<double>(stats.router_ns) * 1e-9};
}

RankCounters operator-(const RankCounters& later, const RankCounters& earlier) {
  RankCounters difference = later;
  if (!later.missing.empty()) return difference;
  if (!earlier.missing.empty()) {
    difference.missing = earlier.missing;
  } else if (later.collects < earlier.collects || later.router_calls < earlier.router_calls) {
    difference.missing = "it started again meanwhile";
  } else {
    difference.collects -= earlier.collects;
    difference.wait_seconds -= earlier.wait_seconds;
    difference.router_calls -= earlier.router_calls;
    difference.router_seconds -= earlier.router_seconds;
  }
  return difference;
}

std::string counters_json(const RankCounters& counters) {
  return to_json(counters).dump();
}

std::string counters_json(const std::vector<RankCounters>& counters) {
  Json array = Json::array();
  for (const RankCounters& one : counters) array.push_back(to_json(one));
  return array.dump();
}

Result<RankCounters> parse_counters(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  try {
    RankCounters counters;
    json.at("role").get_to(counters.role);
    json.at("rank").get_to(counters.rank);
    if (json.contains("missing")) {
      json.at("missing").get_to(counters.missing);
      return counters;
    }
    json.at("collects").get_to(counters.collects);
    json.at("wait_seconds").get_to(counters.wait_seconds);
    json.at("router_calls").get_to(counters.router_calls);
    json.at("router_seconds").get_to(counters.router_seconds);
    return counters;
  } catch (const nlohmann::json::exception&) {
    return make_error(ErrorCode::data_loss, "a rank counted itself as '" + text + "'");
  }
}

}  // namespace tandem
