// FfnStats: what an FFN rank counted. A value; copied under the worker's lock.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace tandem {

// Of a rank that sends rows to other ranks. Counts since the start.
struct ExchangeStats {
  uint64_t groups = 0, alltoall = 0, allgather = 0;  // groups that had to exchange, and how
  uint64_t rows_sent = 0;                            // to other ranks
  uint64_t exchange_us = 0;                          // between own compute and the last answer
  uint64_t failed_tiles = 0;
};

// Counts since the start.
struct FfnStats {
  uint64_t sessions_opened = 0, sessions_closed = 0, sessions_refused = 0;
  uint64_t tiles = 0, rows = 0, zero_row_tiles = 0;
  uint64_t tiles_refused = 0;        // answered with an error before they were queued
  uint64_t tiles_over_quota = 0;     // of these, for their client had too much waiting
  uint64_t connections_dropped = 0;  // unopened ones that made room for later ones
  uint64_t tiles_cancelled = 0;      // dropped from the queue: cancelled, or their client left
  uint64_t tiles_failed = 0;         // the block refused them
  uint64_t groups = 0;               // calls of the block
  uint64_t clients_in_groups = 0;    // sum over groups: divided by groups, how well clients are merged
  uint64_t max_clients_in_group = 0;
  // Groups by their number of clients: at most kClientBounds[i], and more than the bound before.
  static constexpr std::array<uint32_t, 6> kClientBounds = {1, 2, 4, 8, 16, 32};
  std::array<uint64_t, kClientBounds.size() + 1> groups_of_clients{};
  // Times that the compute thread waited for a client that was about to join, how many of them somebody
  // ended, and for how long.
  uint64_t holds = 0, holds_joined = 0, held_us = 0;
  uint64_t preemptions = 0;                // decode groups that went between two pieces of a prefill group
  uint64_t decode_us = 0, prefill_us = 0;  // compute time
  // Graph mode, in groups. A replay is padded where the program has room for more rows; a miss is an eager
  // group for which attention asked for a replay; warm-ups are replays of profile rows.
  uint64_t eager_groups = 0, graph_replays = 0, graph_padded_replays = 0, graph_misses = 0, graph_warmups = 0;
  // What the compute thread spent on groups beside computing, and the I/O thread on requests. Nanoseconds.
  uint64_t host_ns_eager = 0, host_ns_replay = 0, request_ns = 0;
  ExchangeStats exchange;
  // Of the block (0 with another function in its place): (row, expert) pairs computed, and experts whose
  // weights were streamed for them, summed over calls. Their quotient is what merging is for: rows per expert
  // and read.
  uint64_t expert_rows = 0, experts_read = 0;
  uint64_t bytes_read = 0;  // weights of routed and shared experts
  // Routing on this rank (0 where attention routes), and time in which its compute thread had nothing to do
  // but wait for tiles, up to now.
  uint64_t router_calls = 0, router_ns = 0;
  uint64_t wait_us = 0;
};

// One client, since its session began.
struct FfnClientReport {
  std::string peer;  // "attention rank 0 (host:pid)"
  std::string transport;
  uint64_t session = 0, tiles = 0, rows = 0;
  uint64_t refused = 0;    // tiles over its quota
  double computed_us = 0;  // its part of the calls that it was in
  uint32_t waiting_tiles = 0, waiting_rows = 0;
};

// One line for logs and reports: tiles, rows, groups, clients a group, rows per expert, compute time.
std::string describe(const FfnStats& stats);
// The same of exchange with other FFN ranks; empty when there was none.
std::string describe_exchange(const ExchangeStats& exchange);
// The same of execution: eager groups, replays, misses, host time a group.
std::string describe_execution(const FfnStats& stats);

}  // namespace tandem
