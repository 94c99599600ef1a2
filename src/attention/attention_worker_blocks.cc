// Drafts of AttentionWorker by blocks (DSpark): one round computes a row for each token of every block; then
// the chain goes through the blocks' tokens, one of each sequence a round, since each adds to what the next
// one is drawn from.
#include <algorithm>
#include <cmath>
#include <utility>

#include "attention/attention_worker_impl.h"

namespace tandem {

bool AttentionWorker::Impl::begin_block(StepLane& lane, Sequence& sequence, uint32_t most) {
  const uint32_t size = options.speculation.block.size;
  // Beyond the context, or in a pool that is full: the sequence goes on by one row.
  if (!sequence.state.reserve(sequence.state.length() + size)) return false;
  sequence.drafts.clear();
  sequence.drafts_are_cut = false;
  lane.block_parts.push_back({&sequence, std::min(most, size)});
  return true;
}

bool AttentionWorker::Impl::start_blocks(StepStream& stream) {
  const DraftBlock& block = options.speculation.block;
  const RowClass row_class = stream.row_class == RowClass::decode ? RowClass::draft : stream.row_class;
  const StepId step = next_step++;
  stream.is_drafting = true;
  stream.is_chaining = false;
  stream.block_sequences = 0;
  stream.block_seconds = 0;
  bool any = false;
  for (StepLane& lane : stream.lanes) {
    if (lane.block_parts.empty()) continue;
    StepBuilder& builder = lane.draft_builder;
    builder.clear();
    uint32_t logit_row = 0;
    for (BlockPart& part : lane.block_parts) {
      const Sequence& sequence = *part.sequence;
      const uint32_t length = sequence.state.length();
      part.first_logit_row = std::exchange(logit_row, logit_row + part.most);
      for (uint32_t i = 0; i < block.size; ++i) {
        const int32_t token = i == 0 ? sequence.tokens.back() : block.noise_token_id;
        builder.add_row(sequence.state, length + i, token, i < part.most);
        builder.add_key_range(block_range(length, block.size, block.window));
      }
    }
    StepBatch batch = builder.batch(step, row_class, now() + options.ffn_deadline);
    lane.draft_program = stream.draft_programs.choose(static_cast<uint32_t>(batch.rows.size()));
    batch.program = stream.draft_programs.words[lane.draft_program];
    // No lane waits for another: a sequence's block is in one of them.
    const Status started = executor.start(*lane.draft_lane, batch, lane.draft_program);
    if (!started) {
      fail_step(stream, started.error());
      return true;
    }
    lane.running = any = true;
    stream.block_sequences += static_cast<uint32_t>(lane.block_parts.size());
  }
  return any;
}

bool AttentionWorker::Impl::start_chain(StepStream& stream) {
  const StepId step = next_step++;
  stream.is_chaining = true;
  bool any = false;
  for (StepLane& lane : stream.lanes) {
    if (lane.block_parts.empty()) continue;
    StepBuilder& builder = lane.chain_builder;
    builder.clear();
    for (const BlockPart& part : lane.block_parts) {
      const Sequence& sequence = *part.sequence;
      const std::vector<int32_t>& drafts_now = sequence.drafts;
      builder.add_row(sequence.state, sequence.state.length(),
                      drafts_now.empty() ? sequence.tokens.back() : drafts_now.back(), /*wants_logits=*/true);
      builder.add_hidden(
          lane.draft_lane->logits(part.first_logit_row + static_cast<uint32_t>(drafts_now.size())).data());
    }
    const StepBatch batch = builder.batch(step, stream.row_class, Instant::max());
    const Status started = executor.start(*lane.chain_lane, batch);
    if (!started) {
      fail_step(stream, started.error());
      return true;
    }
    lane.running = any = true;
  }
  return any;
}

void AttentionWorker::Impl::finish_block_round(StepStream& stream) {
  for (StepLane& lane : stream.lanes) {
    if (lane.block_parts.empty()) continue;
    const StepStats& step = (stream.is_chaining ? lane.chain_lane : lane.draft_lane)->stats();
    stream.block_seconds += std::chrono::duration<double>(step.elapsed).count();
    count_round(stream, step);
    if (!stream.is_chaining) continue;
    size_t next = 0;
    for (uint32_t row = 0; row < lane.block_parts.size(); ++row) {
      BlockPart part = lane.block_parts[row];
      Sequence& sequence = *part.sequence;
      const auto position = static_cast<uint32_t>(sequence.drafts.size());
      const double score = double{*lane.draft_lane->hidden(part.first_logit_row + position)} +
                           double{*lane.chain_lane->hidden(row)};
      part.likely /= 1 + std::exp(-score);
      if (part.likely < kLeastDraftConfidence) {
        sequence.drafts_are_cut = true;
        // Nothing will be verified that could say so.
        if (position == 0) drafts.add_verified(1, 0);
        continue;
      }
      propose(sequence, lane.chain_lane->logits(row));
      const bool grows = sequence.drafts.size() > position && sequence.drafts.size() < part.most;
      if (grows) lane.block_parts[next++] = part;
    }
    lane.block_parts.resize(next);
  }
  if (start_chain(stream)) return;
  if (stream.row_class == RowClass::decode) drafts.add_round(stream.block_sequences, stream.block_seconds);
  release_drafted(stream);
}

}  // namespace tandem
