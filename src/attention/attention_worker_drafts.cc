// Drafts of AttentionWorker: verifying them, and the drafter's rounds behind a step.
#include <algorithm>
#include <string>

#include "attention/attention_worker_impl.h"

namespace tandem {

void AttentionWorker::Impl::count_draft(uint32_t row, uint32_t drafted) {
  const std::lock_guard lock(mutex);
  SpeculationStats& counts = stats.speculation;
  if (row == 0) {
    counts.drafted += drafted;
  } else {
    ++counts.accepted;
    ++counts.accepted_at[row - 1];
  }
}

bool AttentionWorker::Impl::verify(StepPart& part, const Lane& lane, uint32_t first_logit_row) {
  Sequence& sequence = *part.sequence;
  const std::span<const int32_t> proposed = std::span(sequence.drafts).first(part.drafts);
  const bool is_cut = sequence.drafts_are_cut;  // the sequence is gone once it has ended
  bool alive = true;
  const uint32_t accepted = verify_drafts(proposed, [&](uint32_t row) {
    // A row behind the first is sampled because the draft before it was right. Counted before the token is
    // delivered: who has been told of an end finds its counts complete.
    if (part.drafts > 0) count_draft(row, part.drafts);
    const int32_t token = sample(sequence, lane.logits(first_logit_row + row));
    alive = token >= 0;
    return token;
  });
  if (part.drafts > 0) drafts.add_verified(part.drafts + (is_cut ? 1 : 0), accepted);
  if (!alive) return false;
  sequence.drafts.clear();
  sequence.drafts_are_cut = false;
  if (part.drafts > accepted) {
    part.rows = 1 + accepted;
    // Nothing is given back before a step's drafts are verified, so this always reaches; if it did not, the
    // sequence would be computed again from its tokens.
    if (!sequence.state.rollback(part.begin + part.rows)) {
      sequence.state.clear();
      sequence.prefix.forget();
      sequence.is_drafting = false;
    }
  }
  return true;
}

uint32_t AttentionWorker::Impl::most_drafts(const Sequence& sequence) const {
  // The step that verifies them gives one token more than it accepts, and its rows must fit the context.
  const uint32_t left = sequence.request.sampling.max_tokens - sequence.generated();
  const auto length = static_cast<uint32_t>(sequence.tokens.size());
  const uint32_t room = options.max_context_tokens - std::min(length, options.max_context_tokens);
  return std::min({drafts.tokens(), left - 1, room});
}

bool AttentionWorker::Impl::begin_drafts(StepStream& stream) {
  const auto has_ended = [this](const Sequence* sequence) {
    return std::ranges::find(gone, sequence) != gone.end();
  };
  bool any = false;
  for (StepLane& lane : stream.lanes) {
    lane.forget_drafts();
    for (const StepPart& part : lane.parts) {
      if (has_ended(part.sequence)) continue;
      Sequence& sequence = *part.sequence;
      const uint32_t most = most_drafts(sequence);
      if (options.drafter != nullptr) {
        if (!part.samples || most == 0) continue;
        options.drafter->propose(sequence.tokens, most, sequence.drafts);
        if (sequence.drafts.size() > most) sequence.drafts.resize(most);
        continue;
      }
      if (drafts_blocks()) {
        if (!part.samples || most == 0 || !begin_block(lane, sequence, most)) continue;
        sequence.in_step = any = true;
        stream.drafted_for.push_back(&sequence);
        continue;
      }
      if (!sequence.is_drafting) continue;
      if (most == 0) {  // for good: the answer ends, or nobody drafts any more
        sequence.is_drafting = false;
        continue;
      }
      lane.draft_parts.push_back(
          {&sequence, part.begin, part.rows, lane.lane->hidden(part.first_row), part.samples});
      any = true;
      if (!part.last) continue;
      sequence.in_step = true;
      stream.drafted_for.push_back(&sequence);
    }
  }
  return any;
}

bool AttentionWorker::Impl::start_draft_round(StepStream& stream) {
  if (drafts_blocks()) return start_blocks(stream);
  // The rows of a prompt are not urgent because a drafter reads them.
  const RowClass row_class = stream.row_class == RowClass::decode ? RowClass::draft : stream.row_class;
  const StepId step = next_step++;
  const Lane* before = nullptr;
  stream.is_drafting = true;
  for (StepLane& lane : stream.lanes) {
    if (lane.draft_parts.empty()) continue;
    StepBatch batch = lane.draft_builder.build(lane.draft_parts, lane.draft_lane->program(0).hidden().cols,
                                               step, row_class, now() + options.ffn_deadline);
    lane.draft_program = stream.draft_programs.choose(static_cast<uint32_t>(batch.rows.size()));
    batch.program = stream.draft_programs.words[lane.draft_program];
    const Status started = executor.start(*lane.draft_lane, batch, lane.draft_program, before);
    if (!started) {
      fail_step(stream, started.error());
      return true;
    }
    lane.running = true;
    before = lane.draft_lane.get();
  }
  return before != nullptr;
}

void AttentionWorker::Impl::propose(Sequence& sequence, std::span<const float> logits) {
  const SamplingParams& sampling = sequence.request.sampling;
  const auto ahead = static_cast<uint32_t>(sequence.drafts.size());
  const uint32_t index = sequence.generated() + ahead;
  // As if the drafts had been said. Behind one that ends the answer, or is none of its grammar, nothing
  // follows.
  AnswerForm form = sequence.form;
  for (const int32_t token : sequence.drafts) form.advance(token);
  const TokenBans bans = bans_of(sampling, form, index);
  std::unordered_map<int32_t, uint32_t>& said = sequence.history.generated;
  if (sampling.has_penalties()) {
    for (const int32_t token : sequence.drafts) ++said[token];
  }
  const auto token_now = sampler.choose(logits, sampling, sequence.seed, sequence.history, bans, index);
  if (sampling.has_penalties()) {
    for (const int32_t token : sequence.drafts) {
      const auto entry = said.find(token);
      if (--entry->second == 0) said.erase(entry);
    }
  }
  if (token_now) sequence.drafts.push_back(*token_now);
}

void AttentionWorker::Impl::count_round(const StepStream& stream, const StepStats& step) {
  const std::lock_guard lock(mutex);
  // A block and its chain are one round.
  stats.speculation.rounds += stream.is_chaining ? 0 : 1;
  stats.speculation.seconds += std::chrono::duration<double>(step.elapsed).count();
  stats.ffn_submits += step.submits;
  stats.ffn_wait_seconds += std::chrono::duration<double>(step.waited).count();
  stats.ffn_round_trip_seconds += static_cast<double>(step.round_trip_us) * 1e-6;
  stats.ffn_residence_seconds += static_cast<double>(step.residence_us) * 1e-6;
  count_times(step);
}

void AttentionWorker::Impl::finish_draft_round(StepStream& stream) {
  if (drafts_blocks()) return finish_block_round(stream);
  bool any = false;
  for (StepLane& lane : stream.lanes) {
    if (lane.draft_parts.empty()) continue;
    const StepStats& step = lane.draft_lane->stats();
    uint32_t rows = 0, logit_row = 0;
    size_t next = 0;  // parts of the next round
    const uint32_t cols = lane.draft_lane->program(0).hidden().cols;
    lane.draft_hidden.clear();
    for (const StepBuilder::DraftPart part : lane.draft_parts) {
      rows += part.rows;
      if (!part.proposes) continue;
      Sequence& sequence = *part.sequence;
      const uint32_t mine = logit_row++;
      const size_t before = sequence.drafts.size();
      propose(sequence, lane.draft_lane->logits(mine));
      const auto count = static_cast<uint32_t>(sequence.drafts.size());
      // The next draft reads this one's row at the position behind, whose keys no token has yet.
      if (count == before || count >= most_drafts(sequence) ||
          !sequence.state.reserve(sequence.state.length() + count)) {
        continue;
      }
      const float* hidden = lane.draft_lane->hidden(mine);
      lane.draft_hidden.insert(lane.draft_hidden.end(), hidden, hidden + cols);
      lane.draft_parts[next++] = {&sequence, part.begin + part.rows, 1, nullptr, true};
    }
    lane.draft_parts.resize(next);
    for (size_t i = 0; i < next; ++i) lane.draft_parts[i].hidden = lane.draft_hidden.data() + i * cols;
    any = any || next > 0;
    const double seconds = std::chrono::duration<double>(step.elapsed).count();
    if (stream.row_class == RowClass::decode) drafts.add_round(rows, seconds);
    count_round(stream, step);
  }
  if (!any || !start_draft_round(stream)) release_drafted(stream);
}

void AttentionWorker::Impl::release_drafted(StepStream& stream) {
  stream.is_drafting = stream.is_chaining = false;
  for (StepLane& lane : stream.lanes) lane.forget_drafts();
  for (Sequence* sequence : stream.drafted_for) {
    sequence->in_step = false;
    scheduler.settle(*sequence);
    if (sequence->is_cancelled) finish(*sequence, FinishReason::cancelled, {});
  }
  stream.drafted_for.clear();
}

}  // namespace tandem
