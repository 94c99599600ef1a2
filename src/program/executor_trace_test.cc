// What the executor records.
#include "program/executor_testing.h"

namespace tandem {
namespace {

using namespace executor_testing;

TEST_F(ExecutorTest, RecordsOperationsExchangesAndStepsOnceTheTraceIsOn) {
  use({.polls_until_reply = 2, .factor = 2.0f});
  TraceRing ring(100);
  executor_ = std::make_unique<Executor>(kernels_, *port_, &ring);
  const auto a = lane(7);
  const Batch batch({3, 0}, {1});
  const auto run = [&] {
    ASSERT_TRUE(executor_->start(*a, batch.step));
    while (a->active()) ASSERT_NE(executor_->advance(*a).state, AdvanceState::failed);
    expect_logits(*a, batch);
  };
  run();
  EXPECT_TRUE(ring.events().empty()) << "it is not on yet";
  ring.ask();
  EXPECT_TRUE(ring.turn());
  run();
  std::vector<std::string> operations;
  int64_t last_end = 0;
  size_t exchanges = 0, steps = 0;
  for (const TraceEvent& event : ring.events()) {
    EXPECT_EQ(event.lane, 7);
    EXPECT_LE(event.begin_ns, event.end_ns);
    EXPECT_LE(last_end, event.end_ns) << "in the order of their end";
    last_end = event.end_ns;
    if (event.kind == TraceKind::operation) {
      const std::string layer = event.layer == kNoTraceLayer ? "-" : std::to_string(event.layer);
      operations.push_back(layer + " " + ring.names()[event.name]);
    }
    if (event.kind == TraceKind::exchange) {
      EXPECT_EQ(event.layer, exchanges++);
      EXPECT_EQ(event.rank, kTraceNobody) << "the scripted port does not say who answered";
    }
    if (event.kind != TraceKind::step) continue;
    ++steps;
    EXPECT_EQ(event.rows, 2u);
    EXPECT_EQ(event.rank, 0) << "it ended well";
  }
  EXPECT_EQ(operations,
            (std::vector<std::string>{"- embedding", "0 convert", "0 submit", "0 collect", "0 add",
                                      "1 convert", "1 submit", "1 collect", "1 add", "- gather"}));
  EXPECT_EQ(exchanges, 2u);
  EXPECT_EQ(steps, 1u);
  ASSERT_TRUE(executor_->start(*a, batch.step));
  EXPECT_EQ(executor_->advance(*a).state, AdvanceState::waiting);
  executor_->cancel(*a);
  EXPECT_EQ(ring.events().back().kind, TraceKind::step);
  EXPECT_EQ(ring.events().back().rank, 1) << "cancelled";
}

}  // namespace
}  // namespace tandem
