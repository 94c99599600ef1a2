// The engine protocol: requests, events and states.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "serving/engine_wire.h"
#include "serving/tagged_fields.h"

namespace tandem {
namespace {

// Tags are never used again for something else.
enum RequestTag : uint16_t {
  kId = 1,
  kPrompt,
  kTemperature,
  kTopK,
  kTopP,
  kMinP,
  kSeed,
  kStream,
  kFrequencyPenalty,
  kPresencePenalty,
  kRepetitionPenalty,
  kBiasTokens,
  kBiases,
  kMaxTokens,
  kMinTokens,
  kStopTokens,
  kIgnoreEos,
  kTopLogprobs,
  kMicrosecondsLeft,
  kHashLogits,
  kGrammarKind,
  kGrammarText,
  kReasoningBegin,
  kReasoningEnd,
  kInReasoning,
  kCacheSalt,
  kBypassPrefixCache,
  kPriority,
};

// What travels must be written down here: a new member would be lost between front and rank.
// (Sizes with libstdc++ on 64-bit machines.)
static_assert(sizeof(GenerationRequest) == 280,
              "GenerationRequest or SamplingParams has changed: give the new member a tag here");
static_assert(sizeof(TokenEvent) == 40, "TokenEvent has changed: give the new member a place in its record");
static_assert(sizeof(Finish) == 72, "Finish has changed: give the new member a place in its record");

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
};
static_assert(sizeof(EngineStats) == 344, "EngineStats has changed: give the new count a tag here");

constexpr size_t kRecordHeadBytes = 16;
constexpr size_t kTokenBytes = kRecordHeadBytes + 16;
constexpr size_t kFinishBytes = kRecordHeadBytes + 24;
constexpr uint16_t kTokenRecord = 1, kFinishRecord = 2;

std::byte* open_record(std::vector<std::byte>& out, uint16_t type, uint16_t count, size_t bytes,
                       uint64_t request) {
  const size_t at = out.size();
  out.resize(at + bytes);
  store_number<uint16_t>(&out[at], type);
  store_number<uint16_t>(&out[at + 2], count);
  store_number<uint32_t>(&out[at + 4], static_cast<uint32_t>(bytes));
  store_number<uint64_t>(&out[at + 8], request);
  return &out[at + kRecordHeadBytes];
}

ErrorCode code_of(uint8_t value) {
  return value <= static_cast<uint8_t>(ErrorCode::internal) ? static_cast<ErrorCode>(value)
                                                            : ErrorCode::internal;
}

std::unexpected<Error> damaged(const std::string& what) {
  return make_error(ErrorCode::data_loss, "events: " + what);
}

template <class T>
Result<bool> take(const TaggedField& field, T& into) {
  TANDEM_TRY(field.read(into));
  return true;
}

}  // namespace

// ---- requests ----

std::vector<std::byte> RequestLayout::encode(const GenerationRequest& request, Instant at) {
  const SamplingParams& sampling = request.sampling;
  const SamplingParams normal;
  FieldWriter out;
  out.text(kId, request.id);
  out.numbers(kPrompt, request.prompt);
  out.number(kTemperature, sampling.temperature, normal.temperature);
  out.number(kTopK, sampling.top_k, normal.top_k);
  out.number(kTopP, sampling.top_p, normal.top_p);
  out.number(kMinP, sampling.min_p, normal.min_p);
  if (sampling.seed) out.number(kSeed, *sampling.seed, ~*sampling.seed);  // present, whatever its value
  out.number(kStream, sampling.stream, normal.stream);
  out.number(kFrequencyPenalty, sampling.frequency_penalty, normal.frequency_penalty);
  out.number(kPresencePenalty, sampling.presence_penalty, normal.presence_penalty);
  out.number(kRepetitionPenalty, sampling.repetition_penalty, normal.repetition_penalty);
  std::vector<int32_t> tokens;
  std::vector<float> biases;
  for (const auto& [token, bias] : sampling.logit_bias) {
    tokens.push_back(token);
    biases.push_back(bias);
  }
  out.numbers(kBiasTokens, tokens);
  out.numbers(kBiases, biases);
  out.number(kMaxTokens, sampling.max_tokens, normal.max_tokens);
  out.number(kMinTokens, sampling.min_tokens, normal.min_tokens);
  out.numbers(kStopTokens, sampling.stop_token_ids);
  out.boolean(kIgnoreEos, sampling.ignore_eos);
  out.number(kTopLogprobs, sampling.top_logprobs, normal.top_logprobs);
  const GrammarSpec& grammar = sampling.grammar;
  out.number(kGrammarKind, static_cast<uint8_t>(grammar.kind));
  out.text(kGrammarText, grammar.text);
  out.number(kReasoningBegin, grammar.reasoning_begin, -1);
  out.number(kReasoningEnd, grammar.reasoning_end, -1);
  out.boolean(kInReasoning, grammar.in_reasoning);
  if (request.deadline != Instant::max()) {
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(request.deadline - at).count();
    out.number<uint64_t>(kMicrosecondsLeft, static_cast<uint64_t>(std::max<int64_t>(left, 0)), UINT64_MAX);
  }
  out.boolean(kHashLogits, request.hash_logits);
  out.text(kCacheSalt, request.cache_salt);
  out.boolean(kBypassPrefixCache, request.bypass_prefix_cache);
  out.number(kPriority, request.priority, 0);
  return out.take();
}

Result<GenerationRequest> RequestLayout::decode(std::span<const std::byte> bytes, Instant at) {
  GenerationRequest request;
  SamplingParams& sampling = request.sampling;
  std::vector<int32_t> tokens;
  std::vector<float> biases;
  uint64_t seed = 0, left = UINT64_MAX;
  uint8_t grammar_kind = 0;
  const auto known = [&](const TaggedField& field) -> Result<bool> {
    switch (field.tag) {
      case kId:
        return take(field, request.id);
      case kPrompt:
        return take(field, request.prompt);
      case kTemperature:
        return take(field, sampling.temperature);
      case kTopK:
        return take(field, sampling.top_k);
      case kTopP:
        return take(field, sampling.top_p);
      case kMinP:
        return take(field, sampling.min_p);
      case kSeed: {
        TANDEM_TRY(field.read(seed));
        sampling.seed = seed;
        return true;
      }
      case kStream:
        return take(field, sampling.stream);
      case kFrequencyPenalty:
        return take(field, sampling.frequency_penalty);
      case kPresencePenalty:
        return take(field, sampling.presence_penalty);
      case kRepetitionPenalty:
        return take(field, sampling.repetition_penalty);
      case kBiasTokens:
        return take(field, tokens);
      case kBiases:
        return take(field, biases);
      case kMaxTokens:
        return take(field, sampling.max_tokens);
      case kMinTokens:
        return take(field, sampling.min_tokens);
      case kStopTokens:
        return take(field, sampling.stop_token_ids);
      case kIgnoreEos:
        return take(field, sampling.ignore_eos);
      case kTopLogprobs:
        return take(field, sampling.top_logprobs);
      case kMicrosecondsLeft:
        return take(field, left);
      case kHashLogits:
        return take(field, request.hash_logits);
      case kCacheSalt:
        return take(field, request.cache_salt);
      case kPriority:
        return take(field, request.priority);
      case kBypassPrefixCache:
        return take(field, request.bypass_prefix_cache);
      case kGrammarKind:
        return take(field, grammar_kind);
      case kGrammarText:
        return take(field, sampling.grammar.text);
      case kReasoningBegin:
        return take(field, sampling.grammar.reasoning_begin);
      case kReasoningEnd:
        return take(field, sampling.grammar.reasoning_end);
      case kInReasoning:
        return take(field, sampling.grammar.in_reasoning);
      default:
        return false;
    }
  };
  TANDEM_TRY(read_fields(bytes, "submit", known));
  if (tokens.size() != biases.size()) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("submit: {} biased tokens and {} biases", tokens.size(), biases.size()));
  }
  if (grammar_kind >= kGrammarKinds) {
    return make_error(ErrorCode::invalid_argument, fmt::format("submit: grammar of kind {}", grammar_kind));
  }
  sampling.grammar.kind = static_cast<GrammarKind>(grammar_kind);
  for (size_t i = 0; i < tokens.size(); ++i) sampling.logit_bias.emplace_back(tokens[i], biases[i]);
  // A deadline that is further away than a clock can say is none.
  if (left < static_cast<uint64_t>(
                 std::chrono::duration_cast<std::chrono::microseconds>(Instant::max() - at).count()))
    request.deadline = at + std::chrono::microseconds(left);
  return request;
}

// ---- events ----

void EventLayout::append(uint64_t request, const TokenEvent& event, std::vector<std::byte>& out) {
  const size_t count = std::min(event.top_logprobs.size(), kMaxTopLogprobs);
  std::byte* at =
      open_record(out, kTokenRecord, static_cast<uint16_t>(count), kTokenBytes + count * 8, request);
  store_number(at, event.token);
  store_number(at + 4, event.logprob);
  store_number(at + 8, event.index);
  store_number<uint32_t>(at + 12, 0);
  for (size_t i = 0; i < count; ++i) {
    store_number(at + 16 + i * 8, event.top_logprobs[i].token);
    store_number(at + 20 + i * 8, event.top_logprobs[i].logprob);
  }
}

void EventLayout::append(uint64_t request, const Finish& finish, std::vector<std::byte>& out) {
  const std::string_view text = std::string_view(finish.error.message).substr(0, kMaxTextBytes);
  std::byte* at = open_record(out, kFinishRecord, 0, kFinishBytes + text.size(), request);
  store_number<uint8_t>(at, static_cast<uint8_t>(finish.reason));
  store_number<uint8_t>(at + 1, static_cast<uint8_t>(finish.error.code));
  store_number<uint16_t>(at + 2, 0);
  store_number(at + 4, finish.prompt_tokens);
  store_number(at + 8, finish.cached_tokens);
  store_number(at + 12, finish.completion_tokens);
  store_number(at + 16, finish.logits_hash);
  std::memcpy(at + 24, text.data(), text.size());
}

size_t EventLayout::whole_records(std::span<const std::byte> records, size_t limit) {
  size_t bytes = 0;
  while (bytes < records.size()) {
    const auto next = load_number<uint32_t>(&records[bytes + 4]);
    if (bytes + next > limit) break;
    bytes += next;
  }
  return bytes;
}

Status EventLayout::visit(std::span<const std::byte> body, Visitor& visitor) {
  while (!body.empty()) {
    if (body.size() < kRecordHeadBytes) return damaged("they end inside a record");
    const auto type = load_number<uint16_t>(&body[0]);
    const auto count = load_number<uint16_t>(&body[2]);
    const auto bytes = load_number<uint32_t>(&body[4]);
    const auto request = load_number<uint64_t>(&body[8]);
    if (bytes < kRecordHeadBytes || bytes > body.size())
      return damaged(fmt::format("a record of {} bytes", bytes));
    const std::byte* at = &body[kRecordHeadBytes];
    if (type == kTokenRecord) {
      if (bytes != kTokenBytes + size_t{count} * 8) return damaged(fmt::format("a token of {} bytes", bytes));
      TokenEvent event;
      event.token = load_number<int32_t>(at);
      event.logprob = load_number<float>(at + 4);
      event.index = load_number<uint32_t>(at + 8);
      for (size_t i = 0; i < count; ++i) {
        event.top_logprobs.push_back(
            {load_number<int32_t>(at + 16 + i * 8), load_number<float>(at + 20 + i * 8)});
      }
      visitor.on_token(request, event);
    } else if (type == kFinishRecord) {
      if (bytes < kFinishBytes || bytes > kFinishBytes + kMaxTextBytes)
        return damaged(fmt::format("an end of {} bytes", bytes));
      const auto reason = load_number<uint8_t>(at);
      if (reason > static_cast<uint8_t>(FinishReason::error)) return damaged(fmt::format("end {}", reason));
      Finish finish;
      finish.reason = static_cast<FinishReason>(reason);
      finish.error.code = code_of(load_number<uint8_t>(at + 1));
      finish.prompt_tokens = load_number<uint32_t>(at + 4);
      finish.cached_tokens = load_number<uint32_t>(at + 8);
      finish.completion_tokens = load_number<uint32_t>(at + 12);
      finish.logits_hash = load_number<uint64_t>(at + 16);
      finish.error.message.assign(reinterpret_cast<const char*>(at + 24), bytes - kFinishBytes);
      visitor.on_finish(request, finish);
    } else {
      return damaged(fmt::format("a record of type {}", type));
    }
    body = body.subspan(bytes);
  }
  return {};
}

// ---- states ----

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
  out.number(kMixedSteps, stats.mixed_steps);
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
  return EngineHead::wrap(EngineMessage::state, out.take());
}

Result<EngineState> StateLayout::decode(std::span<const std::byte> body) {
  EngineState state;
  EngineStats& stats = state.stats;
  uint8_t code = UINT8_MAX;
  std::string text;
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
      case kMixedSteps:
        return take(field, stats.mixed_steps);
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
      default:
        if (field.tag >= kDraftsAcceptedFirst && field.tag <= kDraftsAcceptedLast)
          return take(field, stats.speculation.accepted_at[field.tag - kDraftsAcceptedFirst]);
        return false;
    }
  };
  TANDEM_TRY(read_fields(body, "state", known));
  if (code != UINT8_MAX) state.health = make_error(code_of(code), std::move(text));
  return state;
}

}  // namespace tandem
