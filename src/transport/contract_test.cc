// What endpoint.h promises, for every transport alike.
#include <gtest/gtest.h>

#include <atomic>
#include <random>

#include "transport/connecting.h"
#include "transport/endpoint_test_util.h"
#include "transport/test_certificates.h"

namespace tandem {
namespace {

std::shared_ptr<const PeerSecurity> security;  // of the test that runs

EndpointOptions small_options() {
  EndpointOptions options;
  options.slots_per_channel = 4;
  options.slot_bytes = 1000;
  options.silence_limit = std::chrono::seconds(20);  // a busy machine is not a dead peer
  options.security = security;
  return options;
}

// "tls": tcp inside TLS, which promises the same.
class ContractTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() == std::string("tls")) security = *PeerSecurity::with_tls(TestCertificates().files());
  }
  void TearDown() override { security = nullptr; }
  std::string transport() const { return security ? "tcp" : GetParam(); }
  EndpointPair pair(const EndpointOptions& options = small_options()) {
    return tandem::make_pair(transport(), options);
  }
};

TEST_P(ContractTest, CapsAndNames) {
  auto [a, b] = pair();
  EXPECT_EQ(a->caps().transport, transport());
  EXPECT_EQ(a->caps().max_message_bytes, 1000u);
  EXPECT_EQ(a->peer_name().find(transport() + "://"), 0u) << a->peer_name();
  EXPECT_EQ(b->peer_name().find(transport() + "://"), 0u) << b->peer_name();
  EXPECT_EQ(a->peer(), PeerState::alive);
  EXPECT_EQ(b->peer(), PeerState::alive);
}

TEST_P(ContractTest, MessagesOfAChannelArriveInTheOrderOfTheirCommits) {
  auto [a, b] = pair();
  auto first = a->acquire(Channel::request, 10);
  auto second = a->acquire(Channel::request, 10);
  ASSERT_TRUE(first && second);
  std::memcpy(first->bytes.data(), "aaaaaaaaaa", 10);
  std::memcpy(second->bytes.data(), "bbbbbbbbbb", 10);
  ASSERT_TRUE(a->commit(*second, 10));  // committed first although acquired second
  ASSERT_TRUE(a->commit(*first, 5));
  EXPECT_EQ(text_of(receive_one(*b, {a.get()}).lease), "bbbbbbbbbb");
  EXPECT_EQ(text_of(receive_one(*b, {a.get()}).lease), "aaaaa");
}

TEST_P(ContractTest, BytesAreAlignedAndTheLargestMessageArrivesWhole) {
  EndpointOptions options = small_options();
  options.slot_bytes = 917504 + 64;  // 64 rows x 7168 bf16 values and a header
  auto [a, b] = pair(options);
  for (int round = 0; round < 10; ++round) {
    auto slot = acquire_patiently(*a, Channel::exchange, options.slot_bytes, {b.get()});
    ASSERT_TRUE(slot) << slot.error().message;
    ASSERT_EQ(slot->bytes.size(), options.slot_bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(slot->bytes.data()) % 64, 0u);
    for (size_t i = 0; i < slot->bytes.size(); ++i)
      slot->bytes[i] = static_cast<std::byte>(i * 7 + i / 251 + round);
    ASSERT_TRUE(a->commit(*slot, slot->bytes.size()));
    const Incoming got = receive_one(*b, {a.get()});
    EXPECT_EQ(got.channel, Channel::exchange);
    ASSERT_EQ(got.lease.bytes().size(), options.slot_bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(got.lease.bytes().data()) % 64, 0u);
    size_t wrong = 0;
    for (size_t i = 0; i < options.slot_bytes; ++i) {
      wrong += got.lease.bytes()[i] != static_cast<std::byte>(i * 7 + i / 251 + round);
    }
    EXPECT_EQ(wrong, 0u);
  }
}

TEST_P(ContractTest, WrongSizesAreRefusedByName) {
  auto [a, b] = pair();
  EXPECT_EQ(a->acquire(Channel::control, 1001).error().code, ErrorCode::out_of_range);
  EXPECT_NE(a->acquire(Channel::control, 1001).error().message.find("slot_bytes 1000"), std::string::npos);
  EXPECT_EQ(a->acquire(Channel::control, 0).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(a->acquire(static_cast<Channel>(7), 1).error().code, ErrorCode::invalid_argument);
  auto slot = a->acquire(Channel::control, 8);
  ASSERT_TRUE(slot);
  EXPECT_EQ(a->commit(*slot, 9).error().code, ErrorCode::out_of_range);
  EXPECT_TRUE(a->commit(*slot, 8));
  EXPECT_EQ(a->commit(*slot, 8).error().code, ErrorCode::invalid_argument);  // twice
  EXPECT_EQ(a->commit(SendSlot{}, 0).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(receive_one(*b, {a.get()}).lease.bytes().size(), 8u);
}

TEST_P(ContractTest, CommitOfZeroBytesSendsNothingAndGivesTheSlotBack) {
  auto [a, b] = pair();
  for (int i = 0; i < 20; ++i) {
    auto slot = a->acquire(Channel::request, 1000);
    ASSERT_TRUE(slot) << i;
    ASSERT_TRUE(a->commit(*slot, 0));
  }
  ASSERT_TRUE(send_text(*a, Channel::request, "only this"));
  EXPECT_EQ(text_of(receive_one(*b, {a.get()}).lease), "only this");
  Incoming none;
  EXPECT_EQ(b->poll({&none, 1}), 0u);
}

TEST_P(ContractTest, CreditsRunOutAndComeBackWhenLeasesAreDestroyedByAnotherThread) {
  auto [a, b] = pair();
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(send_text(*a, Channel::request, "message " + std::to_string(i)));
  EXPECT_EQ(a->acquire(Channel::request, 1).error().code, ErrorCode::would_block);
  std::vector<Lease> leases;
  for (int i = 0; i < 4; ++i) leases.push_back(receive_one(*b, {a.get()}).lease);
  a->poll({});
  EXPECT_EQ(a->acquire(Channel::request, 1).error().code,
            ErrorCode::would_block);  // received is not given back
  EXPECT_EQ(text_of(leases[2]), "message 2");

  // Both sides sleep by the contract; the release alone must wake the sender.
  while (!b->arm()) b->poll({});
  while (!a->arm()) a->poll({});
  std::thread releasing([lease = std::move(leases[2])]() mutable { lease = Lease(); });
  EXPECT_TRUE(wait_ready(*a));
  releasing.join();
  auto slot = acquire_patiently(*a, Channel::request, 1, {b.get()});
  ASSERT_TRUE(slot);
  EXPECT_EQ(a->acquire(Channel::request, 1).error().code, ErrorCode::would_block);  // one, not more
  ASSERT_TRUE(a->commit(*slot, 1));
  EXPECT_EQ(text_of(leases[0]), "message 0");  // what is still held was not touched
  EXPECT_EQ(text_of(leases[3]), "message 3");
}

TEST_P(ContractTest, ChannelsDoNotShareCredits) {
  EndpointOptions options = small_options();
  options.slots_per_channel = 1;
  auto [a, b] = pair(options);
  ASSERT_TRUE(send_text(*a, Channel::request, "stuck"));
  const Incoming held = receive_one(*b, {a.get()});
  EXPECT_EQ(a->acquire(Channel::request, 1).error().code, ErrorCode::would_block);
  for (int i = 0; i < 50; ++i) {
    auto slot = acquire_patiently(*a, Channel::exchange, 1, {b.get()});
    ASSERT_TRUE(slot) << i;
    slot->bytes[0] = static_cast<std::byte>(i);
    ASSERT_TRUE(a->commit(*slot, 1));
    ASSERT_EQ(receive_one(*b, {a.get()}).lease.bytes()[0], static_cast<std::byte>(i));
  }
  EXPECT_EQ(a->acquire(Channel::request, 1).error().code, ErrorCode::would_block);
  EXPECT_EQ(text_of(held.lease), "stuck");
}

TEST_P(ContractTest, LeasesOutliveTheirEndpoint) {
  auto [a, b] = pair();
  ASSERT_TRUE(send_text(*a, Channel::control, "kept one"));
  ASSERT_TRUE(send_text(*a, Channel::control, "kept two"));
  Lease one = receive_one(*b, {a.get()}).lease;
  Lease two = receive_one(*b, {a.get()}).lease;
  b.reset();
  one = Lease();
  EXPECT_EQ(text_of(two), "kept two");
  a.reset();
  EXPECT_EQ(text_of(two), "kept two");
  std::thread([lease = std::move(two)] {}).join();
}

TEST_P(ContractTest, ArmAndFdTellOfMessages) {
  auto [a, b] = pair();
  while (!b->arm()) b->poll({});
  ASSERT_TRUE(send_text(*a, Channel::control, "x"));
  EXPECT_TRUE(wait_ready(*b));
  const Incoming got = receive_one(*b, {a.get()});
  EXPECT_EQ(text_of(got.lease), "x");
  // A message that waits unreceived: arm refuses, or the fd is readable at once.
  ASSERT_TRUE(send_text(*a, Channel::control, "y"));
  EXPECT_TRUE(wait_ready(*b));
  EXPECT_EQ(text_of(receive_one(*b, {a.get()}).lease), "y");
}

TEST_P(ContractTest, ALeftPeerIsClosedAfterItsLastMessage) {
  auto [a, b] = pair();
  while (!b->arm()) b->poll({});
  ASSERT_TRUE(send_text(*a, Channel::request, "last words"));
  a.reset();
  EXPECT_TRUE(wait_ready(*b));
  EXPECT_EQ(text_of(receive_one(*b).lease), "last words");
  EXPECT_EQ(wait_for_loss(*b), PeerState::closed);
  const auto refused = b->acquire(Channel::request, 1);
  EXPECT_EQ(refused.error().code, ErrorCode::unavailable);
  EXPECT_NE(refused.error().message.find(b->peer_name()), std::string::npos);
  // A lost peer is no work: the poller may sleep.
  b->poll({});
  EXPECT_TRUE(b->arm());
  b->poll({});
  EXPECT_FALSE(wait_ready(*b, std::chrono::milliseconds(20)));
}

TEST_P(ContractTest, ASlotHeldAcrossTheLossIsGivenBackWithAnError) {
  auto [a, b] = pair();
  auto slot = a->acquire(Channel::request, 16);
  ASSERT_TRUE(slot);
  b.reset();
  EXPECT_EQ(wait_for_loss(*a), PeerState::closed);
  std::memset(slot->bytes.data(), 1, 16);  // still memory of ours
  EXPECT_EQ(a->commit(*slot, 16).error().code, ErrorCode::unavailable);
}

TEST_P(ContractTest, AfterAFenceNothingIsSeen) {
  auto [a, b] = pair();
  ASSERT_TRUE(send_text(*a, Channel::request, "before"));
  const Incoming held = receive_one(*b, {a.get()});
  ASSERT_TRUE(send_text(*a, Channel::request, "unseen"));
  b->fence();
  EXPECT_EQ(b->peer(), PeerState::closed);
  [[maybe_unused]] auto ignored = send_text(*a, Channel::request, "unseen too");
  Incoming none;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(b->poll({&none, 1}), 0u);
  EXPECT_EQ(text_of(held.lease), "before");
  EXPECT_EQ(b->acquire(Channel::request, 1).error().code, ErrorCode::unavailable);
  EXPECT_EQ(wait_for_loss(*a), PeerState::closed);
  b->fence();  // twice does nothing
}

TEST_P(ContractTest, APeerThatDoesNotPollIsSilentAndStaysSo) {
  EndpointOptions options = small_options();
  options.heartbeat_interval = std::chrono::milliseconds(10);
  options.silence_limit = std::chrono::milliseconds(100);
  auto [a, b] = pair(options);
  for (int i = 0; i < 10; ++i) {
    a->poll({});
    b->poll({});
  }
  EXPECT_EQ(wait_for_loss(*a), PeerState::silent);
  b->poll({});
  a->poll({});
  EXPECT_EQ(a->peer(), PeerState::silent);
  EXPECT_EQ(wait_for_loss(*b), PeerState::closed);  // the other side dropped it
}

TEST_P(ContractTest, IdlePeersThatPollStayAlive) {
  EndpointOptions options = small_options();
  options.heartbeat_interval = std::chrono::milliseconds(10);
  options.silence_limit = std::chrono::milliseconds(400);
  auto [a, b] = pair(options);
  for (const Instant end = now() + std::chrono::milliseconds(1000); now() < end;) {
    a->poll({});
    b->poll({});
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(a->peer(), PeerState::alive);
  EXPECT_EQ(b->peer(), PeerState::alive);
}

TEST_P(ContractTest, DifferentOptionsAreRefusedByName) {
  auto listener = listen(unique_address(transport()), small_options());
  ASSERT_TRUE(listener) << listener.error().message;
  EndpointOptions other = small_options();
  other.slot_bytes = 2000;
  Result<std::unique_ptr<Endpoint>> connected = nullptr;
  std::atomic<bool> done = false;
  std::thread connecting([&] {
    connected = connect((*listener)->address(), other);
    done = true;
  });
  while (!done) EXPECT_EQ(accept_one(**listener, std::chrono::milliseconds(20)), nullptr);
  connecting.join();
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().code, ErrorCode::invalid_argument);
  const std::string& message = connected.error().message;
  EXPECT_NE(message.find("slot_bytes differs: 2000 at "), std::string::npos) << message;
  EXPECT_NE(message.find("1000 at " + (*listener)->address()), std::string::npos) << message;
  auto [a, b] = make_pair(**listener, small_options());  // the listener goes on
  EXPECT_TRUE(a && b);
}

TEST_P(ContractTest, ManyConnectionsOfOneListenerAreIndependent) {
  auto listener = listen(unique_address(transport()), small_options());
  ASSERT_TRUE(listener);
  std::vector<EndpointPair> pairs;
  for (int i = 0; i < 5; ++i) pairs.push_back(make_pair(**listener, small_options()));
  pairs[1].connected.reset();
  for (int i : {0, 2, 3, 4}) {
    ASSERT_TRUE(send_text(*pairs[i].connected, Channel::control, std::to_string(i)));
    EXPECT_EQ(text_of(receive_one(*pairs[i].accepted, {pairs[i].connected.get()}).lease), std::to_string(i));
  }
  EXPECT_EQ(wait_for_loss(*pairs[1].accepted), PeerState::closed);
  EXPECT_EQ(pairs[2].accepted->peer(), PeerState::alive);
}

TEST_P(ContractTest, AnAddressInUseIsRefusedByNameAndFreeAfterwards) {
  auto listener = listen(unique_address(transport()), small_options());
  ASSERT_TRUE(listener);
  const std::string address = (*listener)->address();
  const auto second = listen(address, small_options());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::invalid_argument);
  EXPECT_NE(second.error().message.find(address + " is taken"), std::string::npos) << second.error().message;
  listener->reset();
  const auto nobody = connect(address, small_options());
  ASSERT_FALSE(nobody);
  EXPECT_NE(nobody.error().message.find(address), std::string::npos) << nobody.error().message;
  EXPECT_TRUE(listen(address, small_options()));
}

// Neither side waits inside a call: one thread can be both.
TEST_P(ContractTest, OneThreadConnectsAndAccepts) {
  auto listener = listen(unique_address(transport()), small_options());
  ASSERT_TRUE(listener) << listener.error().message;
  auto connecting = start_connecting((*listener)->address(), small_options());
  ASSERT_TRUE(connecting) << connecting.error().message;
  EndpointPair pair;
  for (const Instant end = now() + kPatience; now() < end && (!pair.connected || !pair.accepted);) {
    if (!pair.connected) {
      auto connected = (*connecting)->advance();
      ASSERT_TRUE(connected) << connected.error().message;
      pair.connected = std::move(*connected);
    }
    if (!pair.accepted) pair.accepted = accept_one(**listener, std::chrono::milliseconds(1));
  }
  ASSERT_TRUE(pair.connected && pair.accepted);
  ASSERT_TRUE(send_text(*pair.connected, Channel::request, "hello"));
  EXPECT_EQ(text_of(receive_one(*pair.accepted, {pair.connected.get()}).lease), "hello");
}

// One side of the storm: sends numbered messages on random channels, checks what arrives, keeps leases for
// random times and lets another thread destroy some of them.
struct StormSide {
  static constexpr uint64_t kMessages = 50'000;

  explicit StormSide(Endpoint* side) : endpoint(side) {}
  Endpoint* endpoint;
  StormSide* other = nullptr;
  Poller poller = std::move(*Poller::create());
  std::atomic<bool> received_all = false;
  uint64_t lost_wakes = 0;

  void run(unsigned seed) {
    std::mt19937 random(seed);
    uint64_t next_sent[kNumChannels] = {}, next_received[kNumChannels] = {};
    uint64_t sent = 0, received = 0;
    std::vector<Lease> held;
    std::vector<Incoming> out(8);
    ASSERT_TRUE(poller.add(endpoint->fd(), 1));
    while (sent < kMessages || received < kMessages || !other->received_all) {
      bool may_send = sent < kMessages;  // else or without credits only the peer can make work
      for (int burst = static_cast<int>(random() % 4); burst > 0 && sent < kMessages; --burst) {
        const auto channel = static_cast<Channel>(random() % kNumChannels);
        const size_t bytes = 16 + random() % 497;
        auto slot = endpoint->acquire(channel, bytes);
        if (!slot) {
          ASSERT_EQ(slot.error().code, ErrorCode::would_block) << slot.error().message;
          may_send = false;
          break;
        }
        const uint64_t number = next_sent[static_cast<size_t>(channel)]++;
        std::memcpy(slot->bytes.data(), &number, 8);
        std::memcpy(slot->bytes.data() + 8, &bytes, 8);
        std::memset(slot->bytes.data() + 16, static_cast<int>(number % 251), bytes - 16);
        ASSERT_TRUE(endpoint->commit(*slot, bytes));
        ++sent;
      }
      const size_t count = endpoint->poll({out.data(), 1 + random() % out.size()});
      for (size_t i = 0; i < count; ++i) {
        const auto bytes = out[i].lease.bytes();
        uint64_t number = 0, size = 0;
        ASSERT_GE(bytes.size(), 16u);
        std::memcpy(&number, bytes.data(), 8);
        std::memcpy(&size, bytes.data() + 8, 8);
        ASSERT_EQ(number, next_received[static_cast<size_t>(out[i].channel)]++);
        ASSERT_EQ(size, bytes.size());
        for (size_t at = 16; at < size; ++at) ASSERT_EQ(bytes[at], static_cast<std::byte>(number % 251));
        held.push_back(std::move(out[i].lease));
        ++received;
      }
      if (received == kMessages) {
        if (!received_all.exchange(true)) other->poller.wake();
      }
      while (!held.empty() && random() % 3 != 0) {
        std::swap(held[random() % held.size()], held.back());
        if (random() % 2 == 0) hand_over(std::move(held.back()));
        held.pop_back();
      }
      if (may_send || count != 0) continue;
      held.clear();
      if (!endpoint->arm()) continue;
      uint64_t key = 0;
      const Instant before = now();
      poller.wait(kPatience, {&key, 1});
      if (now() - before >= kPatience) {
        ++lost_wakes;
        break;
      }
    }
  }

  // The releasing thread.
  std::mutex mutex;
  std::vector<Lease> dropped;
  std::atomic<bool> stop = false;
  void hand_over(Lease lease) {
    const std::lock_guard lock(mutex);
    dropped.push_back(std::move(lease));
  }
  void drop_all() {
    while (!stop) {
      std::vector<Lease> mine;
      {
        const std::lock_guard lock(mutex);
        mine.swap(dropped);
      }
      mine.clear();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
};

TEST_P(ContractTest, StormOfMessagesBothWays) {
  EndpointOptions options = small_options();
  options.slots_per_channel = 6;
  options.slot_bytes = 512;
  options.heartbeat_interval =
      std::chrono::seconds(40);  // no heartbeat may stand in for a wake that was lost
  options.silence_limit = std::chrono::seconds(100);
  auto [a, b] = pair(options);
  StormSide one{a.get()}, two{b.get()};
  one.other = &two;
  two.other = &one;
  std::thread threads[] = {std::thread([&] { one.run(1); }), std::thread([&] { two.run(2); }),
                           std::thread([&] { one.drop_all(); }), std::thread([&] { two.drop_all(); })};
  threads[0].join();
  threads[1].join();
  one.stop = two.stop = true;
  threads[2].join();
  threads[3].join();
  EXPECT_TRUE(one.received_all && two.received_all);
  EXPECT_EQ(one.lost_wakes + two.lost_wakes, 0u);
}

TEST_P(ContractTest, ManyThreadsSendOverOneEndpoint) {
  constexpr uint32_t kThreads = 3;
  constexpr uint32_t kMessages = 2'000;
  auto [a, b] = pair();
  std::atomic<bool> stop = false;
  std::thread polling([&, end = a.get()] {
    while (!stop) {
      end->poll({});
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
  std::vector<std::thread> senders;
  for (uint32_t thread = 0; thread < kThreads; ++thread) {
    senders.emplace_back([&, thread, end = a.get()] {
      std::mt19937 random(thread);
      for (uint32_t i = 0; i < kMessages;) {
        auto slot = end->acquire(Channel::request, 8);
        if (!slot) {
          ASSERT_EQ(slot.error().code, ErrorCode::would_block) << slot.error().message;
          std::this_thread::yield();
          continue;
        }
        const bool send = random() % 8 != 0;  // some slots go back unsent
        std::memcpy(slot->bytes.data(), &thread, 4);
        std::memcpy(slot->bytes.data() + 4, &i, 4);
        ASSERT_TRUE(end->commit(*slot, send ? 8 : 0));
        i += send ? 1 : 0;
      }
    });
  }
  uint32_t next[kThreads] = {};
  for (uint32_t i = 0; i < kThreads * kMessages; ++i) {
    const Incoming got = receive_one(*b);
    ASSERT_EQ(got.lease.bytes().size(), 8u);
    uint32_t thread = 0, number = 0;
    std::memcpy(&thread, got.lease.bytes().data(), 4);
    std::memcpy(&number, got.lease.bytes().data() + 4, 4);
    ASSERT_LT(thread, kThreads);
    ASSERT_EQ(number, next[thread]++);
  }
  for (std::thread& sender : senders) sender.join();
  stop = true;
  polling.join();
}

INSTANTIATE_TEST_SUITE_P(Transports, ContractTest, testing::Values("inproc", "shm", "tcp", "ucx", "tls"),
                         [](const auto& parameter) { return std::string(parameter.param); });

}  // namespace
}  // namespace tandem
