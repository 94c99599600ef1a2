// What a load's records come to: percentiles, throughput, goodput. Values; any thread. Times in the records
// are seconds, in distributions milliseconds.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace tandem {

// One request, in seconds since the load began.
struct LoadRecord {
  uint64_t index = 0;
  double due = 0, sent = 0, ended = 0;  // due: when its arrival was planned
  int status = 0;                       // of HTTP; 0: no reply
  std::string error;                    // empty: it succeeded
  int64_t input_tokens = 0, cached_tokens = 0, output_tokens = 0;
  std::vector<double> pieces;  // when each piece of text came; empty: not streamed, or no text

  bool ok() const { return error.empty(); }
  double end_to_end() const { return ended - sent; }
  // To the first text. Nothing without a stream: the whole answer says nothing about its first token.
  std::optional<double> time_to_first_token() const;
  // From the first piece to the last, for each token after the first; nothing with fewer than two tokens.
  std::optional<double> time_per_output_token() const;
  std::optional<double> mean_gap() const;  // between pieces
};

struct Distribution {
  size_t count = 0;
  double mean = 0, deviation = 0, least = 0, most = 0;
  std::vector<double> at;  // of the percentiles that were asked for
};
// Percentiles interpolate between the two nearest values (numpy's default). Empty: all 0.
Distribution distribution_of(std::vector<double> values, std::span<const double> percentiles);

// A limit that a request must keep to count as good.
struct Objective {
  std::string metric;  // ttft, tpot, itl (mean gap between pieces), e2el
  double limit_ms = 0;
};
// "ttft:500", "itl:50", ... milliseconds; each metric once.
Result<std::vector<Objective>> parse_goodput(std::span<const std::string> texts);
// A request that has no such time (one token has no time per token) keeps that limit; one that failed keeps
// none.
bool is_good(const LoadRecord& record, std::span<const Objective> objectives);

// "50", "99.9": ascending and in (0, 100).
Result<std::vector<double>> parse_percentiles(std::span<const std::string> texts);

struct LoadSummary {
  std::vector<double> percentiles;
  std::vector<Objective> objectives;
  double seconds = 0;  // from the first sending to the last end
  uint64_t completed = 0, failed = 0, good = 0;
  std::map<std::string, uint64_t> failures;                        // "429": 3, "no reply": 1
  std::map<std::string, std::string> failure_examples;             // the first message of each
  int64_t input_tokens = 0, cached_tokens = 0, output_tokens = 0;  // of completed requests
  uint64_t most_in_flight = 0;
  Distribution ttft, tpot, itl, e2el;  // ms, of completed requests; itl: of all gaps of all of them
  Distribution send_delay;             // ms that requests were sent behind their planned arrival

  double per_second(double count) const { return seconds > 0 ? count / seconds : 0; }
};
LoadSummary summarize(std::span<const LoadRecord> records, std::vector<double> percentiles,
                      std::vector<Objective> objectives);

// Requests in flight at each change, as (seconds, number): for charts.
std::vector<std::pair<double, double>> in_flight_over_time(std::span<const LoadRecord> records);

}  // namespace tandem
