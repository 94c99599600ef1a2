#include "serving/serving_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <cmath>
#include <vector>

namespace tandem {

using prometheus::Histogram;
using prometheus::MetricFamily;
using prometheus::MetricType;

namespace {

// From a cached prompt on a small model to a long prompt behind a queue.
const Histogram::BucketBoundaries kFirstTokenSeconds{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                                     1,     2.5,  5,     10,   30,  60,   120};
// From a batch on a fast machine to a step that waited for a lost peer.
const Histogram::BucketBoundaries kInterTokenSeconds{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                                     0.1,   0.25,   0.5,   1,    2.5,   5};
const Histogram::BucketBoundaries kRequestSeconds{0.01, 0.05, 0.1, 0.5, 1,   2.5, 5,
                                                  10,   30,   60,  120, 300, 600, 1800};

MetricFamily single(const char* name, const char* help, MetricType type, double value) {
  MetricFamily family{name, help, type, {}};
  prometheus::ClientMetric metric;
  (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  family.metric.push_back(std::move(metric));
  return family;
}

MetricFamily queue_seconds(const QueueTimes& queue) {
  MetricFamily family{"tandem_queue_seconds",
                      "From a request's arrival at its attention rank to its first rows in a step",
                      MetricType::Histogram,
                      {}};
  prometheus::ClientMetric metric;
  prometheus::ClientMetric::Histogram& histogram = metric.histogram;
  histogram.sample_sum = queue.seconds;
  for (size_t i = 0; i < queue.counts.size(); ++i) {
    histogram.sample_count += queue.counts[i];
    const double bound = i < QueueTimes::kBounds.size() ? QueueTimes::kBounds[i] : INFINITY;
    histogram.bucket.push_back({histogram.sample_count, bound});
  }
  family.metric.push_back(std::move(metric));
  return family;
}

void append_engine(const Engine& engine, std::vector<MetricFamily>& out) {
  const EngineStats stats = engine.stats();
  const auto gauge = [&](const char* name, const char* help, double value) {
    out.push_back(single(name, help, MetricType::Gauge, value));
  };
  const auto counter = [&](const char* name, const char* help, auto value) {
    out.push_back(single(name, help, MetricType::Counter, static_cast<double>(value)));
  };
  gauge("tandem_engine_healthy", "1 when every peer is there", engine.health() ? 1 : 0);
  gauge("tandem_requests_running", "Sequences in the batch", stats.running);
  gauge("tandem_requests_waiting", "Sequences in the queue", stats.waiting);
  gauge("tandem_kv_blocks", "Blocks of the KV pool", stats.kv_blocks_total);
  gauge("tandem_kv_blocks_used", "Blocks of the KV pool in use", stats.kv_blocks_used);
  gauge("tandem_kv_blocks_kept", "Blocks of the KV pool, in use or not, whose contents prompts can share",
        stats.prefix.kept_blocks);
  counter("tandem_prefix_cache_queried_tokens_total", "Tokens of sequences as they were taken in",
          stats.prefix.queried_tokens);
  counter("tandem_prefix_cache_hit_tokens_total", "Of these, tokens found in the prefix cache",
          stats.prefix.hit_tokens);
  out.push_back(queue_seconds(stats.queue));
  gauge("tandem_decode_lanes", "Decode lanes (micro-batches) in use", stats.decode_lanes);
  counter("tandem_engine_prompt_tokens_total", "Prompt tokens of requests that ended, cached ones too",
          stats.prompt_tokens);
  counter("tandem_engine_generated_tokens_total", "Tokens generated, of answers that go on too",
          stats.generated_tokens);
  counter("tandem_engine_steps_total", "Steps run", stats.steps);
  counter("tandem_engine_finished_total", "Sequences ended by stop or length", stats.finished);
  counter("tandem_engine_cancelled_total", "Sequences cancelled", stats.cancelled);
  counter("tandem_engine_failed_total", "Sequences ended by an error", stats.failed);
  counter("tandem_engine_overdue_total", "Of the failed, sequences whose time was over", stats.overdue);
  counter("tandem_engine_preempted_total", "Sequences put back into the queue for lack of KV blocks",
          stats.preempted);
  counter("tandem_engine_mixed_steps_total", "Steps of decode rows and prompts' rows together",
          stats.mixed_steps);
  counter("tandem_engine_step_seconds_total", "Time in steps", stats.step_seconds);
  const BatchStats& batch = stats.batch;
  counter("tandem_decode_steps_total", "Steps of decode lanes", batch.decode_steps);
  counter("tandem_decode_rows_total", "Rows of these: sequences and their drafts", batch.decode_rows);
  counter("tandem_prefill_steps_total", "Steps of prefill lanes", batch.prefill_steps);
  counter("tandem_prefill_rows_total", "Rows of these: tokens of prompts", batch.prefill_rows);
  const ExecutionStats& execution = stats.execution;
  counter("tandem_eager_steps_total", "Steps that no captured program ran", execution.eager_steps);
  counter("tandem_graph_replays_total", "Decode steps that replayed a captured program",
          execution.graph_replays);
  counter("tandem_graph_padded_replays_total", "Replays with fewer rows than the program holds",
          execution.graph_padded_replays);
  counter("tandem_graph_misses_total", "Decode steps with more rows than any captured program",
          execution.graph_misses);
  counter("tandem_graph_warmups_total", "Captured programs run once at start", execution.graph_warmups);
  counter("tandem_eager_layers_total", "Layers of eager decode steps", execution.eager_layers);
  counter("tandem_replay_layers_total", "Layers of replayed decode steps", execution.replay_layers);
  counter("tandem_eager_host_seconds_total", "Host time of eager decode steps: neither computing nor waiting",
          execution.eager_host_seconds);
  counter("tandem_replay_host_seconds_total", "Host time of replayed decode steps",
          execution.replay_host_seconds);
  const SpeculationStats& drafts = stats.speculation;
  gauge("tandem_draft_tokens", "Most drafts of a sequence in a step now; 0: speculation is off",
        drafts.tokens);
  counter("tandem_drafted_tokens_total", "Tokens proposed by the drafter and verified", drafts.drafted);
  counter("tandem_accepted_tokens_total", "Of these, those that the model would have said", drafts.accepted);
  counter("tandem_draft_rounds_total", "Steps of the drafter", drafts.rounds);
  counter("tandem_draft_seconds_total", "Time in them", drafts.seconds);
  MetricFamily positions{"tandem_accepted_tokens_by_position_total",
                         "Accepted drafts by their position in a step, from 1",
                         MetricType::Counter,
                         {}};
  for (size_t i = 0; i < SpeculationStats::kPositions; ++i) {
    prometheus::ClientMetric metric;
    metric.label = {{"position", std::to_string(i + 1)}};
    metric.counter.value = static_cast<double>(drafts.accepted_at[i]);
    positions.metric.push_back(std::move(metric));
  }
  out.push_back(std::move(positions));
  counter("tandem_ffn_submits_total", "Exchanges with the experts", stats.ffn_submits);
  counter("tandem_ffn_wait_seconds_total", "Time in which attention could only wait for the experts",
          stats.ffn_wait_seconds);
  counter("tandem_ffn_round_trip_seconds_total", "Exchanges with FFN ranks, from submit to completion here",
          stats.ffn_round_trip_seconds);
  counter("tandem_ffn_residence_seconds_total",
          "Of the round trips, the time from arrival to reply in the FFN ranks; the rest was on the wire",
          stats.ffn_residence_seconds);
  counter("tandem_ffn_queue_seconds_total", "Of the residence, waiting to be computed",
          stats.ffn_queue_seconds);
  counter("tandem_ffn_compute_seconds_total",
          "Of the residence, computing; where experts are in this process, their computing",
          stats.ffn_compute_seconds);
  counter("tandem_ffn_exchange_seconds_total", "Of the residence, waiting for other FFN ranks",
          stats.ffn_exchange_seconds);
  counter("tandem_lane_busy_seconds_total",
          "Time in which lanes ran operations; experts of this process are part of it",
          stats.lane_busy_seconds);
  counter("tandem_router_calls_total", "Calls of the gate on this rank; 0 where it is elsewhere",
          stats.router_calls);
  counter("tandem_router_seconds_total", "Time in these calls", stats.router_seconds);
}

// What a front knows of each of its ranks, with the rank as a label.
void append_ranks(const Engine& engine, std::vector<MetricFamily>& out) {
  const std::vector<EngineRank> ranks = engine.ranks();
  if (ranks.empty()) return;
  const auto family = [&](const char* name, const char* help, MetricType type, auto value) {
    MetricFamily each{name, help, type, {}};
    for (const EngineRank& rank : ranks) {
      prometheus::ClientMetric metric;
      metric.label = {{"rank", std::to_string(rank.rank)}};
      (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) =
          static_cast<double>(value(rank));
      each.metric.push_back(std::move(metric));
    }
    out.push_back(std::move(each));
  };
  family("tandem_attention_rank_ready", "1 when the rank serves", MetricType::Gauge,
         [](const EngineRank& rank) { return rank.health ? 1 : 0; });
  family("tandem_attention_rank_requests_running", "Sequences in the rank's batch", MetricType::Gauge,
         [](const EngineRank& rank) { return rank.stats.running; });
  family("tandem_attention_rank_requests_waiting", "Sequences in the rank's queue", MetricType::Gauge,
         [](const EngineRank& rank) { return rank.stats.waiting; });
  family("tandem_attention_rank_kv_blocks", "Blocks of the rank's KV pool", MetricType::Gauge,
         [](const EngineRank& rank) { return rank.stats.kv_blocks_total; });
  family("tandem_attention_rank_kv_blocks_used", "Blocks of the rank's KV pool in use", MetricType::Gauge,
         [](const EngineRank& rank) { return rank.stats.kv_blocks_used; });
  family("tandem_attention_rank_finished_total", "Sequences that the rank has ended by stop or length",
         MetricType::Counter, [](const EngineRank& rank) { return rank.stats.finished; });
}

}  // namespace

struct ServingMetrics::Impl {
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& requests = prometheus::BuildCounter()
                                                          .Name("tandem_http_requests_total")
                                                          .Help("Requests by route and status")
                                                          .Register(registry);
  prometheus::Counter& disconnects = prometheus::BuildCounter()
                                         .Name("tandem_http_disconnects_total")
                                         .Help("Clients that left before the reply was complete")
                                         .Register(registry)
                                         .Add({});
  prometheus::Family<Histogram>& request_seconds = prometheus::BuildHistogram()
                                                       .Name("tandem_http_request_seconds")
                                                       .Help("From the request's last byte to the reply's")
                                                       .Register(registry);
  Histogram& first_token = histogram("tandem_time_to_first_token_seconds",
                                     "From the request's last byte to its first token", kFirstTokenSeconds);
  Histogram& inter_token =
      histogram("tandem_inter_token_seconds", "Between two tokens of an answer", kInterTokenSeconds);
  Histogram& answer =
      histogram("tandem_answer_seconds", "From the request's last byte to an answer's end", kRequestSeconds);
  prometheus::Counter& prompt_tokens = prometheus::BuildCounter()
                                           .Name("tandem_prompt_tokens_total")
                                           .Help("Tokens of the prompts of ended answers")
                                           .Register(registry)
                                           .Add({});
  prometheus::Counter& completion_tokens = prometheus::BuildCounter()
                                               .Name("tandem_completion_tokens_total")
                                               .Help("Tokens of ended answers")
                                               .Register(registry)
                                               .Add({});

  Histogram& histogram(const char* name, const char* help, const Histogram::BucketBoundaries& bounds) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, bounds);
  }
};

ServingMetrics::ServingMetrics() : impl_(std::make_unique<Impl>()) {}
ServingMetrics::~ServingMetrics() = default;

void ServingMetrics::count_request(const std::string& route, int status, bool disconnected, double seconds) {
  impl_->requests.Add({{"route", route}, {"status", std::to_string(status)}}).Increment();
  impl_->request_seconds.Add({{"route", route}}, kRequestSeconds).Observe(seconds);
  if (disconnected) impl_->disconnects.Increment();
}

void ServingMetrics::observe_first_token(double seconds) {
  impl_->first_token.Observe(seconds);
}
void ServingMetrics::observe_inter_token(double seconds) {
  impl_->inter_token.Observe(seconds);
}

void ServingMetrics::observe_answer(double seconds, uint32_t prompt_tokens, uint32_t completion_tokens) {
  impl_->answer.Observe(seconds);
  impl_->prompt_tokens.Increment(prompt_tokens);
  impl_->completion_tokens.Increment(completion_tokens);
}

std::string ServingMetrics::text(const Engine* engine) const {
  std::vector<MetricFamily> families = impl_->registry.Collect();
  families.push_back(
      single("tandem_ready", "1 once the model is loaded", MetricType::Gauge, engine != nullptr ? 1 : 0));
  if (engine != nullptr) {
    append_engine(*engine, families);
    append_ranks(*engine, families);
  }
  return prometheus::TextSerializer().Serialize(families);
}

const char* ServingMetrics::content_type() {
  return "text/plain; version=0.0.4; charset=utf-8";
}

}  // namespace tandem
