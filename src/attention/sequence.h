// Sequence: one answer being generated, as the worker sees it: its tokens, its state, and who listens. Worker
// thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "attention/answer_form.h"
#include "attention/engine.h"
#include "attention/prefix_cache.h"
#include "attention/sampler.h"
#include "attention/sequence_state.h"
#include "attention/speculation.h"

namespace tandem {

struct Sequence {
  Sequence(RequestId request_id, GenerationRequest generation, std::shared_ptr<GenerationSink> listener,
           StatePools& pools, uint32_t max_context_tokens)
      : id(request_id),
        request(std::move(generation)),
        sink(std::move(listener)),
        tokens(request.prompt),
        prompt_tokens(static_cast<uint32_t>(request.prompt.size())),
        state(pools, max_context_tokens) {
    // So that a step allocates nothing.
    tokens.reserve(std::min<uint64_t>(uint64_t{prompt_tokens} + request.sampling.max_tokens,
                                      std::max(max_context_tokens, prompt_tokens)));
    drafts.reserve(kMaxDraftTokens);
    prefix.salt = request.cache_salt;
    prefix.may_read = !request.bypass_prefix_cache && prompt_is_scored();
  }

  RequestId id;  // ascending by arrival: the smaller one is older
  GenerationRequest request;
  std::shared_ptr<GenerationSink> sink;
  uint64_t seed = 0;
  Instant arrived;             // at this engine
  bool was_scheduled = false;  // rows of it have been in a step

  std::vector<int32_t> tokens;  // the prompt, then what was generated
  uint32_t prompt_tokens = 0;
  SequenceState state;  // length(): tokens whose keys and values are in the cache
  PrefixUse prefix;
  // Tokens of the prompt that did not have to be computed when the sequence was first taken in.
  std::optional<uint32_t> cached_tokens;
  TokenHistory history;
  AnswerForm form;  // where the answer stands in its grammar
  uint64_t logits_hash = 0;
  // Rows of the prompt, from the first on, whose token behind has been scored
  // (SamplingParams::prompt_logprobs).
  uint32_t scored_rows = 0;

  // Proposed to follow `tokens`; the next decode step verifies them.
  std::vector<int32_t> drafts;
  // Behind them the drafter had one that it was not confident of.
  bool drafts_are_cut = false;
  // The drafter has seen every row of `state`: it can go on. A sequence that began, or went on, without it
  // gets no drafts any more. (A drafter of blocks sees every row in the model's own steps.)
  bool is_drafting = false;

  bool in_step = false;       // a lane computes rows of it now: its state must not change
  bool is_cancelled = false;  // ends with its step

  // When it ends if nothing else ends it before.
  Instant limit() const {
    return was_scheduled ? request.deadline : std::min(request.deadline, request.queue_deadline);
  }
  // The order in which sequences are taken in and get blocks.
  bool comes_before(const Sequence& other) const {
    return request.priority != other.request.priority ? request.priority < other.request.priority
                                                      : id < other.id;
  }
  // The prompt's last token has nothing behind it that could be scored.
  bool prompt_is_scored() const {
    return request.sampling.prompt_logprobs < 0 || scored_rows + 1 >= prompt_tokens;
  }
  // Everything computed so far has been scored. Computed again, after a preemption, it may come from the
  // cache.
  void note_scored() {
    if (prompt_is_scored()) return;
    scored_rows = std::max(scored_rows, std::min(state.length(), prompt_tokens - 1));
    prefix.may_read = !request.bypass_prefix_cache && prompt_is_scored();
  }
  uint32_t generated() const { return static_cast<uint32_t>(tokens.size()) - prompt_tokens; }
  // Tokens that must be computed before the next one can be sampled. At least 1 while the sequence lives.
  uint32_t pending() const { return static_cast<uint32_t>(tokens.size()) - state.length(); }
  bool is_decoding() const { return state.length() > 0 && pending() == 1; }
};

}  // namespace tandem
