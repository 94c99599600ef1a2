// The engine protocol: states.
#include <algorithm>

#include "serving/engine_wire.h"
#include "serving/tagged_fields.h"

namespace tandem {
namespace {

enum StateTag : uint16_t {
  kHealthCode = 1,
  kHealthText,
  kWaiting,
  kRunning,
  kKvBlocksTotal,
  kKvBlocksUsed,
  kPromptTokens,
  kGeneratedTokens,
  kSteps,
  kFinished,
  kCancelled,
  kFailed,
  kPreempted,
  kFfnSubmits,
  kFfnWaitSeconds,
  kStepSeconds,
  kDecodeLanes,
  kEagerSteps,
  kGraphReplays,
  kGraphPaddedReplays,
  kGraphMisses,
  kGraphWarmups,
  kEagerLayers,
  kReplayLayers,
  kEagerHostSeconds,
  kReplayHostSeconds,
  kFfnRoundTripSeconds,
  kFfnResidenceSeconds,
  kRouterCalls,
  kRouterSeconds,
  kDraftTokens,
  kDrafted,
  kDraftsAccepted,
  kDraftRounds,
  kDraftSeconds,
  kDraftsAcceptedFirst,  // by position; the other positions follow
  kDraftsAcceptedLast = kDraftsAcceptedFirst + SpeculationStats::kPositions - 1,
  kPrefixQueriedTokens,
  kPrefixHitTokens,
  kPrefixKeptBlocks,
  kMixedSteps,
  kQueueCounts,
  kQueueSeconds,
  kDecodeSteps,
  kDecodeRows,
  kPrefillSteps,
  kPrefillRows,
  kOverdue,
  kFfnQueueSeconds,
  kFfnComputeSeconds,
  kFfnExchangeSeconds,
  kLaneBusySeconds,
};
static_assert(sizeof(EngineStats) == 560, "EngineStats has changed: give the new count a tag here");

}  // namespace

std::vector<std::byte> StateLayout::encode(const EngineState& state) {
  const EngineStats& stats = state.stats;
  FieldWriter out;
  if (!state.health) {
    out.number<uint8_t>(kHealthCode, static_cast<uint8_t>(state.health.error().code), UINT8_MAX);
    out.text(kHealthText,
             std::string_view(state.health.error().message).substr(0, EventLayout::kMaxTextBytes));
  }
  out.number(kWaiting, stats.waiting);
  out.number(kRunning, stats.running);
  out.number(kKvBlocksTotal, stats.kv_blocks_total);
  out.number(kKvBlocksUsed, stats.kv_blocks_used);
  out.number(kPromptTokens, stats.prompt_tokens);
  out.number(kGeneratedTokens, stats.generated_tokens);
  out.number(kSteps, stats.steps);
  out.number(kFinished, stats.finished);
  out.number(kCancelled, stats.cancelled);
  out.number(kFailed, stats.failed);
  out.number(kPreempted, stats.preempted);
  out.number(kOverdue, stats.overdue);
  out.number(kFfnSubmits, stats.ffn_submits);
  out.number(kFfnWaitSeconds, stats.ffn_wait_seconds);
  out.number(kStepSeconds, stats.step_seconds);
  out.number(kDecodeLanes, stats.decode_lanes, EngineStats{}.decode_lanes);
  const ExecutionStats& execution = stats.execution;
  out.number(kEagerSteps, execution.eager_steps);
  out.number(kGraphReplays, execution.graph_replays);
  out.number(kGraphPaddedReplays, execution.graph_padded_replays);
  out.number(kGraphMisses, execution.graph_misses);
  out.number(kGraphWarmups, execution.graph_warmups);
  out.number(kEagerLayers, execution.eager_layers);
  out.number(kReplayLayers, execution.replay_layers);
  out.number(kEagerHostSeconds, execution.eager_host_seconds);
  out.number(kReplayHostSeconds, execution.replay_host_seconds);
  out.number(kFfnRoundTripSeconds, stats.ffn_round_trip_seconds);
  out.number(kFfnResidenceSeconds, stats.ffn_residence_seconds);
  out.number(kFfnQueueSeconds, stats.ffn_queue_seconds);
  out.number(kFfnComputeSeconds, stats.ffn_compute_seconds);
  out.number(kFfnExchangeSeconds, stats.ffn_exchange_seconds);
  out.number(kLaneBusySeconds, stats.lane_busy_seconds);
  out.number(kRouterCalls, stats.router_calls);
  out.number(kRouterSeconds, stats.router_seconds);
  const SpeculationStats& speculation = stats.speculation;
  out.number(kDraftTokens, speculation.tokens);
  out.number(kDrafted, speculation.drafted);
  out.number(kDraftsAccepted, speculation.accepted);
  out.number(kDraftRounds, speculation.rounds);
  out.number(kDraftSeconds, speculation.seconds);
  for (size_t position = 0; position < SpeculationStats::kPositions; ++position)
    out.number(static_cast<uint16_t>(kDraftsAcceptedFirst + position), speculation.accepted_at[position]);
  out.number(kPrefixQueriedTokens, stats.prefix.queried_tokens);
  out.number(kPrefixHitTokens, stats.prefix.hit_tokens);
  out.number(kPrefixKeptBlocks, stats.prefix.kept_blocks);
  out.number(kMixedSteps, stats.mixed_steps);
  const auto& waits = stats.queue.counts;
  out.numbers(kQueueCounts, std::vector<uint64_t>(waits.begin(), waits.end()));
  out.number(kQueueSeconds, stats.queue.seconds);
  out.number(kDecodeSteps, stats.batch.decode_steps);
  out.number(kDecodeRows, stats.batch.decode_rows);
  out.number(kPrefillSteps, stats.batch.prefill_steps);
  out.number(kPrefillRows, stats.batch.prefill_rows);
  return EngineHead::wrap(EngineMessage::state, out.take());
}

Result<EngineState> StateLayout::decode(std::span<const std::byte> body) {
  EngineState state;
  EngineStats& stats = state.stats;
  uint8_t code = UINT8_MAX;
  std::string text;
  std::vector<uint64_t> waits;
  const auto known = [&](const TaggedField& field) -> Result<bool> {
    switch (field.tag) {
      case kHealthCode:
        return take(field, code);
      case kHealthText:
        return take(field, text);
      case kWaiting:
        return take(field, stats.waiting);
      case kRunning:
        return take(field, stats.running);
      case kKvBlocksTotal:
        return take(field, stats.kv_blocks_total);
      case kKvBlocksUsed:
        return take(field, stats.kv_blocks_used);
      case kPromptTokens:
        return take(field, stats.prompt_tokens);
      case kGeneratedTokens:
        return take(field, stats.generated_tokens);
      case kSteps:
        return take(field, stats.steps);
      case kFinished:
        return take(field, stats.finished);
      case kCancelled:
        return take(field, stats.cancelled);
      case kFailed:
        return take(field, stats.failed);
      case kPreempted:
        return take(field, stats.preempted);
      case kOverdue:
        return take(field, stats.overdue);
      case kFfnSubmits:
        return take(field, stats.ffn_submits);
      case kFfnWaitSeconds:
        return take(field, stats.ffn_wait_seconds);
      case kStepSeconds:
        return take(field, stats.step_seconds);
      case kDecodeLanes:
        return take(field, stats.decode_lanes);
      case kEagerSteps:
        return take(field, stats.execution.eager_steps);
      case kGraphReplays:
        return take(field, stats.execution.graph_replays);
      case kGraphPaddedReplays:
        return take(field, stats.execution.graph_padded_replays);
      case kGraphMisses:
        return take(field, stats.execution.graph_misses);
      case kGraphWarmups:
        return take(field, stats.execution.graph_warmups);
      case kEagerLayers:
        return take(field, stats.execution.eager_layers);
      case kReplayLayers:
        return take(field, stats.execution.replay_layers);
      case kEagerHostSeconds:
        return take(field, stats.execution.eager_host_seconds);
      case kReplayHostSeconds:
        return take(field, stats.execution.replay_host_seconds);
      case kFfnRoundTripSeconds:
        return take(field, stats.ffn_round_trip_seconds);
      case kFfnResidenceSeconds:
        return take(field, stats.ffn_residence_seconds);
      case kFfnQueueSeconds:
        return take(field, stats.ffn_queue_seconds);
      case kFfnComputeSeconds:
        return take(field, stats.ffn_compute_seconds);
      case kFfnExchangeSeconds:
        return take(field, stats.ffn_exchange_seconds);
      case kLaneBusySeconds:
        return take(field, stats.lane_busy_seconds);
      case kRouterCalls:
        return take(field, stats.router_calls);
      case kRouterSeconds:
        return take(field, stats.router_seconds);
      case kDraftTokens:
        return take(field, stats.speculation.tokens);
      case kDrafted:
        return take(field, stats.speculation.drafted);
      case kDraftsAccepted:
        return take(field, stats.speculation.accepted);
      case kDraftRounds:
        return take(field, stats.speculation.rounds);
      case kDraftSeconds:
        return take(field, stats.speculation.seconds);
      case kPrefixQueriedTokens:
        return take(field, stats.prefix.queried_tokens);
      case kPrefixHitTokens:
        return take(field, stats.prefix.hit_tokens);
      case kPrefixKeptBlocks:
        return take(field, stats.prefix.kept_blocks);
      case kMixedSteps:
        return take(field, stats.mixed_steps);
      case kQueueCounts:
        return take(field, waits);
      case kQueueSeconds:
        return take(field, stats.queue.seconds);
      case kDecodeSteps:
        return take(field, stats.batch.decode_steps);
      case kDecodeRows:
        return take(field, stats.batch.decode_rows);
      case kPrefillSteps:
        return take(field, stats.batch.prefill_steps);
      case kPrefillRows:
        return take(field, stats.batch.prefill_rows);
      default:
        if (field.tag >= kDraftsAcceptedFirst && field.tag <= kDraftsAcceptedLast)
          return take(field, stats.speculation.accepted_at[field.tag - kDraftsAcceptedFirst]);
        return false;
    }
  };
  TANDEM_TRY(read_fields(body, "state", known));
  // Of a release with other bounds: nothing can be said.
  if (waits.size() == stats.queue.counts.size()) std::ranges::copy(waits, stats.queue.counts.begin());
  if (code != UINT8_MAX) state.health = make_error(code_of(code), std::move(text));
  return state;
}

}  // namespace tandem
