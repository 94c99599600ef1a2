// Measures the round trip of messages over each transport and over the bare floor (bare_floor.h), in turn in
// one run: this process sends, an echo process (for inproc: a thread) sends the same bytes back. The
// machine's mood changes within seconds, so each case is cut into slices, and every slice takes the floor and
// all transports one after the other.
//
// Counted in a round trip, per message: writing it into the slot, copying it from the received message into
// the answer's slot, reading the answer out; for the tile pair also making and checking the frames of both
// ways. Forks: call it while the process has one thread and has not used UCX. Takes about half a minute and
// some 350 MiB.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem {

struct TransportBenchOptions {
  std::string transport;  // "inproc", "shm", "tcp" or "ucx"; empty: all. The floor is always measured
  // "key", "tls": tcp again, with peers that prove a key, and inside TLS 1.3 with certificates made for the
  // run. "none": as it is anyway.
  std::vector<std::string> security;
  double seconds = 0.5;  // about how long each transport is measured in each case; at least 100 round trips
  // The tile pair of the report: 128 rows of bf16 in two tiles, each way.
  uint32_t rows = 128;
  uint32_t hidden_size = 7168;
  std::function<void(std::string_view)> progress;  // one line a case; may be empty
};

// A table, or JSON: {"cases": [{"transport", "case", "messages", "message_bytes", "round_trips", "p50_us",
// "p99_us", "gigabytes_per_second", "p50_of_floor", "p99_of_floor"}]}; transport "floor" is the bare floor,
// "tcp+tls" tcp inside TLS, with "p50_of_tcp" and "p99_of_tcp". GB are 10^9 bytes, both directions counted.
// invalid_argument: a bad option.
Result<std::string> run_transport_bench(const TransportBenchOptions& options, bool json);

}  // namespace tandem
