// Ranks that exchange rows, with neighbours that are wrong, or say that they are who they are not.
#include "ffn/rank_pool.h"

namespace tandem {
namespace {

using namespace split_testing;

// Holds the compute thread of a rank before each call while closed.
struct Plug {
  std::atomic<bool> open{true};
  std::atomic<int> begun{0};
  ~Plug() { open.store(true); }
  void pass() {
    ++begun;
    while (!open.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
};

uint32_t waiting_on(const FfnWorker& worker) {
  uint32_t tiles = 0;
  for (const FfnClientReport& client : worker.clients()) tiles += client.waiting_tiles;
  return tiles;
}

// Rank 0 of the pool again, with something in front of its block.
void replace_rank_0(Pool& pool, MoeRun run) {
  pool.workers[0].reset();
  MoeBlock& block = pool.models[0]->block();
  auto created =
      FfnWorker::create(pool.worker_options(0), std::move(run),
                        [&block](LayerIndex layer, uint32_t rows, ActivationView in, std::span<int32_t> ids,
                                 std::span<float> weights, std::span<const int32_t> tokens) {
                          return block.route_rows(layer, rows, in, ids, weights, tokens);
                        });
  ASSERT_TRUE(created.has_value()) << created.error().message;
  pool.workers[0] = std::move(*created);
}

// Two clients' rows are routed together on the rank that is home to both. One has rows that no gate can
// route.
TEST(ExchangeNeighbours, RowsThatCannotBeRoutedFailAlone) {
  for (const bool token_ids : {false, true}) {
    Pool pool(
        {.placement = {.token_ids = token_ids, .sum_mode = SumMode::deterministic}, .connector = "p2p"});
    Plug plug;
    MoeBlock& block = pool.models[0]->block();
    replace_rank_0(pool, [&](const MoeRequest& request) {
      plug.pass();
      return block.run(request);
    });
    const auto good_port = pool.connect(0), bad_port = pool.connect(2), first_port = pool.connect(4);
    ASSERT_TRUE(good_port != nullptr && bad_port != nullptr && first_port != nullptr);
    Work first(pool.reference, 2, 3, 1), good(pool.reference, 1, 9, 2), bad(pool.reference, 1, 5, 3);
    auto* rows = const_cast<bf16*>(static_cast<const bf16*>(bad.request.in.data));
    rows[2 * kHidden + 7] = to_bf16(std::numeric_limits<float>::quiet_NaN());
    plug.open.store(false);
    ASSERT_TRUE(first_port->submit(first.request).has_value());
    ASSERT_TRUE(eventually([&] { return plug.begun.load() >= 1; }));
    ASSERT_TRUE(good_port->submit(good.request).has_value());
    ASSERT_TRUE(bad_port->submit(bad.request).has_value());
    ASSERT_TRUE(eventually([&] { return waiting_on(*pool.workers[0]) == 2; }));
    plug.open.store(true);
    const auto served = wait_for(*good_port, 1), refused = wait_for(*bad_port, 1);
    ASSERT_EQ(served.size() + refused.size(), 2u);
    EXPECT_TRUE(served.front().status.has_value()) << served.front().status.error().message;
    EXPECT_TRUE(good.output_is_exact());
    ASSERT_FALSE(refused.front().status.has_value());
    EXPECT_NE(refused.front().status.error().message.find("row 2 is not finite"), std::string::npos)
        << refused.front().status.error().message;
    EXPECT_EQ(wait_for(*first_port, 1).size(), 1u);
    EXPECT_EQ(pool.workers[0]->stats().exchange.failed_tiles, 1u);
  }
}

// A home's own rows and the part of another home in one call, which the experts refuse because of the part.
TEST(ExchangeNeighbours, AHomeIsNotFailedByAPartOfAnother) {
  Pool pool({.placement = {.gate_on_attention = true,
                           .shared_on_attention = true,
                           .sum_mode = SumMode::deterministic},
             .connector = "p2p",
             .exchange = ExchangeKind::alltoall});
  constexpr uint32_t kPartRows = 5, kHomeRows = 8;
  Plug plug;
  MoeBlock& block = pool.models[0]->block();
  replace_rank_0(pool, [&](const MoeRequest& request) -> Status {
    plug.pass();
    if (request.rows == kPartRows || request.rows == kPartRows + kHomeRows)
      return make_error(ErrorCode::internal, "no such luck");
    return block.run(request);
  });
  const auto home_0 = pool.connect(0), home_1 = pool.connect(1), first_port = pool.connect(2);
  ASSERT_TRUE(home_0 != nullptr && home_1 != nullptr && first_port != nullptr);
  const auto on_both = [](uint32_t row, uint32_t slot) {
    return static_cast<int32_t>((row + 3 * slot) % kExperts);
  };
  Work first(pool.reference, 2, 1, 1, [](uint32_t, uint32_t slot) { return static_cast<int32_t>(slot); });
  Work home(pool.reference, 1, kHomeRows, 2, on_both), part(pool.reference, 1, kPartRows, 3, on_both);
  plug.open.store(false);
  ASSERT_TRUE(first_port->submit(first.request).has_value());
  ASSERT_TRUE(eventually([&] { return plug.begun.load() >= 1; }));
  ASSERT_TRUE(home_0->submit(home.request).has_value());
  ASSERT_TRUE(home_1->submit(part.request).has_value());
  ASSERT_TRUE(eventually([&] { return waiting_on(*pool.workers[0]) == 2; }));
  plug.open.store(true);
  const auto served = wait_for(*home_0, 1), refused = wait_for(*home_1, 1);
  ASSERT_EQ(served.size() + refused.size(), 2u);
  EXPECT_TRUE(served.front().status.has_value()) << served.front().status.error().message;
  EXPECT_TRUE(home.output_is_exact());
  ASSERT_FALSE(refused.front().status.has_value());
  EXPECT_NE(refused.front().status.error().message.find("no such luck"), std::string::npos);
  EXPECT_EQ(wait_for(*first_port, 1).size(), 1u);
}

// Clients take all places for clients; an FFN rank that was lost comes back all the same.
TEST(ExchangeNeighbours, ClientsDoNotKeepAnFfnRankOut) {
  Pool pool({.placement = {.gate_on_attention = true, .sum_mode = SumMode::deterministic},
             .scheme = "tcp",
             .connector = "p2p",
             .max_sessions = 1});
  const auto port = pool.connect();
  ASSERT_NE(port, nullptr);
  Work work(pool.reference, 1, 30, 1);
  ASSERT_TRUE(run_one(*port, work).has_value());
  const std::string words = "1 clients are connected, max_sessions is 1";
  const Error second = start_refusal<MultiRankFfn>(pool.remote_options(1), words);
  EXPECT_NE(second.message.find(words), std::string::npos) << second.message;
  pool.workers[1].reset();
  pool.start(1);
  EXPECT_TRUE(eventually([&] {
    work.reset_output();
    return run_one(*port, work).has_value() && work.output_is_exact();
  }));
}

// What an FFN rank sends is not weighed against clients', so nobody is one as often as he likes.
TEST(ExchangeNeighbours, AnFfnRankIsThereOnceAndHasANumber) {
  Pool pool({.placement = {.gate_on_attention = true}, .connector = "p2p"});
  ASSERT_NE(pool.connect(), nullptr);
  const SplitSettings settings = pool.worker_options(0).settings;
  const auto refusal_of = [&](uint32_t rank) {
    auto endpoint = connect(pool.addresses[0], settings.endpoint_options(8));
    EXPECT_TRUE(endpoint.has_value()) << endpoint.error().message;
    const std::atomic<bool> stop{false};
    const auto opened = open_session(**endpoint, "raw", settings, make_identity("ffn", rank),
                                     now() + std::chrono::seconds(20), stop, {Channel::exchange, true});
    return opened ? std::string("let in") : opened.error().message;
  };
  EXPECT_NE(refusal_of(1).find("is connected already: one connection for each FFN rank"), std::string::npos)
      << refusal_of(1);
  EXPECT_NE(refusal_of(2).find("of 2 FFN ranks: they are numbered from 0"), std::string::npos)
      << refusal_of(2);
}

}  // namespace
}  // namespace tandem
