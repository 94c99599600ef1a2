// Measures the round trip of messages over each transport: this process sends, an echo process (for inproc: a
// thread) sends the same bytes back. Both sides wait as ranks do: poll, arm, epoll.
//
// Counted in a round trip, per message: writing it into the slot, copying it from the received message into
// the answer's slot, reading the answer out. `share` compares with these three copies alone, on the same
// machine, right after each case. Forks: call it while the process has one thread. Takes up to half a minute
// and some 250 MiB.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace tandem {

struct TransportBenchOptions {
  std::string transport;  // "inproc", "shm", "tcp" or "ucx"; empty: all
  double seconds = 0.5;   // about how long one case is measured; each has at least 100 round trips, too
  // The tile pair of the report: 128 rows in two tiles, each way.
  uint32_t rows = 128;
  uint32_t hidden_size = 7168;
  uint32_t bytes_per_value = 2;
};

// A table, or JSON: {"cases": [{"transport", "case", "messages", "message_bytes", "round_trips", "p50_us",
// "p99_us", "gigabytes_per_second", "share"}]}. GB are 10^9 bytes, both directions counted. invalid_argument:
// a bad option.
Result<std::string> run_transport_bench(const TransportBenchOptions& options, bool json);

}  // namespace tandem
