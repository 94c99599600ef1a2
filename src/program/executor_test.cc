// The executor over a small program built by hand (program/executor_testing.h).
#include "program/executor_testing.h"

namespace tandem {
namespace {

using namespace executor_testing;

TEST_F(ExecutorTest, RunsAStepAndGivesTheWantedRowsInTheirOrder) {
  use({.factor = 2.0f});
  const auto a = lane(0);
  const Batch batch({3, 0, 2}, {2, 0});
  ASSERT_TRUE(executor_->start(*a, batch.step));
  EXPECT_TRUE(a->active());
  EXPECT_EQ(executor_->advance(*a).state, AdvanceState::done);
  EXPECT_FALSE(a->active());
  expect_logits(*a, batch);
  EXPECT_EQ(a->stats().submits, 2u);
  EXPECT_EQ(a->stats().compute_us, 14u);  // the port says 7 a request
  EXPECT_EQ(a->stats().blocked_submits, 0u);
}

TEST_F(ExecutorTest, WaitsForALateReplyAndCountsTheWait) {
  use({.polls_until_reply = 3, .factor = 0.5f});
  const auto a = lane(0);
  const Batch batch({1}, {0});
  ASSERT_TRUE(executor_->start(*a, batch.step));
  int waits = 0;
  while (executor_->advance(*a).state == AdvanceState::waiting) ++waits;
  EXPECT_EQ(waits, 4);  // each layer: three polls find nothing, advance makes one itself each time
  expect_logits(*a, batch);
  EXPECT_GT(a->stats().waited.count(), 0);
  EXPECT_LE(a->stats().waited, a->stats().elapsed);
}

TEST_F(ExecutorTest, LanesShareAPortWithOneCredit) {
  use({.credits = 1, .polls_until_reply = 5, .factor = 2.0f});
  const auto a = lane(0), b = lane(1);
  const Batch first({0, 1}, {0, 1}), second({2, 3}, {1, 0});
  ASSERT_TRUE(executor_->start(*a, first.step));
  ASSERT_TRUE(executor_->start(*b, second.step));
  for (int round = 0; round < 100 && (a->active() || b->active()); ++round) {
    for (Lane* lane : {a.get(), b.get()}) {
      if (!lane->active()) continue;
      ASSERT_NE(executor_->advance(*lane).state, AdvanceState::failed);
    }
  }
  ASSERT_FALSE(a->active() || b->active());
  EXPECT_GT(port_->refused(), 0);
  EXPECT_GT(a->stats().blocked_submits + b->stats().blocked_submits, 0u);
  EXPECT_EQ(port_->submits(), 4);  // a refused submit is tried again, and sent once
  expect_logits(*a, first);
  expect_logits(*b, second);
}

TEST_F(ExecutorTest, TheLaneThatIsReadyForLongestGoesFirst) {
  use({.newest_first = true, .factor = 2.0f});
  const auto a = lane(0), b = lane(1), c = lane(2);
  const Batch batch({0}, {0});
  port_->hold(true);
  for (Lane* each : {c.get(), a.get(), b.get()}) ASSERT_TRUE(executor_->start(*each, batch.step));
  std::vector<Lane*> order;
  while (Lane* next = executor_->next_ready(1)) {
    order.push_back(next);
    EXPECT_EQ(executor_->advance(*next).state, AdvanceState::waiting);
  }
  EXPECT_EQ(order, (std::vector<Lane*>{c.get(), a.get(), b.get()}));  // as they began
  EXPECT_EQ(executor_->next_ready(2), nullptr);                       // all wait for a reply
  port_->hold(false);
  EXPECT_EQ(executor_->poll(), 3u);
  order.clear();
  while (Lane* next = executor_->next_ready(3)) order.push_back(next);
  EXPECT_EQ(order, (std::vector<Lane*>{b.get(), a.get(), c.get()}));  // as their replies came
}

TEST_F(ExecutorTest, ALaneWithoutACreditIsTriedOnceASweep) {
  use({.credits = 0});
  const auto a = lane(0);
  const Batch batch({0}, {0});
  ASSERT_TRUE(executor_->start(*a, batch.step));
  for (uint64_t sweep = 1; sweep < 4; ++sweep) {
    ASSERT_EQ(executor_->next_ready(sweep), a.get());
    EXPECT_EQ(executor_->advance(*a).state, AdvanceState::waiting);
    EXPECT_EQ(executor_->next_ready(sweep), nullptr);
  }
}

// x = table[token]; twice: x += experts(x), and an operation that stands for attention notes how often it
// ran.
Result<std::shared_ptr<const Program>> build_with_attention(std::vector<LaneId>& attended) {
  TANDEM_ASSIGN(ProgramBuilder builder, ProgramBuilder::create({8, 8}, float_traits()));
  const Tensor x = builder.tensor("x", DType::f32, kHidden);
  const Tensor reply = builder.tensor("reply", DType::f32, kHidden);
  const Tensor logits = builder.tensor("logits", DType::f32, kHidden, TensorRows::logits);
  builder.append(embedding("embedding", {.dtype = DType::f32, .table = kTable, .multiplier = 1, .out = x}));
  for (LayerIndex layer = 0; layer < 2; ++layer) {
    builder.append(make_compute(
        "attend",
        [&attended](StepContext& step) -> Status {
          attended.push_back(step.lane);
          return {};
        },
        OperationKind::attend));
    builder.append(submit("submit", {.layer = layer, .in = x, .ids = {}, .weights = {}, .out = reply}));
    builder.append(collect("collect"));
    builder.append(residual_add("add", {.residual = x, .first = reply, .second = {}, .multiplier = 1}));
  }
  builder.append(gather_logit_rows("gather", x, logits));
  return builder.finish(logits);
}

TEST_F(ExecutorTest, InASplitStepALaneAttendsOnlyBehindTheOneBefore) {
  use({});
  std::vector<LaneId> attended;
  program_ = build_with_attention(attended).value();
  const auto a = lane(0), b = lane(1);
  const Batch first({0, 1}, {0}), second({2}, {0});
  port_->hold(true);
  ASSERT_TRUE(executor_->start(*a, first.step));
  ASSERT_TRUE(executor_->start(*b, second.step, 0, a.get()));
  EXPECT_EQ(executor_->advance(*b).state, AdvanceState::waiting);  // has the rows behind: nothing to read yet
  EXPECT_TRUE(attended.empty());
  EXPECT_EQ(executor_->next_ready(1), a.get());
  EXPECT_EQ(executor_->advance(*a).state, AdvanceState::waiting);  // for its experts
  EXPECT_EQ(executor_->next_ready(1), b.get());
  EXPECT_EQ(executor_->advance(*b).state, AdvanceState::waiting);
  EXPECT_EQ(attended, (std::vector<LaneId>{0, 1}));
  port_->hold(false);
  EXPECT_EQ(executor_->poll(), 2u);
  EXPECT_EQ(executor_->advance(*b).state, AdvanceState::waiting);  // its reply is there, a's keys are not
  EXPECT_EQ(attended.size(), 2u);
  EXPECT_EQ(executor_->advance(*a).state, AdvanceState::done);
  EXPECT_EQ(executor_->next_ready(2), b.get());
  EXPECT_EQ(executor_->advance(*b).state, AdvanceState::done);
  EXPECT_EQ(attended, (std::vector<LaneId>{0, 1, 0, 1}));
}

TEST_F(ExecutorTest, InASplitStepALaneAttendsBehindAllBefore) {
  use({});
  std::vector<LaneId> attended;
  program_ = build_with_attention(attended).value();
  const auto a = lane(0), b = lane(1), c = lane(2);
  const Batch batch({0}, {0});
  ASSERT_TRUE(executor_->start(*a, batch.step));
  ASSERT_TRUE(executor_->start(*b, batch.step, 0, a.get()));
  ASSERT_TRUE(executor_->start(*c, batch.step, 0, b.get()));
  EXPECT_EQ(executor_->advance(*b).state, AdvanceState::waiting);  // wrote its keys, and waits for a's
  EXPECT_EQ(executor_->advance(*c).state, AdvanceState::waiting);
  EXPECT_TRUE(attended.empty());
  for (Lane* each : {a.get(), b.get(), c.get()})
    EXPECT_EQ(executor_->advance(*each).state, AdvanceState::done);
}

TEST_F(ExecutorTest, ALaneBehindAFailedOneFails) {
  use({});
  std::vector<LaneId> attended;
  program_ = build_with_attention(attended).value();
  const auto a = lane(0), b = lane(1);
  const Batch batch({0}, {0});
  ASSERT_TRUE(executor_->start(*a, batch.step));
  ASSERT_TRUE(executor_->start(*b, batch.step, 0, a.get()));
  executor_->cancel(*a);
  const Advance advance = executor_->advance(*b);
  ASSERT_EQ(advance.state, AdvanceState::failed);
  EXPECT_NE(advance.error.message.find("reads keys of lane 0"), std::string::npos) << advance.error.message;
  EXPECT_TRUE(attended.empty());
}

TEST_F(ExecutorTest, AStepSaysWhichProgramItRuns) {
  use({.factor = 2.0f});
  const auto small = build({2, 1}, float_traits()).value();
  auto both = executor_->create_lane({program_, small}, 0);
  ASSERT_TRUE(both) << both.error().message;
  Lane& lane = **both;
  const Batch two({0, 1}, {1}), three({0, 1, 2}, {0});
  ASSERT_TRUE(executor_->start(lane, two.step, 1));
  EXPECT_EQ(lane.program().shape().capacity, 2u);
  EXPECT_EQ(executor_->advance(lane).state, AdvanceState::done);
  expect_logits(lane, two);
  const Status refused = executor_->start(lane, three.step, 1);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("capacity is 2"), std::string::npos) << refused.error().message;
  EXPECT_FALSE(executor_->start(lane, two.step, 2));
  ASSERT_TRUE(executor_->start(lane, three.step, 0));
  EXPECT_EQ(executor_->advance(lane).state, AdvanceState::done);
  expect_logits(lane, three);
  std::vector<LaneId> attended;
  const auto other = executor_->create_lane({program_, build_with_attention(attended).value()}, 1);
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message.find("operations differ"), std::string::npos) << other.error().message;
}

TEST_F(ExecutorTest, RepliesInAnotherOrderReachTheirLanes) {
  use({.newest_first = true, .factor = 2.0f});
  const auto a = lane(0), b = lane(1), c = lane(2);
  const Batch first({0}, {0}), second({1}, {0}), third({3, 2}, {0, 1});
  port_->hold(true);
  ASSERT_TRUE(executor_->start(*a, first.step));
  ASSERT_TRUE(executor_->start(*b, second.step));
  ASSERT_TRUE(executor_->start(*c, third.step));
  for (Lane* lane : {a.get(), b.get(), c.get()})
    EXPECT_EQ(executor_->advance(*lane).state, AdvanceState::waiting);
  ASSERT_EQ(port_->in_flight().size(), 3u);
  EXPECT_EQ(executor_->poll(), 0u);
  port_->hold(false);
  EXPECT_EQ(executor_->poll(), 3u);
  for (Lane* lane : {a.get(), b.get(), c.get()})
    EXPECT_EQ(executor_->advance(*lane).state, AdvanceState::done);
  expect_logits(*a, first);
  expect_logits(*b, second);
  expect_logits(*c, third);
}

TEST_F(ExecutorTest, MoreCompletionsThanOnePollFetchesAllReachTheirLanes) {
  use({.factor = 1.0f});
  port_->hold(true);
  std::vector<std::unique_ptr<Lane>> lanes;
  const Batch batch({1}, {0});
  for (LaneId id = 0; id < 40; ++id) {
    lanes.push_back(lane(id));
    ASSERT_TRUE(executor_->start(*lanes.back(), batch.step));
    ASSERT_EQ(executor_->advance(*lanes.back()).state, AdvanceState::waiting);
  }
  port_->hold(false);
  EXPECT_EQ(executor_->poll(), 40u);
}

TEST_F(ExecutorTest, ARequestSaysWhatItCarries) {
  use({.polls_until_reply = 1});
  const auto a = lane(5);
  Batch batch({1, 2, 3}, {0});
  batch.step.step = 77;
  batch.step.row_class = RowClass::prefill;
  ASSERT_TRUE(executor_->start(*a, batch.step));
  port_->hold(true);
  ASSERT_EQ(executor_->advance(*a).state, AdvanceState::waiting);
  ASSERT_EQ(port_->in_flight().size(), 1u);
  const FfnRequest& request = port_->in_flight()[0].request;
  EXPECT_EQ(request.layer, 0u);
  EXPECT_EQ(request.lane, 5u);
  EXPECT_EQ(request.step, 77u);
  EXPECT_EQ(request.row_class, RowClass::prefill);
  EXPECT_EQ(request.rows, 3u);
  EXPECT_EQ(request.capacity, 8u);
  EXPECT_EQ(request.out.bytes, 3 * kHidden * sizeof(float));  // no spare row
  EXPECT_TRUE(std::holds_alternative<NoRouting>(request.routing));
}

TEST_F(ExecutorTest, TokenIdsTravelBesideTheActivationWhenThePortWantsThem) {
  FfnTraits traits = float_traits();
  traits.wants_token_ids = true;
  ScriptedPort port(traits, {.polls_until_reply = 1});
  Executor executor(kernels_, port);
  ProgramBuilder builder = ProgramBuilder::create({8, 8}, traits).value();
  const Tensor sent = builder.tensor("sent", DType::f32, kHidden);
  const Tensor reply = builder.tensor("reply", DType::f32, kHidden);
  const Tensor logits = builder.tensor("logits", DType::f32, kHidden, TensorRows::logits);
  builder.append(
      submit("submit", {.in = sent, .ids = {}, .weights = {}, .sends_token_ids = true, .out = reply}));
  builder.append(collect("collect"));
  const auto lane = executor.create_lane(builder.finish(logits).value(), 0).value();
  const Batch batch({3, 1}, {});
  port.hold(true);
  ASSERT_TRUE(executor.start(*lane, batch.step));
  ASSERT_EQ(executor.advance(*lane).state, AdvanceState::waiting);
  ASSERT_EQ(port.in_flight().size(), 1u);
  const auto* ids = std::get_if<TokenIds>(&port.in_flight()[0].request.routing);
  ASSERT_NE(ids, nullptr);
  EXPECT_TRUE(std::ranges::equal(ids->ids, batch.tokens));
  port.hold(false);
  EXPECT_EQ(executor.advance(*lane).state, AdvanceState::done);
}

TEST_F(ExecutorTest, AFailedReplyEndsTheStepWithItsMessage) {
  use({.factor = 1.0f, .fail_at_reply = 1});
  const auto a = lane(0);
  const Batch batch({1}, {0});
  ASSERT_TRUE(executor_->start(*a, batch.step));
  const Advance advance = executor_->advance(*a);
  EXPECT_EQ(advance.state, AdvanceState::failed);
  EXPECT_EQ(advance.error.code, ErrorCode::deadline_exceeded);
  EXPECT_EQ(advance.error.message, "ffn-0 did not answer");
  EXPECT_FALSE(a->active());
  EXPECT_TRUE(a->logits().empty());
  ASSERT_TRUE(executor_->start(*a, batch.step));  // the lane is free again
  EXPECT_EQ(executor_->advance(*a).state, AdvanceState::done);
  expect_logits(*a, batch);
}

TEST_F(ExecutorTest, ARefusedSubmitEndsTheStep) {
  use({.fail_at_submit = 0});
  const auto a = lane(0);
  const Batch batch({1}, {0});
  ASSERT_TRUE(executor_->start(*a, batch.step));
  const Advance advance = executor_->advance(*a);
  EXPECT_EQ(advance.state, AdvanceState::failed);
  EXPECT_EQ(advance.error.code, ErrorCode::unavailable);
  EXPECT_EQ(advance.error.message, "peer ffn-0 is lost");
}

TEST_F(ExecutorTest, CancelTellsThePortAndFreesTheLane) {
  use({.polls_until_reply = 5, .factor = 1.0f});
  auto a = lane(0);
  const auto b = lane(1);
  const Batch batch({1}, {0});
  ASSERT_TRUE(executor_->start(*a, batch.step));
  ASSERT_TRUE(executor_->start(*b, batch.step));
  ASSERT_EQ(executor_->advance(*a).state, AdvanceState::waiting);
  ASSERT_EQ(executor_->advance(*b).state, AdvanceState::waiting);
  executor_->cancel(*a);
  EXPECT_EQ(port_->cancels(), 1);
  EXPECT_EQ(port_->in_flight().size(), 1u);
  EXPECT_EQ(executor_->advance(*a).state, AdvanceState::failed);
  executor_->cancel(*a);  // nothing in work: nothing happens
  EXPECT_EQ(port_->cancels(), 1);
  ASSERT_TRUE(executor_->start(*a, batch.step));
  ASSERT_EQ(executor_->advance(*a).state, AdvanceState::waiting);
  a.reset();  // a lane that goes away takes its request along
  EXPECT_EQ(port_->cancels(), 2);
  while (executor_->advance(*b).state == AdvanceState::waiting) {
  }
  expect_logits(*b, batch);
}

TEST_F(ExecutorTest, RefusesBatchesByName) {
  use({}, {4, 2});
  const auto a = lane(0);
  const auto refused = [&](const Batch& batch, const std::string& part) {
    const Status status = executor_->start(*a, batch.step);
    ASSERT_FALSE(status) << part;
    EXPECT_EQ(status.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
    EXPECT_FALSE(a->active());
  };
  refused(Batch({}, {}), "without rows");
  refused(Batch({0, 0, 0, 0, 0}, {}), "step of 5 rows: the program's capacity is 4");
  refused(Batch({0, 0, 0}, {0, 1, 2}), "3 rows of logits: the program's capacity is 2");
  refused(Batch({0, 0}, {2}), "logits of row 2");
  refused(Batch({0, 4}, {0}), "token id 4 in row 1: must be 0 to 3");
  refused(Batch({-1}, {0}), "token id -1 in row 0");
  Batch uneven({0, 1}, {0});
  uneven.step.token_ids = uneven.step.token_ids.first(1);
  refused(uneven, "1 token ids for 2 rows");

  port_->hold(true);
  const Batch batch({1}, {0});
  ASSERT_TRUE(executor_->start(*a, batch.step));
  const Status again = executor_->start(*a, batch.step);
  ASSERT_FALSE(again);
  EXPECT_NE(again.error().message.find("has a step in work"), std::string::npos);
}

TEST_F(ExecutorTest, RefusesAPortWithOtherTraitsByName) {
  use({});
  FfnTraits other = float_traits();
  other.routes = false;
  const auto program = build({8, 8}, other).value();
  const auto lane = executor_->create_lane(program, 0);
  ASSERT_FALSE(lane);
  EXPECT_NE(lane.error().message.find("routes = false"), std::string::npos) << lane.error().message;
}

TEST(ProgramBuilderTest, RefusesShapesAndUnbalancedExchanges) {
  EXPECT_FALSE(ProgramBuilder::create({0, 0}, {}));
  EXPECT_FALSE(ProgramBuilder::create({4, 5}, {}));
  EXPECT_FALSE(ProgramBuilder::create({4, 0}, {}));
  for (const int kind : {0, 1, 2}) {
    ProgramBuilder builder = ProgramBuilder::create({4, 4}, {}).value();
    const Tensor logits = builder.tensor("logits", DType::f32, 4, TensorRows::logits);
    if (kind == 0) builder.append(collect("collect"));
    if (kind > 0) builder.append(submit("first", {}));
    if (kind > 1) builder.append(submit("second", {}));
    EXPECT_FALSE(builder.finish(logits));
  }
}

TEST(ProgramBuilderTest, BuffersDoNotOverlap) {
  ProgramBuilder builder = ProgramBuilder::create({5, 2}, {}).value();
  builder.tensor("a", DType::f32, 3);
  builder.tensor("b", DType::bf16, 7);
  const Tensor logits = builder.tensor("logits", DType::f32, 9, TensorRows::logits);
  const auto program = builder.finish(logits).value();
  size_t end = 0;
  for (const PlannedBuffer& buffer : program->buffers()) {
    EXPECT_GE(buffer.offset, end);
    EXPECT_EQ(buffer.offset % kBufferAlignment, 0u);
    end = buffer.offset + buffer.bytes;
  }
  EXPECT_EQ(end, program->buffer_bytes());
  EXPECT_GE(program->buffers()[2].bytes, 2 * 9 * sizeof(float));
}

}  // namespace
}  // namespace tandem
