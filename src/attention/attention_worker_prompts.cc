// The prompts' log probabilities of AttentionWorker: the head runs over a prefill step's rows in parts, so
// that their logits need no more memory than those of a step that samples.
#include <algorithm>
#include <string>

#include "attention/attention_worker_impl.h"

namespace tandem {

void AttentionWorker::Impl::begin_scores(StepLane& lane, StepBatch& batch) {
  lane.scored_rows.clear();
  lane.scored_in_step.clear();
  lane.next_scored = lane.head_rows = 0;
  lane.sampled_rows = batch.logit_rows;
  uint32_t row = 0;
  for (const StepPart& part : lane.parts) {
    const Sequence& sequence = *part.sequence;
    const uint32_t begin = sequence.state.length() + part.offset;
    for (uint32_t i = 0; i < part.rows && !sequence.prompt_is_scored(); ++i) {
      const uint32_t position = begin + i;
      if (position < sequence.scored_rows || position + 1 >= sequence.prompt_tokens) continue;
      lane.scored_rows.push_back({part.sequence, position});
      lane.scored_in_step.push_back(row + i);
    }
    row += part.rows;
  }
  if (lane.scored_rows.empty()) return;
  lane.head_rows =
      std::min<size_t>(lane.scored_rows.size(), lane.lane->program(lane.program).shape().logits_capacity);
  batch.logit_rows = std::span(lane.scored_in_step).first(lane.head_rows);
}

bool AttentionWorker::Impl::score(Lane& computed) {
  StepStream& stream = stream_of(computed);
  const auto at =
      std::ranges::find_if(stream.lanes, [&](const StepLane& lane) { return lane.lane.get() == &computed; });
  if (at == stream.lanes.end() || at->next_scored == at->scored_rows.size()) return false;  // or a drafter's
  StepLane& lane = *at;
  deliver_scores(lane);
  lane.next_scored += lane.head_rows;
  const size_t left = lane.scored_rows.size() - lane.next_scored;
  lane.head_rows = std::min<size_t>(left, computed.program().shape().logits_capacity);
  const std::span<const uint32_t> rows =
      left > 0 ? std::span<const uint32_t>(lane.scored_in_step).subspan(lane.next_scored, lane.head_rows)
               : lane.sampled_rows;
  if (rows.empty()) return false;
  const Status started = executor.start_head(computed, rows);
  if (!started) fail_step(stream, started.error());
  return true;
}

void AttentionWorker::Impl::deliver_scores(const StepLane& lane) {
  ThreadPool& pool = executor.device().kernels().pool();
  const std::span<const StepLane::ScoredRow> rows =
      std::span(lane.scored_rows).subspan(lane.next_scored, lane.head_rows);
  scores.assign(rows.size(), {});
  scratch_of_worker.resize(static_cast<size_t>(pool.threads()));
  pool.run(rows.size(), [&](size_t i, int worker) {
    const Sequence& sequence = *rows[i].sequence;
    const uint32_t position = rows[i].position + 1;  // of the token that the row's logits are for
    scores[i].token = sequence.tokens[position];
    scores[i].index = position;
    add_logprobs(lane.lane->logits(static_cast<uint32_t>(i)),
                 static_cast<uint32_t>(sequence.request.sampling.prompt_logprobs),
                 scratch_of_worker[static_cast<size_t>(worker)], scores[i]);
  });
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].sequence->is_cancelled) rows[i].sequence->sink->on_prompt_token(scores[i]);
  }
}

}  // namespace tandem
