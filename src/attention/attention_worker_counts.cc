// What AttentionWorker counts of its steps, and the number of decode lanes that follows.
#include <string>
#include <utility>

#include "attention/attention_worker_impl.h"
#include "base/log.h"

namespace tandem {
namespace {

// Decode steps between two choices of the number of lanes: enough to see what the last choice did.
constexpr uint32_t kStepsBetweenChoices = 64;

uint32_t rows_of(std::span<const StepPart> parts) {
  uint32_t rows = 0;
  for (const StepPart& part : parts) rows += part.rows;
  return rows;
}

}  // namespace

void AttentionWorker::Impl::count_execution(const StepStream& stream, const StepLane& lane,
                                            ExecutionStats& counts) {
  const bool replay = lane.program != 0;
  if (replay) {
    ++counts.graph_replays;
    counts.graph_padded_replays += rows_of(lane.parts) < stream.programs.capacities[lane.program] ? 1 : 0;
  } else {
    ++counts.eager_steps;
  }
  if (stream.row_class != RowClass::decode) return;
  counts.graph_misses += !replay && stream.programs.words.size() > 1 ? 1 : 0;
  const StepStats& step = lane.lane->stats();
  const double host =
      std::chrono::duration<double>(step.host + std::exchange(loop_host, Duration::zero())).count() +
      static_cast<double>(step.reply_ns) * 1e-9;
  (replay ? counts.replay_layers : counts.eager_layers) += stream.num_layers;
  (replay ? counts.replay_host_seconds : counts.eager_host_seconds) += host;
}

// The mutex is held.
void AttentionWorker::Impl::count_times(const StepStats& step) {
  stats.ffn_queue_seconds += static_cast<double>(step.queue_us) * 1e-6;
  stats.ffn_compute_seconds += static_cast<double>(step.compute_us) * 1e-6;
  stats.ffn_exchange_seconds += static_cast<double>(step.exchange_us) * 1e-6;
  stats.lane_busy_seconds += std::chrono::duration<double>(step.busy).count();
}

void AttentionWorker::Impl::count_step(const StepStream& stream, const StepLane& lane) {
  const StepStats& step = lane.lane->stats();
  {
    const std::lock_guard lock(mutex);
    ++stats.steps;
    stats.mixed_steps += stream.decode_parts > 0 ? 1 : 0;
    // Of a mixed step each kind has its rows.
    const uint32_t all = rows_of(lane.parts);
    const uint32_t decode = stream.row_class == RowClass::decode ? all : stream.decode_parts;
    stats.batch.decode_steps += decode > 0 ? 1 : 0;
    stats.batch.decode_rows += decode;
    stats.batch.prefill_steps += decode < all ? 1 : 0;
    stats.batch.prefill_rows += all - decode;
    count_execution(stream, lane, stats.execution);
    stats.ffn_submits += step.submits;
    stats.ffn_wait_seconds += std::chrono::duration<double>(step.waited).count();
    stats.step_seconds += std::chrono::duration<double>(step.elapsed).count();
    stats.ffn_round_trip_seconds += static_cast<double>(step.round_trip_us) * 1e-6;
    stats.ffn_residence_seconds += static_cast<double>(step.residence_us) * 1e-6;
    count_times(step);
  }
  const double busy = std::chrono::duration<double>(step.busy).count();
  if (stream.decode_parts > 0) {
    mixes.add_mixed_step(rows_of(lane.parts) - stream.decode_parts, busy);
    return;
  }
  if (stream.row_class != RowClass::decode) {
    turns.add_prefill_step(rows_of(lane.parts), stream.num_layers, busy);
    mixes.add_prefill_step(rows_of(lane.parts), busy);
    return;
  }
  turns.end_decode_step();
  mixes.add_decode_step(static_cast<uint32_t>(lane.parts.size()), busy);
  drafts.add_step(static_cast<uint32_t>(lane.parts.size()), rows_of(lane.parts),
                  std::chrono::duration<double>(step.elapsed).count());
  if (drafts.choose()) {
    log_info("speculative: auto: " + std::to_string(drafts.tokens()) + " drafts a step from now on");
  }
  if (!options.lanes.automatic) return;
  const auto rows = static_cast<double>(rows_of(lane.parts));
  attention_cost.add(rows, busy);
  const double there =
      static_cast<double>(step.residence_us - std::min(step.residence_us, step.queue_us)) * 1e-6;
  // With several lanes a round trip contains waiting for the other lane to look.
  if (num_decode_lanes == 1) {
    const double wire =
        static_cast<double>(step.round_trip_us - std::min(step.round_trip_us, step.residence_us)) * 1e-6;
    wire_seconds += (wire - wire_seconds) / 16;
  }
  experts_cost.add(rows, there + wire_seconds);
  if (++steps_since_choice >= kStepsBetweenChoices) choose_decode_lanes();
}

void AttentionWorker::Impl::choose_decode_lanes() {
  steps_since_choice = 0;
  // Experts in this process compute while attention waits for them, on the same thread: nothing can overlap.
  if (port->wait_fd() < 0) return;
  const double rows = static_cast<double>(scheduler.num_decoding()) * (1 + drafts.tokens());
  const uint32_t chosen = choose_lanes(attention_cost.line(), experts_cost.line(), rows,
                                       options.lanes.micro_batches, num_decode_lanes);
  if (chosen == num_decode_lanes) return;
  log_info("micro_batches: auto: " + std::to_string(chosen) + " decode lanes from now on, " +
           std::to_string(num_decode_lanes) + " before");
  num_decode_lanes = chosen;
}

}  // namespace tandem
