// RankCounters: what a rank has waited and routed since its start. The difference of two is what it did
// between them. A value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/engine.h"
#include "base/result.h"
#include "ffn/ffn_stats.h"

namespace tandem {

struct RankCounters {
  std::string role;  // "attention", "ffn", "colocated"
  int64_t rank = 0;
  std::string missing;  // why there is nothing below; empty: there is
  // Attention: replies of the experts that were collected, and how long a lane could do nothing but wait for
  // them. FFN: groups of tiles that were computed, and how long the compute thread waited for tiles.
  uint64_t collects = 0;
  double wait_seconds = 0;
  // The gate, where it is on this rank.
  uint64_t router_calls = 0;
  double router_seconds = 0;

  std::string name() const { return role + " " + std::to_string(rank); }
};

RankCounters counters_of(const std::string& role, int64_t rank, const EngineStats& stats);
RankCounters counters_of(int64_t rank, const FfnStats& stats);

// later - earlier. A rank that has no data in one of them, or has started again between them, has none.
RankCounters operator-(const RankCounters& later, const RankCounters& earlier);

// As JSON text: an object, an array.
std::string counters_json(const RankCounters& counters);
std::string counters_json(const std::vector<RankCounters>& counters);
Result<RankCounters> parse_counters(const std::string& json);

}  // namespace tandem
