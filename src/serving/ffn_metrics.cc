#include "serving/ffn_metrics.h"

#include <fmt/format.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <cmath>
#include <vector>

namespace tandem {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

class Families {
 public:
  void counter(const char* name, const char* help, double value) {
    add(name, help, MetricType::Counter).push_back(metric(MetricType::Counter, value));
  }

  // One for each client, with its name and session as labels.
  template <class Value>
  void of_clients(const char* name, const char* help, MetricType type,
                  std::span<const FfnClientReport> clients, Value&& value) {
    std::vector<ClientMetric>& metrics = add(name, help, type);
    for (const FfnClientReport& client : clients) {
      metrics.push_back(metric(type, static_cast<double>(value(client))));
      metrics.back().label = {{"client", client.peer}, {"session", fmt::format("{:#x}", client.session)}};
    }
  }

  void clients_per_call(const FfnStats& stats) {
    ClientMetric one;
    for (size_t i = 0; i < stats.groups_of_clients.size(); ++i) {
      one.histogram.sample_count += stats.groups_of_clients[i];
      const double bound = i < FfnStats::kClientBounds.size() ? FfnStats::kClientBounds[i] : INFINITY;
      one.histogram.bucket.push_back({one.histogram.sample_count, bound});
    }
    one.histogram.sample_sum = static_cast<double>(stats.clients_in_groups);
    add("tandem_ffn_rank_clients_per_call", "Clients whose rows one call of the experts computed together",
        MetricType::Histogram)
        .push_back(std::move(one));
  }

  std::string text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  static ClientMetric metric(MetricType type, double value) {
    ClientMetric one;
    (type == MetricType::Counter ? one.counter.value : one.gauge.value) = value;
    return one;
  }

  std::vector<ClientMetric>& add(const char* name, const char* help, MetricType type) {
    families_.push_back({name, help, type, {}});
    return families_.back().metric;
  }

  std::vector<MetricFamily> families_;
};

}  // namespace

std::string ffn_metrics_text(const FfnStats& stats, std::span<const FfnClientReport> clients) {
  Families out;
  const auto counter = [&](const char* name, const char* help, auto value) {
    out.counter(name, help, static_cast<double>(value));
  };
  counter("tandem_ffn_rank_calls_total", "Calls of the experts", stats.groups);
  counter("tandem_ffn_rank_rows_total",
          "Rows of these; a token is one in every layer, on each rank that it came to", stats.rows);
  counter("tandem_ffn_rank_tiles_total", "Requests of at most 64 rows", stats.tiles);
  out.clients_per_call(stats);
  counter("tandem_ffn_rank_expert_rows_total", "Rows times the experts that computed them",
          stats.expert_rows);
  counter("tandem_ffn_rank_experts_read_total",
          "Experts whose weights were read for them; rows an expert is the quotient", stats.experts_read);
  counter("tandem_ffn_rank_read_bytes_total",
          "Bytes of the experts' weights that were read; by rows, what a token costs", stats.bytes_read);
  counter("tandem_ffn_rank_decode_seconds_total", "Time in calls of decode rows",
          static_cast<double>(stats.decode_us) * 1e-6);
  counter("tandem_ffn_rank_prefill_seconds_total", "Time in calls of prompts' rows",
          static_cast<double>(stats.prefill_us) * 1e-6);
  counter("tandem_ffn_rank_idle_seconds_total",
          "Time in which nothing was computed: nothing waited, or a call was held",
          static_cast<double>(stats.wait_us) * 1e-6);
  counter("tandem_ffn_rank_holds_total", "Times that a call waited for a client that was about to join it",
          stats.holds);
  counter("tandem_ffn_rank_holds_joined_total",
          "Of these, those that somebody joined with the layer that waited", stats.holds_joined);
  counter("tandem_ffn_rank_hold_seconds_total", "Time of these", static_cast<double>(stats.held_us) * 1e-6);
  counter("tandem_ffn_rank_preemptions_total", "Calls of decode rows between two pieces of a prompt's",
          stats.preemptions);
  counter("tandem_ffn_rank_tiles_refused_total", "Requests answered with an error before they waited",
          stats.tiles_refused);
  counter("tandem_ffn_rank_tiles_over_quota_total", "Of these, requests beyond their client's quota",
          stats.tiles_over_quota);
  counter("tandem_ffn_rank_tiles_cancelled_total",
          "Requests dropped while they waited: cancelled, or their client left", stats.tiles_cancelled);
  counter(
      "tandem_ffn_rank_tiles_failed_total",
      "Requests answered with an error after they waited: refused by the experts, or another FFN rank failed",
      stats.tiles_failed + stats.exchange.failed_tiles);
  counter("tandem_ffn_rank_sessions_opened_total", "Clients that came", stats.sessions_opened);
  counter("tandem_ffn_rank_sessions_closed_total", "Clients that left", stats.sessions_closed);
  counter("tandem_ffn_rank_sessions_refused_total", "Connections and clients that were refused",
          stats.sessions_refused);
  counter("tandem_ffn_rank_connections_dropped_total",
          "Connections without a client that made room for later ones", stats.connections_dropped);
  out.of_clients("tandem_ffn_rank_client_rows_total", "Rows of a client that is connected",
                 MetricType::Counter, clients, [](const FfnClientReport& client) { return client.rows; });
  out.of_clients("tandem_ffn_rank_client_compute_seconds_total",
                 "Its part, by rows, of the calls that it was in", MetricType::Counter, clients,
                 [](const FfnClientReport& client) { return client.computed_us * 1e-6; });
  out.of_clients("tandem_ffn_rank_client_refused_total", "Its requests beyond its quota", MetricType::Counter,
                 clients, [](const FfnClientReport& client) { return client.refused; });
  out.of_clients("tandem_ffn_rank_client_waiting_tiles", "Its requests that wait", MetricType::Gauge, clients,
                 [](const FfnClientReport& client) { return client.waiting_tiles; });
  out.of_clients("tandem_ffn_rank_client_waiting_rows", "Rows of these", MetricType::Gauge, clients,
                 [](const FfnClientReport& client) { return client.waiting_rows; });
  return out.text();
}

}  // namespace tandem
