// Steps of AttentionWorker that have decode rows and rows of prompts: mixed_steps.h says how many.
#include <algorithm>

#include "attention/attention_worker_impl.h"

namespace tandem {

// Where experts are behind a wire, prompts' rows have the time in which decode rows wait for them: a step of
// both would leave attention and the experts waiting for each other. Captured programs hold decode rows
// alone, and behind drafts comes a round of the drafter for each kind.
bool AttentionWorker::Impl::can_mix() const {
  return port->wait_fd() < 0 && num_decode_lanes == 1 && streams.back().lanes.size() == 1 &&
         streams.front().programs.words.size() == 1 && options.speculation.num_tokens == 0;
}

// Beside prompts' own steps no decode step takes rows along: one that began while a decode step is in work
// would keep steps apart until its prompt ends.
bool AttentionWorker::Impl::waits_to_mix() {
  if (!can_mix() || streams.back().busy()) return false;
  turns.set_load(scheduler.num_prefilling(), scheduler.num_decoding());
  return turns.is_shared() && !mixes.goes_apart();
}

bool AttentionWorker::Impl::start_mixed() {
  StepStream &decode = streams.front(), &prefill = streams.back();
  if (!can_mix() || decode.busy() || prefill.busy()) return false;
  const uint32_t sequences = scheduler.num_decoding();
  turns.set_load(scheduler.num_prefilling(), sequences);
  if (!turns.is_shared()) return false;
  const uint32_t room = options.scheduler.max_num_batched_tokens;
  const MixedPlan next = mixes.plan(sequences, turns.ratio(), room - std::min(room, sequences));
  // Without blocks for any of them prompts go on by themselves.
  if (next.mix == StepMix::apart || !plan(decode)) return false;
  if (next.mix == StepMix::mixed && plan_prompts(prefill, next.prompt_rows)) {
    std::vector<StepPart>&first = decode.lanes[0].parts, &parts = prefill.lanes[0].parts;
    prefill.decode_parts = static_cast<uint32_t>(first.size());
    parts.insert(parts.begin(), first.begin(), first.end());
    first.clear();
    start(prefill);
    return true;
  }
  decodes_alone = true;
  start(decode);
  return true;
}

}  // namespace tandem
