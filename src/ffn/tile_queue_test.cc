// TileQueue by itself: what it notes of clients, and whom it waits for.
#include "ffn/tile_queue.h"

#include <thread>

#include "ffn/split_testing.h"

namespace tandem {
namespace {

using namespace split_testing;
using std::chrono::milliseconds;

constexpr uint16_t kLayers[] = {1, 2, 3};
// Of a call, as it is told: so long that one more client is always worth waiting for.
constexpr uint32_t kCallMicroseconds = 100'000'000;

// Sessions of clients that never shook hands: the queue does not ask them.
class Clients {
 public:
  Clients() {
    settings_ = SplitModel({}).settings();
    listener_ = std::move(*listen(fresh_address("inproc"), settings_.endpoint_options(8)));
  }
  std::shared_ptr<Session> add() {
    ends_.push_back(std::move(*connect(listener_->address(), settings_.endpoint_options(8))));
    return std::make_shared<Session>(ends_.size(), std::move(*listener_->accept()), settings_, self_,
                                     std::span<const Piece>(), admission_);
  }

 private:
  SplitSettings settings_;
  const PeerIdentity self_ = make_identity("ffn", 0);
  const FfnAdmission admission_;
  std::unique_ptr<Listener> listener_;
  std::vector<std::unique_ptr<Endpoint>> ends_;
};

WaitingTile tile_of(const std::shared_ptr<Session>& session, LayerIndex layer, uint32_t rows,
                    RowClass row_class = RowClass::decode) {
  WaitingTile tile;
  tile.session = session;
  tile.tile.header.layer = layer;
  tile.tile.header.rows = rows;
  tile.tile.header.row_class = static_cast<uint8_t>(row_class);
  tile.arrived = now();
  return tile;
}

SchedulerPolicy patient() {
  SchedulerPolicy policy;
  policy.num_experts = 32;
  policy.top_k = 4;
  policy.max_hold = std::chrono::seconds(20);
  return policy;
}

void push(TileQueue& queue, WaitingTile tile) {
  ASSERT_TRUE(queue.push(tile, {}).has_value());
}

// As the compute thread does.
void finish(TileQueue& queue, std::vector<WaitingTile>& group) {
  for (WaitingTile& tile : group) tile.session->pins.fetch_sub(1);
  group.clear();
  queue.add_served(false, kCallMicroseconds);
  queue.group_done();
}

// The client asks for layer 1 and, `pause` after its answer, for layer 2; then it is expected at layer 3.
void go_through_two_layers(TileQueue& queue, const std::shared_ptr<Session>& client, Duration pause) {
  std::vector<WaitingTile> group;
  for (const LayerIndex layer : {1, 2}) {
    push(queue, tile_of(client, layer, 4));
    ASSERT_TRUE(queue.take_group(group));
    finish(queue, group);
    if (layer == 1) std::this_thread::sleep_for(pause);
  }
}

TEST(TileQueue, ClientsThatDiedWhileTheyWereComputedAreForgotten) {
  Clients clients;
  TileQueue queue(patient(), /*most_tiles=*/3, kLayers);
  std::vector<WaitingTile> group;
  for (int i = 0; i < 3; ++i) {
    const auto dying = clients.add();
    push(queue, tile_of(dying, 1, 4));
    ASSERT_TRUE(queue.take_group(group));
    queue.drop_session(*dying);
    finish(queue, group);
  }
  // As many as the queue can expect at once, and one more that lives: somebody waits for it.
  const auto living = clients.add(), other = clients.add();
  for (int round = 0; round < 20 && queue.holds().holds == 0; ++round) {  // unless this thread is too slow
    go_through_two_layers(queue, living, milliseconds(60));
    push(queue, tile_of(other, 3, 64));
    ASSERT_TRUE(queue.take_group(group));
    finish(queue, group);
  }
  EXPECT_GE(queue.holds().holds, 1u);
}

TEST(TileQueue, SomebodyWhoWantsAnotherLayerEndsAHoldAndJoinsNobody) {
  Clients clients;
  TileQueue queue(patient(), 8, kLayers);
  const auto expected = clients.add(), waits = clients.add(), third = clients.add();
  std::vector<WaitingTile> group;
  for (int round = 0; round < 20 && queue.holds().holds == 0; ++round) {
    go_through_two_layers(queue, expected, milliseconds(200));
    push(queue, tile_of(waits, 3, 64));
    std::thread later([&] {
      for (int i = 0; i < 1000 && queue.holds().holds == 0; ++i)
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      push(queue, tile_of(third, 1, 4));
    });
    ASSERT_TRUE(queue.take_group(group));
    later.join();
    finish(queue, group);
    ASSERT_TRUE(queue.take_group(group));
    finish(queue, group);
  }
  EXPECT_GE(queue.holds().holds, 1u);
  EXPECT_EQ(queue.holds().joined, 0u);
}

// Eight sessions that are one client's, and one that is another's: all want everything, at layers of their
// own.
TEST(TileQueue, SessionsOfOneAccountHaveOneShareAndOneQuota) {
  for (const bool one_account : {false, true}) {
    Clients clients;
    SchedulerPolicy policy;
    policy.decode_age_bound = std::chrono::hours(1);
    TileQueue queue(policy, 16, kLayers);
    std::vector<std::shared_ptr<Session>> sessions;
    for (int i = 0; i < 9; ++i) sessions.push_back(clients.add());
    for (int i = 1; one_account && i < 8; ++i) sessions[i]->load().account = sessions[0]->load().account;
    for (size_t i = 0; i < sessions.size(); ++i) push(queue, tile_of(sessions[i], LayerIndex(i), 4));
    std::vector<WaitingTile> group;
    for (int call = 0; call < 900; ++call) {
      ASSERT_TRUE(queue.take_group(group));
      ASSERT_EQ(group.size(), 1u);
      const auto session = group.front().session;
      session->pins.fetch_sub(1);
      queue.add_served(false, 1000);
      queue.group_done();
      push(queue, tile_of(session, group.front().tile.header.layer, 4));
    }
    EXPECT_NEAR(sessions[8]->load().computed_us, one_account ? 450e3 : 100e3, 20e3);
    WaitingTile more = tile_of(sessions[1], 1, 64);
    const Status refused = queue.push(more, {.tiles = 8, .rows = 1000});
    EXPECT_EQ(refused.has_value(), !one_account);
    if (!refused) {
      EXPECT_NE(refused.error().message.find("8 tiles of this client wait already"), std::string::npos);
    }
    for (const auto& session : sessions) queue.drop_session(*session);
    EXPECT_EQ(sessions[0]->load().account->waiting_tiles, 0u);
    EXPECT_EQ(sessions[0]->load().account->waiting_rows, 0u);
  }
}

// Decode that stands behind prefill in the queue goes between its pieces, and each class is charged its own.
TEST(TileQueue, WhatGoesBetweenPiecesIsChargedToItsOwnClients) {
  Clients clients;
  TileQueue queue({}, 8, kLayers);
  const auto prompts = clients.add(), tokens = clients.add();
  for (int i = 0; i < 5; ++i) push(queue, tile_of(prompts, 1, 64, RowClass::prefill));
  std::vector<WaitingTile> prefill, between;
  ASSERT_TRUE(queue.take_group(prefill));
  ASSERT_EQ(prefill.size(), 4u);  // 256 rows
  push(queue, tile_of(tokens, 2, 3));
  ASSERT_TRUE(queue.take_preempting(1000, between));
  ASSERT_EQ(between.size(), 1u);
  EXPECT_EQ(between.front().session, tokens);
  queue.add_served(false, 30);
  queue.add_served(true, 1000);
  EXPECT_NEAR(tokens->load().computed_us, 30, 1e-6);
  EXPECT_NEAR(prompts->load().computed_us, 1000, 1e-6);
  EXPECT_EQ(prompts->load().waiting_tiles, 1u);
  for (auto* group : {&prefill, &between}) {
    for (WaitingTile& tile : *group) tile.session->pins.fetch_sub(1);
  }
}

}  // namespace
}  // namespace tandem
