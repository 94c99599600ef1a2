// The engine protocol: requests and events.
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
  kPromptLogprobs,
  kQueueMicrosecondsLeft,
  kReasoningBudget,
};

// What travels must be written down here: a new member would be lost between front and rank.
// (Sizes with libstdc++ on 64-bit machines.)
static_assert(sizeof(GenerationRequest) == 296,
              "GenerationRequest or SamplingParams has changed: give the new member a tag here");
static_assert(sizeof(TokenEvent) == 40, "TokenEvent has changed: give the new member a place in its record");
static_assert(sizeof(Finish) == 72, "Finish has changed: give the new member a place in its record");

constexpr size_t kRecordHeadBytes = 16;
constexpr size_t kTokenBytes = kRecordHeadBytes + 16;
constexpr size_t kFinishBytes = kRecordHeadBytes + 24;
constexpr uint16_t kTokenRecord = 1, kFinishRecord = 2, kPromptRecord = 3;

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

std::unexpected<Error> damaged(const std::string& what) {
  return make_error(ErrorCode::data_loss, "events: " + what);
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
  out.number(kPromptLogprobs, sampling.prompt_logprobs, normal.prompt_logprobs);
  const GrammarSpec& grammar = sampling.grammar;
  out.number(kGrammarKind, static_cast<uint8_t>(grammar.kind));
  out.text(kGrammarText, grammar.text);
  out.number(kReasoningBegin, grammar.reasoning_begin, -1);
  out.number(kReasoningEnd, grammar.reasoning_end, -1);
  out.boolean(kInReasoning, grammar.in_reasoning);
  out.number(kReasoningBudget, grammar.reasoning_budget, UINT32_MAX);
  const auto time_left = [&](uint16_t tag, Instant deadline) {
    if (deadline == Instant::max()) return;
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline - at).count();
    out.number<uint64_t>(tag, static_cast<uint64_t>(std::max<int64_t>(left, 0)), UINT64_MAX);
  };
  time_left(kMicrosecondsLeft, request.deadline);
  time_left(kQueueMicrosecondsLeft, request.queue_deadline);
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
  uint64_t seed = 0, left = UINT64_MAX, queue_left = UINT64_MAX;
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
      case kPromptLogprobs:
        return take(field, sampling.prompt_logprobs);
      case kMicrosecondsLeft:
        return take(field, left);
      case kQueueMicrosecondsLeft:
        return take(field, queue_left);
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
      case kReasoningBudget:
        return take(field, sampling.grammar.reasoning_budget);
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
  const auto most = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(Instant::max() - at).count());
  if (left < most) request.deadline = at + std::chrono::microseconds(left);
  if (queue_left < most) request.queue_deadline = at + std::chrono::microseconds(queue_left);
  return request;
}

// ---- events ----

namespace {

void append_token(uint16_t type, uint64_t request, const TokenEvent& event, std::vector<std::byte>& out) {
  const size_t count = std::min(event.top_logprobs.size(), EventLayout::kMaxTopLogprobs);
  std::byte* at = open_record(out, type, static_cast<uint16_t>(count), kTokenBytes + count * 8, request);
  store_number(at, event.token);
  store_number(at + 4, event.logprob);
  store_number(at + 8, event.index);
  store_number(at + 12, event.rank);
  for (size_t i = 0; i < count; ++i) {
    store_number(at + 16 + i * 8, event.top_logprobs[i].token);
    store_number(at + 20 + i * 8, event.top_logprobs[i].logprob);
  }
}

}  // namespace

void EventLayout::append(uint64_t request, const TokenEvent& event, std::vector<std::byte>& out) {
  append_token(kTokenRecord, request, event, out);
}

void EventLayout::append_prompt(uint64_t request, const TokenEvent& event, std::vector<std::byte>& out) {
  append_token(kPromptRecord, request, event, out);
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
    if (type == kTokenRecord || type == kPromptRecord) {
      if (bytes != kTokenBytes + size_t{count} * 8) return damaged(fmt::format("a token of {} bytes", bytes));
      TokenEvent event;
      event.token = load_number<int32_t>(at);
      event.logprob = load_number<float>(at + 4);
      event.index = load_number<uint32_t>(at + 8);
      event.rank = load_number<uint32_t>(at + 12);
      for (size_t i = 0; i < count; ++i) {
        event.top_logprobs.push_back(
            {load_number<int32_t>(at + 16 + i * 8), load_number<float>(at + 20 + i * 8)});
      }
      if (type == kTokenRecord) {
        visitor.on_token(request, event);
      } else {
        visitor.on_prompt_token(request, event);
      }
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

}  // namespace tandem
