// The steps of AttentionWorker: planning, the lanes, what becomes of a step that has ended.
#include <poll.h>

#include <algorithm>
#include <string>
#include <utility>

#include "attention/attention_worker_impl.h"
#include "base/log.h"

namespace tandem {
namespace {

// Rows of a prompt that the head scores at once, at least, where few sequences can be sampled from: a product
// over fewer reads all of the head's weights for them, and so many logits are 20 MB at a vocabulary of 152 K.
constexpr uint32_t kHeadRows = 32;

// A warm-up step looks again this often although nothing woke it: it costs nothing at a start.
constexpr int kProfilePollMilliseconds = 20;

}  // namespace

LaneRows rows_of_lanes(const AttentionWorkerOptions& options) {
  const LaneOptions& lanes = options.lanes;
  const SchedulerLimits& limits = options.scheduler;
  const SpeculationOptions& speculation = options.speculation;
  const uint32_t prefill_lanes =
      lanes.split == LaneSplit::by_token && !lanes.automatic ? lanes.micro_batches : 1;
  const auto share = [](uint32_t rows, uint32_t count) { return (rows + count - 1) / count; };
  LaneRows rows;
  rows.sequences = share(limits.max_num_seqs, lanes.automatic ? 1 : lanes.micro_batches);
  rows.decode = rows.sequences * (1 + speculation.num_tokens);
  rows.prefill = share(limits.max_num_batched_tokens, prefill_lanes);
  rows.prefill_logits = std::min(std::max(limits.max_num_seqs, kHeadRows), rows.prefill);
  // Sequences whose prompt ends within the rows of a prefill step.
  const uint32_t ending = std::min(limits.max_num_seqs, rows.prefill);
  rows.draft_sequences = std::max(rows.sequences, ending);
  if (const uint32_t size = speculation.block.size; size > 0) {
    const uint32_t wanted = std::min(size, speculation.num_tokens);
    rows.draft_decode = {rows.sequences * size, rows.sequences * wanted};
    rows.draft_prefill = {ending * size, ending * wanted};
  } else {
    rows.draft_decode = {rows.decode, std::min(rows.sequences, rows.decode)};
    rows.draft_prefill = {rows.prefill, ending};
  }
  return rows;
}

namespace {

Status check_draft_programs(const AttentionPrograms& programs, const SpeculationOptions& speculation,
                            const LaneRows& most) {
  const AttentionPrograms::Drafts& drafts = programs.drafts;
  const bool blocks = speculation.block.size > 0;
  const auto exports = [](const std::shared_ptr<const Program>& program) {
    return program && !program->hidden().empty();
  };
  if (!exports(drafts.decode) || (!blocks && (!exports(programs.decode) || !exports(programs.prefill)))) {
    return make_error(ErrorCode::internal, "a drafter beside programs that export no hidden rows");
  }
  const auto holds = [](const std::shared_ptr<const Program>& program, const ProgramShape& shape) {
    return program->shape().capacity >= shape.capacity &&
           program->shape().logits_capacity >= shape.logits_capacity;
  };
  if (!holds(drafts.decode, most.draft_decode) || !holds(drafts.prefill, most.draft_prefill)) {
    return make_error(ErrorCode::internal, "the drafter's programs are smaller than its rounds");
  }
  if (!blocks) return {};
  if (speculation.block.size > kMaxDraftBlock) {
    return make_error(ErrorCode::internal, "blocks of " + std::to_string(speculation.block.size) +
                                               " drafts: at most " + std::to_string(kMaxDraftBlock));
  }
  if (!exports(drafts.chain) || drafts.chain->shape().capacity < most.draft_sequences)
    return make_error(ErrorCode::internal,
                      "blocks are drafted, and their chain has no program or a smaller one");
  return {};
}

}  // namespace

Status AttentionWorker::Impl::create_streams(const AttentionPrograms& programs) {
  const LaneOptions& lanes = options.lanes;
  const uint32_t prefill_lanes = lanes.split == LaneSplit::by_token ? lanes.micro_batches : 1;
  if (lanes.micro_batches < 1 || lanes.micro_batches > kMaxMicroBatches) {
    return make_error(ErrorCode::internal, std::to_string(lanes.micro_batches) + " decode lanes: 1 to " +
                                               std::to_string(kMaxMicroBatches));
  }
  const SpeculationOptions& speculation = options.speculation;
  if (speculation.num_tokens > kMaxDraftTokens) {
    return make_error(ErrorCode::internal, std::to_string(speculation.num_tokens) + " drafts: at most " +
                                               std::to_string(kMaxDraftTokens));
  }
  if ((speculation.num_tokens > 0) != (options.drafter != nullptr || programs.drafts.decode != nullptr)) {
    return make_error(ErrorCode::internal, std::to_string(speculation.num_tokens) + " drafts and " +
                                               (speculation.num_tokens > 0 ? "no" : "a") + " drafter");
  }
  const LaneRows most = rows_of_lanes(options);
  if (programs.decode->shape().capacity < most.decode || programs.prefill->shape().capacity < most.prefill) {
    return make_error(ErrorCode::internal, "the programs are smaller than the scheduler's limits");
  }
  if (programs.drafts.decode) TANDEM_TRY(check_draft_programs(programs, speculation, most));
  LaneId next_lane = 0;
  const auto list = [](const std::shared_ptr<const Program>& eager,
                       std::span<const AttentionPrograms::Captured> captured, uint32_t rows,
                       LanePrograms& lane) {
    std::vector<std::shared_ptr<const Program>> all = {eager};
    lane.capacities.push_back(rows);
    lane.words.push_back(0);
    for (const AttentionPrograms::Captured& each : captured) {
      all.push_back(each.program);
      lane.capacities.push_back(each.program->shape().capacity);
      lane.words.push_back(each.size);
    }
    return all;
  };
  const auto add = [&](RowClass row_class, uint32_t num_lanes, uint32_t rows) -> Status {
    const ProgramShape& draft_rows = row_class == RowClass::decode ? most.draft_decode : most.draft_prefill;
    StepStream stream;
    stream.row_class = row_class;
    const bool decode = row_class == RowClass::decode;
    const std::span<const AttentionPrograms::Captured> none;
    const auto lane_programs = list(decode ? programs.decode : programs.prefill,
                                    decode ? std::span(programs.captured) : none, rows, stream.programs);
    stream.max_sequences = most.sequences;
    stream.num_layers = lane_programs[0]->num_layers();
    std::vector<std::shared_ptr<const Program>> draft_programs;
    if (programs.drafts.decode) {
      draft_programs = list(decode ? programs.drafts.decode : programs.drafts.prefill,
                            decode ? std::span(programs.drafts.captured) : none, draft_rows.capacity,
                            stream.draft_programs);
    }
    for (uint32_t i = 0; i < num_lanes; ++i) {
      StepLane lane;
      TANDEM_ASSIGN(lane.lane, executor.create_lane(lane_programs, next_lane++));
      lane.builder = StepBuilder(rows, pools.num_groups());
      lane.parts.reserve(rows);
      lane_streams.push_back(streams.size());
      if (!draft_programs.empty()) {
        TANDEM_ASSIGN(lane.draft_lane, executor.create_lane(draft_programs, next_lane++));
        lane.draft_builder = StepBuilder(draft_rows.capacity, pools.num_groups());
        lane.draft_parts.reserve(rows);
        lane_streams.push_back(streams.size());
      }
      if (programs.drafts.chain) {
        TANDEM_ASSIGN(lane.chain_lane, executor.create_lane(programs.drafts.chain, next_lane++));
        lane.chain_builder = StepBuilder(most.draft_sequences, pools.num_groups());
        lane.block_parts.reserve(most.draft_sequences);
        lane_streams.push_back(streams.size());
      }
      stream.lanes.push_back(std::move(lane));
    }
    stream.drafted_for.reserve(options.scheduler.max_num_seqs);
    streams.push_back(std::move(stream));
    return {};
  };
  for (uint32_t i = 0; i < lanes.micro_batches; ++i) TANDEM_TRY(add(RowClass::decode, 1, most.decode));
  TANDEM_TRY(add(RowClass::prefill, prefill_lanes, most.prefill));
  planned.reserve(options.scheduler.max_num_seqs);
  shares.resize(prefill_lanes);
  num_decode_lanes = lanes.automatic ? 1 : lanes.micro_batches;
  return {};
}

Status AttentionWorker::Impl::warm_up() {
  const auto run_all = [this](Lane* lane, const LanePrograms& programs) -> Status {
    for (size_t program = 1; program < programs.words.size(); ++program) {
      TANDEM_TRY(run_profile_step(*lane, programs, program));
      ++stats.execution.graph_warmups;
    }
    return {};
  };
  for (StepStream& stream : streams) {
    StepLane& lane = stream.lanes[0];
    Status ran = run_all(lane.lane.get(), stream.programs);
    if (ran) ran = run_all(lane.draft_lane.get(), stream.draft_programs);
    if (ran) continue;
    if (!peer_is_lost(ran.error())) return ran;
    log_warning("warm-up of captured programs: " + ran.error().message);
    return {};
  }
  return {};
}

// One sequence of as many tokens as the program has rows, in blocks that are given back.
Status AttentionWorker::Impl::run_profile_step(Lane& lane, const LanePrograms& programs, size_t program) {
  const auto rows =
      static_cast<uint32_t>(std::min<uint64_t>(programs.capacities[program], pools.free_tokens()));
  SequenceState state(pools, rows);
  TANDEM_TRY(state.reserve(rows));
  StepBuilder builder(rows, pools.num_groups());
  for (uint32_t row = 0; row < rows; ++row) {
    builder.add_row(state, row, 0, row < lane.program(program).shape().logits_capacity);
    builder.add_key_range({0, rows});
  }
  const std::vector<float> nothing(lane.program(program).hidden().cols);
  const std::vector<const float*> hidden(lane.program(program).reads_hidden() ? rows : 0, nothing.data());
  StepBatch batch = builder.batch(next_step++, RowClass::profile, now() + options.ffn_deadline);
  batch.hidden = hidden;
  batch.program = programs.words[program];
  TANDEM_TRY(executor.start(lane, batch, program));
  while (true) {
    executor.poll();
    const Advance advance = executor.advance(lane);
    if (advance.state == AdvanceState::done) return {};
    if (advance.state == AdvanceState::failed) return std::unexpected(advance.error);
    pollfd ready{port->wait_fd(), POLLIN, 0};
    ::poll(&ready, 1, kProfilePollMilliseconds);
  }
}

size_t LanePrograms::choose(uint32_t rows) const {
  for (size_t program = 1; program < capacities.size(); ++program) {
    if (rows <= capacities[program]) return program;
  }
  return 0;
}

StepStream& AttentionWorker::Impl::stream_of(const Lane& lane) {
  return streams[lane_streams[lane.id()]];
}

bool AttentionWorker::Impl::start_streams() {
  bool started = false;
  if (!streams.back().busy()) scheduler.make_way();
  if (streams.front().busy() && (decodes_alone || waits_to_mix())) return false;
  decodes_alone = false;
  if (start_mixed()) return true;
  for (size_t i = 0; i < streams.size(); ++i) {
    StepStream& stream = streams[i];
    const bool decode = stream.row_class == RowClass::decode;
    if (stream.busy() || (decode && i >= num_decode_lanes) || !plan(stream)) continue;
    start(stream);
    started = true;
  }
  return started;
}

bool AttentionWorker::Impl::plan(StepStream& stream) {
  if (stream.row_class == RowClass::decode) {
    uint32_t idle_lanes = 0;
    for (size_t i = 0; i < num_decode_lanes; ++i) idle_lanes += streams[i].busy() ? 0 : 1;
    const uint32_t sequences = scheduler.decode_share(num_decode_lanes, idle_lanes);
    out_of_blocks.clear();
    scheduler.plan_decode(std::min(sequences, stream.max_sequences), drafts.plan(), stream.lanes[0].parts,
                          out_of_blocks);
    for (Sequence* sequence : out_of_blocks) finish(*sequence, FinishReason::length, {});
    return !stream.lanes[0].parts.empty();
  }
  return plan_prompts(stream, turns.chunk_rows(options.scheduler.max_num_batched_tokens));
}

bool AttentionWorker::Impl::plan_prompts(StepStream& stream, uint32_t most) {
  std::vector<StepPart>& parts = stream.lanes.size() == 1 ? stream.lanes[0].parts : planned;
  stream.decode_parts = 0;
  const bool may_draft = stream.lanes[0].draft_lane != nullptr && drafts.tokens() > 0;
  if (cache) cache->set_drafting(may_draft && !drafts_blocks());
  scheduler.plan_prefill(parts, most);
  if (parts.empty()) return false;
  for (const StepPart& part : parts) {
    Sequence& sequence = *part.sequence;
    note_scheduled(sequence);
    sequence.drafts.clear();
    // It begins, at what the cache had of it.
    const uint32_t begin = sequence.state.length();
    if (begin == sequence.prefix.attached)
      sequence.is_drafting = may_draft && (drafts_blocks() || sequence.prefix.drafted == begin);
  }
  if (stream.lanes.size() == 1) return true;
  const size_t used = options.lanes.automatic ? num_decode_lanes : stream.lanes.size();
  split_by_token(planned, std::span(shares).first(used));
  for (size_t i = 0; i < used; ++i) std::swap(stream.lanes[i].parts, shares[i]);
  return true;
}

void AttentionWorker::Impl::start(StepStream& stream) {
  const StepId step = next_step++;
  const Lane* before = nullptr;
  for (StepLane& lane : stream.lanes) {
    if (lane.parts.empty()) break;  // fewer rows than lanes
    StepBatch batch = lane.builder.build(lane.parts, step, stream.row_class, now() + options.ffn_deadline);
    lane.program = stream.programs.choose(static_cast<uint32_t>(batch.rows.size()));
    batch.program = stream.programs.words[lane.program];
    begin_scores(lane, batch);
    const Status started = executor.start(*lane.lane, batch, lane.program, before);
    if (!started) return fail_step(stream, started.error());
    lane.running = true;
    before = lane.lane.get();
  }
}

bool AttentionWorker::Impl::run_lanes() {
  bool ended = false;
  turns.set_load(scheduler.num_prefilling(), scheduler.num_decoding());
  const auto order = [this] {
    if (!turns.is_shared()) return LaneOrder::oldest;
    return turns.prefill_goes_first() ? LaneOrder::prefill_first : LaneOrder::decode_first;
  };
  // Again while something ran: what one lane has written may be what another one, tried before, waits for.
  for (bool ran = true; ran;) {
    ran = false;
    ++sweep;
    while (Lane* lane = executor.next_ready(sweep, order())) {
      const bool mixed = stream_of(*lane).decode_parts > 0;
      const bool prefill = lane->row_class() == RowClass::prefill && !mixed;
      const Instant began = now();
      Instant yield_at = Instant::max();
      if (prefill && turns.is_shared())
        yield_at = began + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(turns.slice()));
      const Advance advance = executor.advance(*lane, yield_at);
      const double seconds = std::chrono::duration<double>(now() - began).count();
      if (prefill) {
        turns.add_prefill(seconds);
      } else if (!mixed) {
        turns.add_decode(seconds);
      }
      ran = ran || advance.operations > 0;
      if (advance.state == AdvanceState::waiting) continue;
      if (advance.state == AdvanceState::yielded) return true;
      if (advance.state == AdvanceState::done && score(*lane)) {
        if (!mixed) turns.add_prefill(std::chrono::duration<double>(now() - began).count() - seconds);
        // What decodes has its turn between two parts of a long prompt's head.
        if (turns.is_shared()) return true;
        continue;
      }
      ended = true;
      if (advance.state == AdvanceState::failed) {
        fail_step(stream_of(*lane), advance.error);
      } else {
        end_lane(*lane);
      }
      // The next decode step begins before a prompt goes on.
      if (!prefill && turns.is_shared()) return true;
    }
  }
  return ended;
}

void AttentionWorker::Impl::end_lane(Lane& lane) {
  StepStream& stream = stream_of(lane);
  for (StepLane& mine : stream.lanes) {
    if (mine.lane.get() == &lane || mine.draft_lane.get() == &lane || mine.chain_lane.get() == &lane)
      mine.running = false;
  }
  if (std::ranges::any_of(stream.lanes, [](const StepLane& mine) { return mine.running; })) return;
  if (stream.is_drafting) {
    finish_draft_round(stream);
  } else {
    finish_step(stream);
  }
}

void AttentionWorker::Impl::finish_step(StepStream& stream) {
  gone.clear();
  for (StepLane& lane : stream.lanes) {
    for (StepPart& part : lane.parts) part.begin = part.sequence->state.length() + part.offset;
  }
  for (StepLane& lane : stream.lanes) {
    if (lane.parts.empty()) break;
    count_step(stream, lane);
    for (const StepPart& part : lane.parts) {
      scheduler.finish_part(part);
      part.sequence->note_scored();
    }
  }
  for (StepLane& lane : stream.lanes) {
    uint32_t row = 0, logit_row = 0;
    for (StepPart& part : lane.parts) {
      part.first_row = std::exchange(row, row + part.rows);
      const uint32_t first = std::exchange(logit_row, logit_row + part.logit_rows());
      if (!part.last) continue;
      if (part.sequence->is_cancelled) {
        gone.push_back(part.sequence);
        finish(*part.sequence, FinishReason::cancelled, {});
      } else if (part.samples && !verify(part, *lane.lane, first)) {
        gone.push_back(part.sequence);
      }
    }
  }
  const bool drafting = begin_drafts(stream);
  for (StepLane& lane : stream.lanes) {
    for (const StepPart& part : lane.parts) {
      const bool ended = std::ranges::find(gone, part.sequence) != gone.end();
      if (!ended && !part.sequence->in_step) scheduler.settle(*part.sequence);
    }
  }
  for (StepLane& lane : stream.lanes) lane.parts.clear();
  if (drafting && !start_draft_round(stream)) release_drafted(stream);
}

// Cancels what still runs, and gives the sequences back as they were.
void AttentionWorker::Impl::drop(StepStream& stream) {
  for (StepLane& lane : stream.lanes) {
    executor.cancel(*lane.lane);
    if (lane.draft_lane) executor.cancel(*lane.draft_lane);
    if (lane.chain_lane) executor.cancel(*lane.chain_lane);
    lane.running = false;
    lane.forget_drafts();
    for (const StepPart& part : lane.parts) scheduler.drop_part(part);
  }
  for (Sequence* sequence : stream.drafted_for) {
    sequence->in_step = sequence->is_drafting = false;
    sequence->drafts.clear();
  }
  stream.is_drafting = stream.is_chaining = false;
}

void AttentionWorker::Impl::fail_step(StepStream& stream, const Error& error) {
  drop(stream);
  if (peer_is_lost(error)) {
    end_all(error, FinishReason::error);
    return;
  }
  log_error("a step failed: " + error.message);
  // What was computed for these is there: they go on without drafts.
  release_drafted(stream);
  for (StepLane& lane : stream.lanes) {
    for (const StepPart& part : lane.parts) {
      if (part.last) finish(*part.sequence, FinishReason::error, error);
    }
    lane.parts.clear();
  }
}

}  // namespace tandem
