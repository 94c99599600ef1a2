#include "ffn/ffn_stats.h"

#include <fmt/format.h>

namespace tandem {

std::string describe(const FfnStats& stats) {
  const auto ratio = [](uint64_t sum, uint64_t count) {
    return count == 0 ? 0.0 : static_cast<double>(sum) / static_cast<double>(count);
  };
  std::string text = fmt::format(
      "{} tiles, {} rows in {} groups ({:.1f} clients each, at most {}), {} of them between pieces of "
      "prefill; {:.1f} rows an expert read; "
      "decode {} ms, prefill {} ms; {} refused, {} cancelled, {} failed",
      stats.tiles, stats.rows, stats.groups, ratio(stats.clients_in_groups, stats.groups),
      stats.max_clients_in_group, stats.preemptions, ratio(stats.expert_rows, stats.experts_read),
      stats.decode_us / 1000, stats.prefill_us / 1000, stats.tiles_refused, stats.tiles_cancelled,
      stats.tiles_failed);
  text += fmt::format("; routed {} times in {} ms, waited {} ms for tiles", stats.router_calls,
                      stats.router_ns / 1000000, stats.wait_us / 1000);
  const std::string exchange = describe_exchange(stats.exchange);
  return exchange.empty() ? text : text + "; " + exchange;
}

std::string describe_exchange(const ExchangeStats& exchange) {
  if (exchange.groups == 0) return {};
  return fmt::format(
      "{} groups exchanged ({} alltoall, {} allgather), {} rows sent, waited {:.1f} us a group",
      exchange.groups, exchange.alltoall, exchange.allgather, exchange.rows_sent,
      static_cast<double>(exchange.exchange_us) / static_cast<double>(exchange.groups));
}

std::string describe_execution(const FfnStats& stats) {
  const auto mean_us = [](uint64_t nanoseconds, uint64_t count) {
    return count == 0 ? 0.0 : static_cast<double>(nanoseconds) * 1e-3 / static_cast<double>(count);
  };
  return fmt::format(
      "{} eager groups, {} replays ({} padded), {} misses, {} warm-ups; host time {:.1f} us an eager group, "
      "{:.1f} us a replay, {:.1f} us a request",
      stats.eager_groups, stats.graph_replays, stats.graph_padded_replays, stats.graph_misses,
      stats.graph_warmups, mean_us(stats.host_ns_eager, stats.eager_groups),
      mean_us(stats.host_ns_replay, stats.graph_replays + stats.graph_warmups),
      mean_us(stats.request_ns, stats.tiles));
}

}  // namespace tandem
