#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/memory_budget.h"
#include "cli/deployment.h"

namespace tandem {
namespace {

nlohmann::ordered_json to_json(const RankFacts& rank) {
  nlohmann::ordered_json json = {{"role", rank.role},       {"rank", rank.rank},
                                 {"pid", rank.pid},         {"transport", rank.transport},
                                 {"address", rank.address}, {"bytes_held", rank.bytes_held},
                                 {"isa", rank.isa},         {"threads", rank.threads}};
  if (!rank.metrics.empty()) json["metrics"] = rank.metrics;
  return json;
}

}  // namespace

std::string rank_json(const RankFacts& rank) {
  return to_json(rank).dump();
}

std::string rank_json(const std::vector<RankFacts>& ranks) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const RankFacts& rank : ranks) array.push_back(to_json(rank));
  return array.dump();
}

Result<RankFacts> parse_rank_json(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  try {
    RankFacts rank;
    json.at("role").get_to(rank.role);
    json.at("rank").get_to(rank.rank);
    json.at("pid").get_to(rank.pid);
    json.at("transport").get_to(rank.transport);
    json.at("address").get_to(rank.address);
    json.at("bytes_held").get_to(rank.bytes_held);
    json.at("isa").get_to(rank.isa);
    json.at("threads").get_to(rank.threads);
    rank.metrics = json.value("metrics", "");
    return rank;
  } catch (const nlohmann::json::exception&) {
    return make_error(ErrorCode::data_loss, "a rank described itself as '" + text + "'");
  }
}

std::string rank_table(const std::vector<RankFacts>& ranks) {
  std::string text = fmt::format("{:<12} {:>4} {:>8}  {:<9} {:>10}  {:<12} {:>7}\n", "role", "rank", "pid",
                                 "transport", "held", "ISA", "threads");
  for (const RankFacts& rank : ranks) {
    text += fmt::format("{:<12} {:>4} {:>8}  {:<9} {:>10}  {:<12} {:>7}\n", rank.role, rank.rank, rank.pid,
                        rank.transport, bytes_text(rank.bytes_held), rank.isa, rank.threads);
  }
  return text;
}

}  // namespace tandem
