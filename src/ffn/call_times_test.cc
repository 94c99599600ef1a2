// CallTimes: parts of hand-made events, decode inside a prompt's call, windows that begin within one.
#include "ffn/call_times.h"

#include <gtest/gtest.h>

#include "moe/ffn_port.h"

namespace tandem {
namespace {

TraceEvent call(int64_t begin, int64_t end, uint16_t layer, RowClass row_class, uint32_t rows = 1,
                uint16_t clients = 1) {
  return {.begin_ns = begin,
          .end_ns = end,
          .rows = rows,
          .layer = layer,
          .lane = 2,
          .rank = clients,
          .kind = TraceKind::call,
          .row_class = static_cast<uint8_t>(row_class)};
}

TraceEvent wait(int64_t begin, int64_t end, bool others = false) {
  return {.begin_ns = begin,
          .end_ns = end,
          .rank = static_cast<uint16_t>(others ? 1 : 0),
          .kind = TraceKind::wait};
}

TEST(CallTimes, PartsAddUpToTheWindow) {
  const std::vector<TraceEvent> events = {
      wait(100, 200), call(210, 300, 1, RowClass::decode, 3, 2), wait(310, 350, true),
      // Between two pieces of a prompt's call.
      call(400, 430, 2, RowClass::draft, 5), call(360, 500, 1, RowClass::prefill, 64)};
  const CallTimes times = account_calls(events);
  EXPECT_EQ(times.wall_ns(), 400);
  EXPECT_EQ(times.parts.idle, 100);
  EXPECT_EQ(times.parts.exchange, 40);
  EXPECT_EQ(times.parts.decode, 90 + 30);
  EXPECT_EQ(times.parts.prefill, 140 - 30);
  EXPECT_EQ(times.parts.between, 10 + 10 + 10);
  EXPECT_EQ(times.parts.total(), times.wall_ns());
  EXPECT_EQ(times.calls, 3u);
  EXPECT_EQ(times.rows, 72u);
  EXPECT_EQ(times.requests, 6u);
  EXPECT_EQ(times.clients, 4u);
  ASSERT_EQ(times.layers.size(), 2u);
  EXPECT_EQ(times.layers[0].layer, 1);
  EXPECT_EQ(times.layers[0].calls, 2u);
  EXPECT_EQ(times.layers[0].decode, 90);
  EXPECT_EQ(times.layers[0].prefill, 110);
  EXPECT_EQ(times.layers[1].decode, 30);
}

TEST(CallTimes, AWindowThatBeginsWithinACallCountsTheRestOfIt) {
  const std::vector<TraceEvent> events = {call(400, 430, 2, RowClass::decode),
                                          call(360, 500, 1, RowClass::prefill), wait(500, 520)};
  for (const int64_t from : {365, 410, 430, 480, 500, 510, 520, 600}) {
    const CallTimes times = account_calls(events, from);
    EXPECT_EQ(times.begin_ns, std::min<int64_t>(from, 520));
    EXPECT_EQ(times.parts.total(), times.wall_ns()) << from;
    EXPECT_EQ(times.parts.between, 0) << from;
    EXPECT_EQ(times.parts.decode, std::clamp<int64_t>(430 - from, 0, 30)) << from;
  }
  EXPECT_EQ(account_calls({}).wall_ns(), 0);
}

}  // namespace
}  // namespace tandem
