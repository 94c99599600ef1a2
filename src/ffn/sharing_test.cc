// One client beside others that flood, go deaf, die, lie, or never say who they are: it is served, exactly.
#include <mutex>

#include "ffn/raw_client_testing.h"

namespace tandem {
namespace {

using namespace split_testing;
using std::chrono::milliseconds;

constexpr uint32_t kCredits = 8;

// Asks again and again, and compares every answer, until it is told to end.
class Victim {
 public:
  explicit Victim(Served& served) {
    auto created = RemoteFfn::create(served.reference.remote_options(served.worker->address()));
    EXPECT_TRUE(created.has_value()) << created.error().message;
    port_ = std::move(*created);
    work_ = std::make_unique<Work>(served.reference, 1, 3, 1);
    thread_ = std::thread([this] { ask(); });
  }
  ~Victim() { end(); }
  void end() {
    if (!thread_.joinable()) return;
    stop_.store(true);
    thread_.join();
    EXPECT_EQ(port_->stats().connections, 1u);
    EXPECT_EQ(port_->stats().failures, 0u);
    port_.reset();
  }
  // Answers from now on.
  bool is_served(int answers = 20) {
    const int before = answers_.load();
    return eventually([&] { return answers_.load() >= before + answers; });
  }

 private:
  void ask() {
    while (!stop_.load()) {
      work_->reset_output();
      const Status status = run_one(*port_, *work_);
      ASSERT_TRUE(status.has_value()) << status.error().message;
      ASSERT_TRUE(work_->output_is_exact());
      ++answers_;
    }
  }

  std::unique_ptr<RemoteFfn> port_;
  std::unique_ptr<Work> work_;
  std::atomic<bool> stop_{false};
  std::atomic<int> answers_{0};
  std::thread thread_;
};

class Sharing : public testing::TestWithParam<std::string> {};

TEST_P(Sharing, AClientThatReadsNothingHoldsItsOwnCreditsOnly) {
  Served served({}, GetParam());
  Victim victim(served);
  RawClient deaf(served, true);
  const auto request = deaf.request(deaf.header(64));
  uint32_t sent = 0;
  // A request's credit comes back when its answer has left, and an answer needs one of the client's own: so
  // it gets no further than twice its credits, however long it waits.
  const auto credit_comes = [&] {
    for (int i = 0; i < 200; ++i) {  // on a slow machine it may get less far, and that is as good
      deaf.stay_deaf();
      if (deaf.may_send(request.size())) return true;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return false;
  };
  while (sent < 4 * kCredits && credit_comes()) {
    deaf.send(Channel::request, request);
    ++sent;
  }
  EXPECT_LE(sent, 2 * kCredits);
  EXPECT_GE(sent, kCredits);
  for (int i = 0; i < 20; ++i) {
    deaf.stay_deaf();
    EXPECT_TRUE(victim.is_served(2));
  }
  // It hears again: nothing was lost.
  for (uint32_t i = 0; i < sent; ++i) {
    const auto bytes = deaf.receive();
    ASSERT_TRUE(parse_frame(bytes).has_value());
    EXPECT_TRUE(
        read_reply(parse_frame(bytes).value(), served.reference.settings()).value().status.has_value());
  }
}

TEST_P(Sharing, AClientThatIsSilentIsThrownOut) {
  constexpr auto kSilence = milliseconds(300), kInterval = milliseconds(50);
  Served served({}, GetParam(), [&](FfnWorkerOptions& options) {
    options.silence_limit = kSilence;
    options.heartbeat_interval = kInterval;
  });
  const SplitSettings settings = served.reference.settings();
  EndpointOptions endpoint = settings.endpoint_options(kCredits);
  endpoint.silence_limit = kSilence;
  endpoint.heartbeat_interval = kInterval;
  auto silent = connect(served.worker->address(), endpoint);
  ASSERT_TRUE(silent.has_value()) << silent.error().message;
  const std::atomic<bool> stop{false};
  ASSERT_TRUE(open_session(**silent, "raw", settings, make_identity("attention", 9),
                           now() + std::chrono::seconds(10), stop)
                  .has_value());
  EXPECT_TRUE(eventually([&] { return served.worker->stats().sessions_opened == 1; }));
  EXPECT_TRUE(eventually([&] { return served.worker->clients().empty(); }));  // nobody polls it
  EXPECT_EQ(served.worker->stats().sessions_closed, 1u);
}

TEST_P(Sharing, LiesEndTheLiarsSession) {
  Placement placement;
  placement.gate_on_attention = true;
  Served served(placement, GetParam());
  Victim victim(served);
  const std::vector<std::byte> garbage(100, std::byte{0x47});
  using Lie = std::function<void(RawClient&)>;
  const std::vector<std::pair<const char*, Lie>> lies = {
      {"magic", [&](RawClient& client) { client.send(Channel::request, garbage); }},
      {"say hello again",
       [](RawClient& client) {
         FrameHeader header = client.header(2);
         header.session += 1;  // somebody else's, perhaps the victim's
         client.send(Channel::request, client.request(header));
       }},
      {"say hello again",
       [](RawClient& client) {
         FrameHeader header = client.header(2);
         header.incarnation ^= 1;
         client.send(Channel::request, client.request(header));
       }},
      {"arrived",
       [](RawClient& client) {
         auto frame = client.request(client.header(64));
         frame.resize(frame.size() / 2);
         client.send(Channel::request, frame);
       }},
      {"wrong channel",
       [](RawClient& client) { client.send(Channel::control, client.request(client.header(1))); }},
  };
  for (int round = 0; round < 4; ++round) {
    for (const auto& [reason, lie] : lies) {
      RawClient liar(served, true);
      lie(liar);
      const std::string refusal = liar.refusal();
      EXPECT_NE(refusal.find(reason), std::string::npos) << refusal;
      EXPECT_TRUE(victim.is_served(1));
    }
  }
  // An expert map of another time, from one who may not have one: its request is refused, and so is the next.
  RawClient liar(served, true);
  FrameHeader header = liar.header(2);
  header.flags = kFramePartial | kFrameByMap;
  header.map_epoch = 77;
  liar.send(Channel::request, liar.request(header));
  const auto bytes = liar.receive();
  ASSERT_TRUE(parse_frame(bytes).has_value());
  const auto reply = read_reply(parse_frame(bytes).value(), served.reference.settings());
  ASSERT_TRUE(reply.has_value()) << reply.error().message;
  EXPECT_NE(reply->status.error().message.find("by_map from attention"), std::string::npos);
  EXPECT_TRUE(victim.is_served());
  victim.end();
  EXPECT_EQ(served.worker->stats().sessions_refused, 4 * lies.size());
}

// Clients that leave in the middle of all they asked for, again and again.
TEST_P(Sharing, ClientsThatDieTakeTheirTilesAlong) {
  Served served({}, GetParam());
  Victim victim(served);
  for (int round = 0; round < 10; ++round) {
    RawClient dying(served, true);
    const auto request = dying.request(dying.header(64));
    for (uint32_t i = 0; i < kCredits; ++i) dying.send(Channel::request, request);
  }
  EXPECT_TRUE(victim.is_served());
  EXPECT_TRUE(eventually([&] { return served.worker->clients().size() == 1; }));
  victim.end();
  EXPECT_TRUE(eventually([&] { return served.worker->clients().empty(); }));
  EXPECT_EQ(served.worker->stats().sessions_opened, 11u);
}

// More connections that say nothing than the rank has places for clients: whoever says hello is let in.
TEST_P(Sharing, ConnectionsThatSayNothingTakeNobodysPlace) {
  Served served({}, GetParam(), [](FfnWorkerOptions& options) {
    options.max_sessions = 2;
    options.hello_limit = std::chrono::seconds(3600);  // they are not thrown out for being slow
  });
  Victim victim(served);
  std::vector<std::unique_ptr<Endpoint>> silent;
  // shm takes the memory of a connection before it is one, so they come too slowly to crowd each other.
  const uint32_t strangers = GetParam() == "shm" ? 6 : 40;
  for (uint32_t i = 0; i < strangers; ++i) {
    auto connected =
        connect(served.worker->address(), served.reference.settings().endpoint_options(kCredits));
    ASSERT_TRUE(connected.has_value()) << connected.error().message;
    silent.push_back(std::move(*connected));
  }
  if (strangers > 16) {
    EXPECT_TRUE(eventually([&] { return served.worker->stats().connections_dropped >= strangers - 16; }));
  }
  Victim second(served);
  EXPECT_TRUE(second.is_served());
  EXPECT_TRUE(victim.is_served());
  // The places for clients are taken now, and that is said by number.
  RawClient third(served, false);
  const std::string refusal = third.refusal();
  EXPECT_NE(refusal.find("2 clients are connected, max_sessions is 2"), std::string::npos) << refusal;
}

std::vector<std::string> schemes() {
  return {"inproc", "shm", "tcp"};  // ucx: its control connection is tcp's, its memory nobody else's
}
INSTANTIATE_TEST_SUITE_P(Transports, Sharing, testing::ValuesIn(schemes()),
                         [](const auto& param_info) { return param_info.param; });

// ---- what is computed next ----

// Notes which rows were computed, in order, each call taking a while: so that a call costs something.
struct Watched {
  Watched() : ffn({}), reference({}) {}
  ~Watched() { open.store(true); }  // before the worker ends
  void start(const std::function<void(FfnWorkerOptions&)>& change = {}) {
    FfnWorkerOptions options = ffn.worker_options(fresh_address("inproc"));
    if (change) change(options);
    worker = std::move(*FfnWorker::create(options, [this](const MoeRequest& request) {
      ++begun;
      while (!open.load()) std::this_thread::sleep_for(milliseconds(1));
      std::this_thread::sleep_for(milliseconds(2));
      {
        const std::lock_guard lock(mutex);
        rows.push_back(request.rows);
      }
      return ffn.block().run(request);
    }));
  }
  std::unique_ptr<RemoteFfn> client() {
    auto created = RemoteFfn::create(reference.remote_options(worker->address()));
    EXPECT_TRUE(created.has_value()) << created.error().message;
    return std::move(*created);
  }
  uint32_t waiting() const {
    uint32_t sum = 0;
    for (const FfnClientReport& report : worker->clients()) sum += report.waiting_tiles;
    return sum;
  }
  std::vector<uint32_t> computed() {
    const std::lock_guard lock(mutex);
    return rows;
  }

  SplitModel ffn, reference;
  std::atomic<bool> open{true};
  std::atomic<int> begun{0};
  std::mutex mutex;
  std::vector<uint32_t> rows;
  std::unique_ptr<FfnWorker> worker;
};

TEST(SharingOrder, WhoAsksSeldomGoesBeforeAFlood) {
  Watched watched;
  watched.start();
  const auto flood = watched.client(), seldom = watched.client();
  Work large(watched.reference, 1, 64, 1);
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(run_one(*flood, large).has_value());
  watched.open.store(false);
  const int begun = watched.begun.load();
  std::vector<std::unique_ptr<Work>> many;
  for (uint32_t i = 0; i < 6; ++i) {
    many.push_back(
        std::make_unique<Work>(watched.reference, static_cast<LayerIndex>(1 + i % 2), 64, 100 + i));
    ASSERT_TRUE(flood->submit(many.back()->request).has_value());
    // The first is under way, alone, before the others come.
    ASSERT_TRUE(eventually([&] { return watched.begun.load() == begun + 1; }));
  }
  ASSERT_TRUE(eventually([&] { return watched.waiting() == 5; }));
  Work few(watched.reference, 2, 4, 50);
  ASSERT_TRUE(seldom->submit(few.request).has_value());
  ASSERT_TRUE(eventually([&] { return watched.waiting() == 6; }));
  const size_t before = watched.computed().size();
  watched.open.store(true);
  EXPECT_TRUE(wait_for(*seldom, 1).front().status.has_value());
  for (const Completion& completion : wait_for(*flood, 6)) EXPECT_TRUE(completion.status.has_value());
  const std::vector<uint32_t> rows = watched.computed();
  // The call that was under way, then the four rows, alone although more of their layer wait.
  ASSERT_GT(rows.size(), before + 1);
  EXPECT_EQ(rows[before], 64u);
  EXPECT_EQ(rows[before + 1], 4u);
  EXPECT_TRUE(few.output_is_exact());
  for (const auto& work : many) EXPECT_TRUE(work->output_is_exact());
}

TEST(SharingOrder, ClientsOfOneLayerGoTogetherAndAreCounted) {
  Watched watched;
  watched.start();
  std::vector<std::unique_ptr<RemoteFfn>> clients;
  for (int i = 0; i < 4; ++i) clients.push_back(watched.client());
  watched.open.store(false);
  Work first(watched.reference, 2, 1, 9);
  ASSERT_TRUE(clients[0]->submit(first.request).has_value());
  ASSERT_TRUE(eventually([&] { return watched.begun.load() == 1; }));
  std::vector<std::unique_ptr<Work>> works;
  for (uint32_t i = 0; i < 4; ++i) {
    works.push_back(std::make_unique<Work>(watched.reference, 1, 4 + i, i));
    ASSERT_TRUE(clients[i]->submit(works.back()->request).has_value());
  }
  ASSERT_TRUE(eventually([&] { return watched.waiting() == 4; }));
  watched.open.store(true);
  for (uint32_t i = 0; i < 4; ++i) {
    for (const Completion& completion : wait_for(*clients[i], i == 0 ? 2 : 1))
      EXPECT_TRUE(completion.status.has_value());
    EXPECT_TRUE(works[i]->output_is_exact());
  }
  EXPECT_EQ(watched.computed(), (std::vector<uint32_t>{1, 4 + 5 + 6 + 7}));
  const FfnStats stats = watched.worker->stats();
  EXPECT_EQ(stats.groups, 2u);
  EXPECT_EQ(stats.clients_in_groups, 5u);
  EXPECT_EQ(stats.max_clients_in_group, 4u);
  EXPECT_EQ(stats.groups_of_clients[0], 1u);
  EXPECT_EQ(stats.groups_of_clients[2], 1u);  // three or four
  // Charged when a call has ended, a little after its answers; and every call was somebody's.
  EXPECT_TRUE(eventually([&] {
    double computed_us = 0;
    bool all = true;
    for (const FfnClientReport& report : watched.worker->clients()) {
      all = all && report.computed_us > 0;
      computed_us += report.computed_us;
    }
    return all && std::abs(computed_us - static_cast<double>(watched.worker->stats().decode_us)) < 2;
  }));
}

TEST(SharingOrder, RowsBeyondAClientsQuotaAreRefusedByNumber) {
  Watched watched;
  watched.start([](FfnWorkerOptions& options) { options.quota.rows = 100; });
  const auto client = watched.client(), other = watched.client();
  watched.open.store(false);
  Work first(watched.reference, 1, 64, 1), fits(watched.reference, 1, 60, 2),
      beyond(watched.reference, 1, 41, 3), others(watched.reference, 1, 64, 4);
  ASSERT_TRUE(client->submit(first.request).has_value());
  ASSERT_TRUE(eventually([&] { return watched.begun.load() == 1; }));  // it waits no more
  ASSERT_TRUE(client->submit(fits.request).has_value());
  ASSERT_TRUE(eventually([&] { return watched.waiting() == 1; }));
  ASSERT_TRUE(client->submit(beyond.request).has_value());
  const auto refused = wait_for(*client, 1);
  ASSERT_FALSE(refused.front().status.has_value());
  EXPECT_EQ(refused.front().status.error().code, ErrorCode::resource_exhausted);
  EXPECT_NE(refused.front().status.error().message.find(
                "60 rows of this client wait already, and 41 more are beyond its quota of 100"),
            std::string::npos)
      << refused.front().status.error().message;
  ASSERT_TRUE(other->submit(others.request).has_value());
  ASSERT_TRUE(eventually([&] { return watched.waiting() == 2; }));
  watched.open.store(true);
  EXPECT_TRUE(wait_for(*other, 1).front().status.has_value());
  for (const Completion& completion : wait_for(*client, 2)) EXPECT_TRUE(completion.status.has_value());
  EXPECT_TRUE(fits.output_is_exact());
  EXPECT_EQ(watched.worker->stats().tiles_over_quota, 1u);
  EXPECT_EQ(watched.worker->stats().tiles_refused, 1u);
}

// A third client could join two that are computed in step; whatever is held, every answer is right and comes.
TEST(SharingOrder, HoldsEndAndAreCounted) {
  Served served({}, "inproc",
                [](FfnWorkerOptions& options) { options.policy.max_hold = std::chrono::seconds(1); });
  std::vector<std::unique_ptr<Victim>> clients;
  for (int i = 0; i < 3; ++i) clients.push_back(std::make_unique<Victim>(served));
  for (const auto& client : clients) EXPECT_TRUE(client->is_served(100));
  clients.clear();
  const FfnStats stats = served.worker->stats();
  EXPECT_LE(stats.holds_joined, stats.holds);
  EXPECT_TRUE(stats.holds != 0 || stats.held_us == 0);
}

}  // namespace
}  // namespace tandem
