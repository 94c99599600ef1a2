#include "program/executor.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <utility>

#include "base/region_time.h"

namespace tandem {
namespace {

// Completions fetched at once. A port holds at most one request a lane, and lanes are few.
constexpr size_t kPollBatch = 16;

Status check_traits(const FfnTraits& program, const FfnTraits& port) {
  const auto differ = [](std::string_view key, std::string_view built, std::string_view is) {
    return make_error(ErrorCode::invalid_argument, "program was built for experts with " + std::string(key) +
                                                       " = " + std::string(built) + " and the port has " +
                                                       std::string(is) + ": build it from the port's traits");
  };
  const auto yes_no = [](bool value) { return value ? "true" : "false"; };
  if (program.routes != port.routes) return differ("routes", yes_no(program.routes), yes_no(port.routes));
  if (program.runs_shared_experts != port.runs_shared_experts) {
    return differ("runs_shared_experts", yes_no(program.runs_shared_experts),
                  yes_no(port.runs_shared_experts));
  }
  if (program.wants_token_ids != port.wants_token_ids) {
    return differ("wants_token_ids", yes_no(program.wants_token_ids), yes_no(port.wants_token_ids));
  }
  if (program.activation_dtype != port.activation_dtype) {
    return differ("activation_dtype", dtype_name(program.activation_dtype),
                  dtype_name(port.activation_dtype));
  }
  if (program.activation_format != port.activation_format) {
    return differ("activation_format", activation_format_name(program.activation_format),
                  activation_format_name(port.activation_format));
  }
  if (program.reply_dtype != port.reply_dtype) {
    return differ("reply_dtype", dtype_name(program.reply_dtype), dtype_name(port.reply_dtype));
  }
  if (program.sum_mode != port.sum_mode) {
    const auto name = [](SumMode mode) { return mode == SumMode::plain ? "plain" : "deterministic"; };
    return differ("sum_mode", name(program.sum_mode), name(port.sum_mode));
  }
  return {};
}

Status check_logit_rows(const Program& program, const StepBatch& batch) {
  const uint32_t capacity = program.shape().logits_capacity;
  if (batch.logit_rows.size() > capacity) {
    return make_error(ErrorCode::invalid_argument, "step wants " + std::to_string(batch.logit_rows.size()) +
                                                       " rows of logits: the program's capacity is " +
                                                       std::to_string(capacity));
  }
  for (const uint32_t row : batch.logit_rows) {
    if (row >= batch.rows.size()) {
      return make_error(ErrorCode::invalid_argument, "step wants logits of row " + std::to_string(row) +
                                                         " and has " + std::to_string(batch.rows.size()) +
                                                         " rows");
    }
  }
  return {};
}

Status check_batch(const Program& program, const StepBatch& batch) {
  const auto refuse = [](std::string message) {
    return make_error(ErrorCode::invalid_argument, std::move(message));
  };
  const ProgramShape& shape = program.shape();
  if (batch.rows.empty()) return refuse("step without rows: a lane with nothing to compute starts no step");
  if (batch.rows.size() > shape.capacity) {
    return refuse("step of " + std::to_string(batch.rows.size()) + " rows: the program's capacity is " +
                  std::to_string(shape.capacity));
  }
  if (batch.token_ids.size() != batch.rows.size()) {
    return refuse("step has " + std::to_string(batch.token_ids.size()) + " token ids for " +
                  std::to_string(batch.rows.size()) + " rows: one each");
  }
  if (batch.group_rows.size() < program.num_state_groups() && program.num_state_groups() > 1) {
    return refuse("step has rows of " + std::to_string(batch.group_rows.size()) +
                  " state groups: the program uses " + std::to_string(program.num_state_groups()));
  }
  for (const std::span<const AttentionRow> rows : batch.group_rows) {
    if (rows.size() != batch.rows.size()) {
      return refuse("step has " + std::to_string(rows.size()) + " rows of one state group and " +
                    std::to_string(batch.rows.size()) + " of another");
    }
  }
  if (program.reads_hidden() && batch.hidden.size() != batch.rows.size()) {
    return refuse("step has " + std::to_string(batch.hidden.size()) + " hidden rows for " +
                  std::to_string(batch.rows.size()) + " rows of a drafter: one each");
  }
  if (program.reads_key_ranges() && batch.key_ranges.size() != batch.rows.size()) {
    return refuse("step has " + std::to_string(batch.key_ranges.size()) + " ranges of keys for " +
                  std::to_string(batch.rows.size()) + " rows: one each");
  }
  TANDEM_TRY(check_logit_rows(program, batch));
  for (size_t row = 0; row < batch.token_ids.size(); ++row) {
    const int32_t id = batch.token_ids[row];
    if (id < 0 || static_cast<uint32_t>(id) >= program.vocab_size()) {
      return refuse("token id " + std::to_string(id) + " in row " + std::to_string(row) + ": must be 0 to " +
                    std::to_string(program.vocab_size() - 1));
    }
  }
  return {};
}

// "layers.3.attention.qkv" is one kind of operation in every layer: "attention.qkv".
std::string_view without_layer(std::string_view name) {
  constexpr std::string_view kLayers = "layers.";
  if (!name.starts_with(kLayers)) return name;
  const size_t dot = name.find('.', kLayers.size());
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

// 3 of "layers.3.attention.qkv".
uint16_t layer_of(std::string_view name) {
  constexpr std::string_view kLayers = "layers.";
  uint16_t layer = kNoTraceLayer;
  if (name.starts_with(kLayers))
    std::from_chars(name.data() + kLayers.size(), name.data() + name.size(), layer);
  return layer;
}

}  // namespace

Lane::~Lane() {
  executor_.cancel(*this);
}

std::span<const float> Lane::logits() const {
  const float* data = reinterpret_cast<const float*>(memory_.data() + program().logits().offset);
  return {data, size_t{logit_rows_} * program().vocab_size()};
}

std::span<const float> Lane::logits(uint32_t index) const {
  return logits().subspan(size_t{index} * program().vocab_size(), program().vocab_size());
}

const float* Lane::hidden(uint32_t index) const {
  const Tensor& tensor = program().hidden();
  return reinterpret_cast<const float*>(memory_.data() + tensor.offset) + size_t{index} * tensor.cols;
}

Result<std::unique_ptr<Lane>> Executor::create_lane(std::shared_ptr<const Program> program, LaneId id) {
  return create_lane(std::vector{std::move(program)}, id);
}

Result<std::unique_ptr<Lane>> Executor::create_lane(std::vector<std::shared_ptr<const Program>> programs,
                                                    LaneId id) {
  size_t bytes = 0;
  for (const auto& program : programs) {
    TANDEM_TRY(check_traits(program->ffn_traits(), port_.traits()));
    const auto same_kind = [](const OperationPtr& a, const OperationPtr& b) {
      return a->kind() == b->kind();
    };
    if (!std::ranges::equal(program->operations(), programs.front()->operations(), same_kind)) {
      return make_error(ErrorCode::internal, "the programs of lane " + std::to_string(id) +
                                                 " are of different models: their operations differ");
    }
    bytes = std::max(bytes, program->buffer_bytes());
  }
  if (programs.empty()) return make_error(ErrorCode::internal, "a lane without a program");
  TANDEM_ASSIGN(OwnedBuffer memory, device_.allocate(bytes));
  active_.reserve(active_.capacity() + 1);  // so that `start` allocates nothing
  std::unique_ptr<Lane> lane(new Lane(*this, std::move(programs), id, std::move(memory)));
  if (trace_ != nullptr) {
    for (const OperationPtr& operation : lane->program(0).operations())
      lane->traced_.push_back({trace_->name(without_layer(operation->name())), layer_of(operation->name())});
  }
  return lane;
}

Status Executor::start(Lane& lane, const StepBatch& batch, size_t program, const Lane* after) {
  if (lane.active_) {
    return make_error(ErrorCode::invalid_argument,
                      "lane " + std::to_string(lane.id_) + " has a step in work: advance or cancel it first");
  }
  if (program >= lane.programs_.size()) {
    return make_error(ErrorCode::invalid_argument,
                      "lane " + std::to_string(lane.id_) + " has no program " + std::to_string(program));
  }
  TANDEM_TRY(check_batch(*lane.programs_[program], batch));
  lane.chosen_ = program;
  lane.after_ = after;
  lane.batch_ = batch;
  lane.stats_ = {};
  lane.started_ = now();
  activate(lane, 0);
  return {};
}

Status Executor::start_head(Lane& lane, std::span<const uint32_t> logit_rows) {
  if (lane.active_ || !lane.done_) {
    return make_error(ErrorCode::invalid_argument,
                      "lane " + std::to_string(lane.id_) + " has no step whose head could run again");
  }
  StepBatch batch = lane.batch_;
  batch.logit_rows = logit_rows;
  TANDEM_TRY(check_logit_rows(lane.program(), batch));
  lane.batch_ = batch;
  activate(lane, lane.program().head_begin());
  return {};
}

void Executor::activate(Lane& lane, size_t operation) {
  lane.next_ = operation;
  lane.active_ = true;
  lane.done_ = false;
  lane.logit_rows_ = 0;
  lane.exchange_ = {};
  lane.ready_since_ = lane.activated_ = now();
  lane.waiting_since_.reset();
  active_.push_back(&lane);
}

Status Executor::check_order(const Lane& lane) const {
  // All of them: that the one before has written its keys does not say that the one before that has.
  for (const Lane* before = lane.after_; before != nullptr; before = before->after_) {
    if (before->done_) continue;
    if (!before->active_) {
      return make_error(ErrorCode::internal, "lane " + std::to_string(lane.id_) + " reads keys of lane " +
                                                 std::to_string(before->id_) + ", whose step has failed");
    }
    // Programs of one model have the same operations: what stands before this one there has run.
    if (before->next_ < lane.next_) return make_error(ErrorCode::would_block, {});
  }
  return {};
}

bool Executor::can_go_on(const Lane& lane) const {
  const std::span<const OperationPtr> operations = lane.program().operations();
  if (lane.next_ >= operations.size()) return true;
  switch (operations[lane.next_]->kind()) {
    case OperationKind::collect:
      return lane.exchange_.state != FfnExchange::State::submitted;
    case OperationKind::attend: {
      const Status order = check_order(lane);
      return order || order.error().code != ErrorCode::would_block;
    }
    case OperationKind::compute:
    case OperationKind::submit:  // whether there is a credit shows when it is tried
      return true;
  }
  return true;
}

Lane* Executor::next_ready(uint64_t sweep, LaneOrder order) {
  const auto comes_later = [order](const Lane& lane) {
    if (order == LaneOrder::oldest) return false;
    return (lane.row_class() == RowClass::prefill) == (order == LaneOrder::decode_first);
  };
  Lane* oldest = nullptr;
  for (Lane* lane : active_) {
    if (lane->tried_ >= sweep || !can_go_on(*lane)) continue;
    const bool first = oldest == nullptr || (comes_later(*oldest) != comes_later(*lane)
                                                 ? comes_later(*oldest)
                                                 : lane->ready_since_ < oldest->ready_since_);
    if (first) oldest = lane;
  }
  if (oldest != nullptr) oldest->tried_ = sweep;
  return oldest;
}

Advance Executor::advance(Lane& lane, Instant yield_at) {
  if (!lane.active_) {
    return {AdvanceState::failed,
            {ErrorCode::invalid_argument, "lane " + std::to_string(lane.id_) + " has no step in work"},
            0};
  }
  StepContext step{device_.kernels(),   port_,      lane.batch_,
                   lane.memory_.data(), lane.id_,   lane.program().shape().capacity,
                   lane.exchange_,      lane.stats_};
  const std::span<const OperationPtr> operations = lane.program().operations();
  const Instant entered = now();
  const Duration computed = region_time_of_this_thread();
  TimeProfile* const profile = device_.kernels().profile();
  TraceRing* const trace = tracing();
  Instant began = entered;  // the operation, while there is a trace
  const size_t first = lane.next_;
  const auto account = [&](Instant at) {
    lane.stats_.busy += at - entered;
    lane.stats_.host += at - entered - (region_time_of_this_thread() - computed);
  };
  const auto leave = [&](AdvanceState state, Error error = {}) {
    return Advance{state, std::move(error), static_cast<uint32_t>(lane.next_ - first)};
  };
  while (lane.next_ < operations.size()) {
    const Operation& operation = *operations[lane.next_];
    // Not with a request out: whether its reply is there shows when it is collected.
    if (yield_at != Instant::max() && lane.next_ > first &&
        lane.exchange_.state != FfnExchange::State::submitted && now() >= yield_at) {
      account(now());
      lane.ready_since_ = now();
      return leave(AdvanceState::yielded);
    }
    const TimeProfile::Scope scope(profile,
                                   profile == nullptr ? std::string_view() : without_layer(operation.name()));
    Status status;
    if (operation.kind() == OperationKind::attend) status = check_order(lane);
    if (status) status = device_.run(operation, step);
    if (!status && status.error().code == ErrorCode::would_block) {
      if (operation.kind() == OperationKind::submit && !lane.waiting_since_) ++lane.stats_.blocked_submits;
      // The port's state may be old: the reply, or the credit, is often there already. The lane before does
      // not move meanwhile.
      poll();
      if (trace != nullptr) began = now();
      if (operation.kind() != OperationKind::attend) status = device_.run(operation, step);
    }
    if (status) {
      // Also while nothing is recorded: the answer may come when something is.
      if (trace_ != nullptr && operation.kind() == OperationKind::submit)
        lane.submitted_layer_ = lane.traced_[lane.next_].layer;
      if (trace != nullptr) {
        const Lane::TracedOperation& traced = lane.traced_[lane.next_];
        const Instant ended = now();
        trace->add({.begin_ns = trace_time(began),
                    .end_ns = trace_time(ended),
                    .step = lane.batch_.step,
                    .name = traced.name,
                    .layer = traced.layer,
                    .lane = lane.id_,
                    .kind = TraceKind::operation,
                    .row_class = static_cast<uint8_t>(lane.batch_.row_class)});
        began = ended;
      }
      if (lane.waiting_since_) {
        lane.stats_.waited += now() - *lane.waiting_since_;
        lane.waiting_since_.reset();
      }
      ++lane.next_;
      continue;
    }
    if (status.error().code == ErrorCode::would_block) {
      const Instant at = now();
      account(at);
      if (!lane.waiting_since_) lane.waiting_since_ = at;
      return leave(AdvanceState::waiting);
    }
    Error error = std::move(status).error();
    cancel(lane);
    return leave(AdvanceState::failed, std::move(error));
  }
  account(now());
  lane.logit_rows_ = static_cast<uint32_t>(lane.batch_.logit_rows.size());
  end_step(lane, /*done=*/true);
  lane.done_ = true;
  return leave(AdvanceState::done);
}

size_t Executor::poll() {
  std::array<Completion, kPollBatch> completions;
  size_t marked = 0;
  size_t count = 0;
  do {
    count = port_.poll(completions);
    for (size_t i = 0; i < count; ++i) {
      Completion& completion = completions[i];
      const auto found = std::find_if(active_.begin(), active_.end(), [&](const Lane* candidate) {
        return candidate->exchange_.state == FfnExchange::State::submitted &&
               candidate->exchange_.ticket == completion.ticket;
      });
      if (found == active_.end()) continue;  // of a request that failed before it was cancelled
      Lane& lane = **found;
      FfnExchange& exchange = lane.exchange_;
      StepStats& stats = lane.stats_;
      const Instant at = now();
      if (tracing() != nullptr) trace_exchange(lane, completion, at);
      exchange.state = FfnExchange::State::completed;
      exchange.status = std::move(completion.status);
      lane.ready_since_ = at;
      stats.round_trip_us += microseconds_since(exchange.submitted, at);
      stats.queue_us += completion.times.queue_us;
      stats.compute_us += completion.times.compute_us;
      stats.exchange_us += completion.times.exchange_us;
      stats.residence_us += completion.times.residence_us;
      stats.reply_ns += completion.times.reply_ns;
      if (lane.waiting_since_) {
        stats.waited += at - *lane.waiting_since_;
        lane.waiting_since_.reset();
      }
      ++marked;
    }
  } while (count == completions.size());
  return marked;
}

void Executor::cancel(Lane& lane) {
  if (!lane.active_) return;
  if (lane.exchange_.state == FfnExchange::State::submitted) port_.cancel(lane.exchange_.ticket);
  end_step(lane, /*done=*/false);
}

void Executor::end_step(Lane& lane, bool done) {
  lane.active_ = false;
  lane.exchange_ = {};
  const Instant at = now();
  lane.stats_.elapsed = at - lane.started_;
  std::erase(active_, &lane);
  TraceRing* const trace = tracing();
  if (trace == nullptr) return;
  trace->add({.begin_ns = trace_time(lane.activated_),
              .end_ns = trace_time(at),
              .step = lane.batch_.step,
              .rows = static_cast<uint32_t>(lane.batch_.rows.size()),
              .lane = lane.id_,
              .rank = static_cast<uint16_t>(done ? 0 : 1),
              .kind = TraceKind::step,
              .row_class = static_cast<uint8_t>(lane.batch_.row_class)});
}

void Executor::trace_exchange(const Lane& lane, const Completion& completion, Instant seen) {
  const LastAnswer& last = completion.last;
  const bool known = last.arrived != Instant{};
  trace_->add({.begin_ns = trace_time(lane.exchange_.submitted),
               .end_ns = trace_time(seen),
               .arrived_ns = trace_time(known ? last.arrived : seen),
               .queue_us = last.times.queue_us,
               .compute_us = last.times.compute_us,
               .exchange_us = last.times.exchange_us,
               .residence_us = last.times.residence_us,
               .step = lane.batch_.step,
               .rows = static_cast<uint32_t>(lane.batch_.rows.size()),
               .layer = lane.submitted_layer_,
               .lane = lane.id_,
               .rank = known && completion.status ? last.rank : kTraceNobody,
               .kind = TraceKind::exchange,
               .row_class = static_cast<uint8_t>(lane.batch_.row_class)});
}

}  // namespace tandem
