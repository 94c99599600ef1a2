// What an FFN rank refuses of parts, by message: from whom, of which map, with which payload.
#include "ffn/rank_pool.h"

namespace tandem {
namespace {

using namespace split_testing;

struct Asking {
  std::string role = "attention";
  uint32_t rank = 5;
  uint16_t flags = 0;
  uint32_t map_epoch = 0;
};

PoolOptions two_ranks(const char* connector, bool gate_on_attention) {
  return {.placement = {.gate_on_attention = gate_on_attention,
                        .shared_on_attention = gate_on_attention,
                        .sum_mode = SumMode::deterministic},
          .connector = connector};
}

// FFN rank 0's answer to one request that is sent as `asking` says.
std::string answer(const Pool& pool, const Asking& asking) {
  RemoteFfnOptions options = pool.remote_options(asking.rank);
  options.addresses = {pool.addresses[0]};
  options.holds_part = true;
  options.role = asking.role;
  options.start_limit = std::chrono::seconds(20);
  const auto port = RemoteFfn::create(options);
  if (!port) return port.error().message;
  const bool part = (asking.flags & kFramePartial) != 0;
  Placement placement = pool.options.placement;
  placement.gate_on_attention = placement.gate_on_attention || part;
  SplitModel model(placement);
  Work work(model, 1, 3, 1, [&](uint32_t, uint32_t slot) { return static_cast<int32_t>(slot); });
  const auto ticket = (*port)->submit(work.request, {.flags = asking.flags, .map_epoch = asking.map_epoch});
  if (!ticket) return ticket.error().message;
  const auto ended = wait_for(**port, 1);
  if (ended.size() != 1) return "nothing came";
  return ended.front().status ? "accepted" : ended.front().status.error().message;
}

void expect(const Pool& pool, const Asking& asking, const char* text) {
  const std::string message = answer(pool, asking);
  EXPECT_NE(message.find(text), std::string::npos) << message;
}

TEST(PartRules, WhoMaySendWhatToARankThatExchanges) {
  Pool pool(two_ranks("p2p", true));
  ASSERT_NE(pool.connect(), nullptr);  // both ranks know each other
  pool.workers[1].reset();             // its place is taken by who asks in its name
  expect(pool, {.flags = kFramePartial}, "accepted");
  expect(pool, {}, "accepted");
  expect(pool, {.flags = kFramePartial | kFrameByMap},
         "flag by_map from attention: only FFN ranks share a map");
  expect(pool, {.role = "ffn", .rank = 1}, "whole rows from an FFN rank: FFN ranks send parts");
  expect(pool, {.role = "ffn", .rank = 1, .flags = kFramePartial}, "accepted");
  expect(pool, {.role = "ffn", .rank = 1, .flags = kFramePartial | kFrameByMap, .map_epoch = 7},
         "expert map 0x7 there, 0x");
  expect(pool, {.role = "ffn", .rank = 0, .flags = kFramePartial}, "have the same rank");
  expect(pool, {.role = "client"}, "neither an attention rank nor an FFN rank");
}

TEST(PartRules, APartFromAttentionNeedsTheGateThere) {
  Pool pool(two_ranks("p2p", false));
  ASSERT_NE(pool.connect(), nullptr);
  pool.workers[1].reset();
  expect(pool, {.flags = kFramePartial}, "a part (flag partial) from attention, and the gate is on FFN");
  expect(pool, {.role = "ffn", .rank = 1, .flags = kFramePartial}, "accepted");
}

TEST(PartRules, ARankThatDoesNotExchangeTakesPartsOnly) {
  Pool pool(two_ranks("m2n", true));
  expect(pool, {.flags = kFramePartial}, "accepted");
  expect(pool, {}, "whole rows, and this rank does not exchange: connector m2n sends parts");
  expect(pool, {.role = "ffn", .rank = 1, .flags = kFramePartial}, "wants to exchange rows");
}

}  // namespace
}  // namespace tandem
