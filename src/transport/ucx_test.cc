// What only ucx has: a library that must not take the process over, the death of a process under it, and a
// peer that lies over UCX or beside it.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cstdlib>

#include "transport/endpoint_test_util.h"
#include "transport/little_endian.h"
#include "transport/socket.h"
#include "transport/tcp_greeting.h"
#include "transport/tcp_socket.h"
#include "transport/ucx_frame.h"
#include "transport/ucx_worker.h"

extern char** environ;

namespace tandem {
namespace {

// What the echo process is told: where to connect, and after how many milliseconds its peer is silent.
constexpr const char* kEchoAddress = "TANDEM_TEST_ECHO_ADDRESS";
constexpr const char* kEchoSilence = "TANDEM_TEST_ECHO_SILENCE";

EndpointOptions small_options() {
  EndpointOptions options;
  options.slots_per_channel = 4;
  options.slot_bytes = 1 << 20;  // far above what UCX sends without a rendezvous
  options.heartbeat_interval = std::chrono::milliseconds(10);
  options.silence_limit = std::chrono::seconds(20);
  return options;
}

EndpointOptions options_with(Duration silence_limit) {
  EndpointOptions options = small_options();
  options.silence_limit = silence_limit;
  return options;
}

TEST(UcxFrame, WhatIsEncodedIsDecoded) {
  const UcxFrame frame{UcxFrameKind::data, Channel::exchange, 7, 99, {1, 2, 3}, 5};
  const auto decoded = UcxFrameLayout::decode(UcxFrameLayout::encode(frame));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->kind, frame.kind);
  EXPECT_EQ(decoded->channel, frame.channel);
  EXPECT_EQ(decoded->sequence, 7u);
  EXPECT_EQ(decoded->bytes, 99u);
  EXPECT_EQ(decoded->freed, frame.freed);
  EXPECT_EQ(decoded->starved, 5u);
}

TEST(UcxFrame, WhatCannotBeIsRefusedByName) {
  const auto why = [](UcxFrame frame, size_t at = 0, int flip = 0) {
    auto bytes = UcxFrameLayout::encode(frame);
    bytes[at] ^= static_cast<std::byte>(flip);
    const auto decoded = UcxFrameLayout::decode(bytes);
    return decoded ? std::string("taken") : decoded.error().message;
  };
  const UcxFrame data{UcxFrameKind::data, Channel::request, 0, 1, {}, 0};
  EXPECT_EQ(why(data), "taken");
  EXPECT_EQ(why(data, 0, 1), "ucx frame: wrong magic");
  EXPECT_EQ(why(data, 4, 8), "ucx frame: unknown kind 10");
  EXPECT_EQ(why(data, 5, 8), "ucx frame: unknown channel 9");
  EXPECT_EQ(why(data, 6, 1), "ucx frame: reserved bytes are not 0");
  EXPECT_EQ(why(data, 28, 8), "ucx frame: unknown channel without credit");
  EXPECT_EQ(why({UcxFrameKind::data, Channel::request, 0, 0, {}, 0}), "ucx frame: kind 2 with 0 bytes");
  EXPECT_EQ(why({UcxFrameKind::credit, Channel::control, 0, 4, {}, 0}), "ucx frame: kind 3 with 4 bytes");
  EXPECT_EQ(why({UcxFrameKind::credit, Channel::request, 0, 0, {}, 0}), "ucx frame: kind 3 with a channel");
  EXPECT_EQ(UcxFrameLayout::decode(std::vector<std::byte>(5)).error().message,
            "ucx frame: header of 5 bytes");
}

// The echo process: this very test, started anew, because UCX does not outlive a fork. Skipped otherwise.
TEST(UcxEchoProcess, EchoesUntilItsPeerIsGone) {
  const char* address = std::getenv(kEchoAddress);
  const char* silence = std::getenv(kEchoSilence);
  if (address == nullptr || silence == nullptr) GTEST_SKIP() << "only as the process of other tests";
  auto connected = connect(address, options_with(std::chrono::milliseconds(std::atoi(silence))));
  ASSERT_TRUE(connected) << connected.error().message;
  Endpoint& endpoint = **connected;
  while (endpoint.peer() == PeerState::alive) {
    Incoming incoming;
    if (endpoint.poll({&incoming, 1}) == 0) {
      wait_ready(endpoint, std::chrono::milliseconds(5));
      continue;
    }
    auto slot = acquire_patiently(endpoint, incoming.channel, incoming.lease.bytes().size());
    if (!slot) break;
    std::memcpy(slot->bytes.data(), incoming.lease.bytes().data(), incoming.lease.bytes().size());
    if (!endpoint.commit(*slot, slot->bytes.size())) break;
  }
}

class UcxProcessTest : public testing::Test {
 protected:
  void SetUp() override {
    auto listener = listen("ucx://127.0.0.1:0", options_with(silence_limit_));
    ASSERT_TRUE(listener) << listener.error().message;
    std::string where = std::string(kEchoAddress) + "=" + (*listener)->address();
    const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(silence_limit_);
    std::string silence = std::string(kEchoSilence) + "=" + std::to_string(limit.count());
    std::vector<char*> environment;
    for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
    environment.insert(environment.end(), {where.data(), silence.data(), nullptr});
    std::string program = "/proc/self/exe", filter = "--gtest_filter=UcxEchoProcess.*",
                brief = "--gtest_brief=1";
    char* arguments[] = {program.data(), filter.data(), brief.data(), nullptr};
    ASSERT_EQ(posix_spawn(&child_, program.c_str(), nullptr, nullptr, arguments, environment.data()), 0);
    endpoint_ = accept_one(**listener);
    ASSERT_TRUE(endpoint_);
  }
  void TearDown() override {
    endpoint_.reset();
    if (child_ <= 0) return;
    kill(child_, SIGCONT);
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }

  std::string echo(size_t bytes) {
    const std::string text(bytes, static_cast<char>('a' + bytes % 26));
    EXPECT_TRUE(send_text(*endpoint_, Channel::request, text));
    const std::string back = text_of(receive_one(*endpoint_).lease);
    return back == text ? "equal" : "of " + std::to_string(back.size()) + " bytes";
  }
  // Fills every slot of every channel with messages of this size.
  void fill(size_t bytes) {
    for (size_t channel = 0; channel < kNumChannels; ++channel) {
      for (int i = 0; i < 4; ++i) {
        [[maybe_unused]] auto sent =
            send_text(*endpoint_, static_cast<Channel>(channel), std::string(bytes, 'x'));
      }
    }
  }

  Duration silence_limit_ = kPatience;
  pid_t child_ = -1;
  std::unique_ptr<Endpoint> endpoint_;
};

class ImpatientUcxProcessTest : public UcxProcessTest {
 protected:
  ImpatientUcxProcessTest() { silence_limit_ = kSilence; }
};

TEST_F(UcxProcessTest, MessagesOfEverySizeComeBack) {
  for (size_t bytes : {1, 64, 1000, 8000, 9000, 20'000, 100'000, 1'000'000, 1 << 20}) {
    EXPECT_EQ(echo(bytes), "equal") << bytes;
  }
}

TEST_F(UcxProcessTest, AKilledProcessIsClosedAtOnceAndHarmsNobody) {
  EXPECT_EQ(echo(500'000), "equal");
  kill(child_, SIGKILL);
  EXPECT_EQ(wait_for_loss(*endpoint_), PeerState::closed);
  EXPECT_EQ(endpoint_->acquire(Channel::request, 1).error().code, ErrorCode::unavailable);
}

TEST_F(UcxProcessTest, AProcessKilledWithMessagesUnderWayIsClosed) {
  for (size_t bytes : {size_t{100}, size_t{1'000'000}}) {
    if (bytes != 100) {
      TearDown();
      SetUp();
    }
    kill(child_, SIGSTOP);
    fill(bytes);
    endpoint_->poll({});
    kill(child_, SIGKILL);
    fill(bytes);
    EXPECT_EQ(wait_for_loss(*endpoint_), PeerState::closed);
  }
}

TEST_F(ImpatientUcxProcessTest, AStoppedProcessIsSilentAlsoWhenNothingMoreFits) {
  EXPECT_EQ(echo(10), "equal");
  kill(child_, SIGSTOP);
  fill(1'000'000);
  EXPECT_EQ(endpoint_->acquire(Channel::request, 1).error().code, ErrorCode::would_block);
  EXPECT_EQ(wait_for_loss(*endpoint_), PeerState::silent);
}

TEST(UcxLibrary, LeavesTheHandlersOfSignalsAsTheyWere) {
  ASSERT_TRUE(UcxLibrary::get());
  // Two that UCX takes for itself and that neither this test nor a sanitizer handles.
  for (const int number : {SIGILL, SIGHUP}) {
    struct sigaction action{};
    sigaction(number, nullptr, &action);
    EXPECT_EQ(action.sa_handler, SIG_DFL) << strsignal(number);
  }
}

TEST(UcxLibrary, RefusesAForkOfAProcessThatUsesIt) {
  ASSERT_TRUE(UcxLibrary::get());
  const pid_t child = fork();
  if (child == 0) {
    const auto refused = listen("ucx://127.0.0.1:0", small_options());
    _exit(!refused && refused.error().code == ErrorCode::unsupported &&
                  refused.error().message.find("was forked from one that uses UCX") != std::string::npos
              ? 0
              : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(UcxHandshake, TheOtherTransportIsRefusedByNameOnBothSides) {
  for (const auto& [serving, calling] : {std::pair{"ucx", "tcp"}, std::pair{"tcp", "ucx"}}) {
    auto listener = listen(std::string(serving) + "://127.0.0.1:0", small_options());
    ASSERT_TRUE(listener);
    Result<std::unique_ptr<Endpoint>> connected = nullptr;
    std::atomic<bool> done = false;
    std::thread connecting([&] {
      connected = connect(calling + (*listener)->address().substr(3), small_options());
      done = true;
    });
    while (!done) EXPECT_EQ(accept_one(**listener, std::chrono::milliseconds(20)), nullptr);
    connecting.join();
    ASSERT_FALSE(connected);
    const std::string wanted = std::string("transport differs: ") + calling + " at ";
    EXPECT_NE(connected.error().message.find(wanted), std::string::npos) << connected.error().message;
    EXPECT_NE(connected.error().message.find("use the same scheme on both sides"), std::string::npos);
  }
}

// A peer that speaks the handshake by hand, and then says what it likes over UCX and beside it.
class LiarTest : public testing::Test, private UcxWorker::Events {
 protected:
  void SetUp() override {
    auto listener = listen("ucx://127.0.0.1:0", options_);
    ASSERT_TRUE(listener) << listener.error().message;
    listener_ = std::move(*listener);
    auto socket = connect_patiently({"ucx", listener_->address().substr(6)});
    ASSERT_TRUE(socket) << socket.error().message;
    socket_ = std::move(*socket);
    auto worker = UcxWorker::create(*this, 4, {"lo", false});
    ASSERT_TRUE(worker) << worker.error().message;
    worker_ = std::move(*worker);
  }

  std::vector<std::byte> address_frame() {
    const auto address = worker_->address();
    std::vector<std::byte> frame(TcpFrameLayout::kHeaderBytes + 8 + address.size());
    std::memcpy(frame.data() + TcpFrameLayout::kHeaderBytes + 8, address.data(), address.size());
    const auto header =
        TcpFrameLayout::encode({TcpFrameKind::worker_address, Channel::control,
                                static_cast<uint32_t>(frame.size() - TcpFrameLayout::kHeaderBytes)});
    std::memcpy(frame.data(), header.data(), header.size());
    store_little_endian<uint32_t>(&frame[20], (*UcxLibrary::get())->release());
    seal(frame);
    return frame;
  }
  static void seal(std::vector<std::byte>& frame) {
    store_little_endian<uint32_t>(&frame[16], crc32(std::span(frame).subspan(20)));
  }
  void write(std::span<const std::byte> bytes) { ASSERT_TRUE(write_fully(socket_.get(), bytes)); }
  // Greets and sends this address.
  void introduce(const std::vector<std::byte>& address) {
    write(make_greeting(options_, Carrier::ucx));
    write(address);
  }
  // The listener closes the connection and says why in its log.
  std::string refusal() {
    testing::internal::CaptureStderr();
    wait_for_close();
    return testing::internal::GetCapturedStderr();
  }
  void wait_for_close() {
    constexpr size_t kMoreThanItSays = 1 << 16;
    EXPECT_LT(read_while_serving(*listener_, socket_.get(), kMoreThanItSays).size(), kMoreThanItSays);
  }
  void wire() {
    introduce(address_frame());
    // It answers, and waits for UCX.
    constexpr size_t kAnswer = kGreetingBytes + TcpFrameLayout::kHeaderBytes;
    const std::vector<std::byte> answer = read_while_serving(*listener_, socket_.get(), kAnswer);
    ASSERT_EQ(answer.size(), kAnswer);
    const auto header = TcpFrameLayout::decode(
        std::span(answer).subspan(kGreetingBytes).first<TcpFrameLayout::kHeaderBytes>());
    ASSERT_TRUE(header);
    const std::vector<std::byte> body = read_while_serving(*listener_, socket_.get(), header->value);
    ASSERT_EQ(body.size(), header->value);
    ASSERT_TRUE(worker_->connect(std::span(body).subspan(8)));
    say({UcxFrameKind::hello, Channel::control, 0, 0, {}, 0}, 0);
    for (const Instant end = now() + kPatience; now() < end && !endpoint_;) {
      worker_->progress();
      endpoint_ = accept_one(*listener_, std::chrono::milliseconds(1));
    }
    ASSERT_TRUE(endpoint_);
  }
  // Header and bytes must stay while UCX sends.
  void say(const UcxFrame& frame, size_t bytes) {
    headers_.push_back(
        std::make_unique<std::array<std::byte, UcxFrameLayout::kBytes>>(UcxFrameLayout::encode(frame)));
    EXPECT_NE(worker_->send(*headers_.back(), std::span(payload_).first(bytes), headers_.size() % 4),
              UcxWorker::Outcome::failed);
  }
  PeerState state_after(const UcxFrame& frame, size_t bytes) {
    say(frame, bytes);
    for (const Instant end = now() + kPatience; now() < end && endpoint_->peer() == PeerState::alive;) {
      worker_->progress();
      Incoming none;
      endpoint_->poll({&none, 1});
    }
    return endpoint_->peer();
  }

  EndpointOptions options_ = small_options();
  std::unique_ptr<Listener> listener_;
  UniqueFd socket_;
  std::unique_ptr<Endpoint> endpoint_;
  std::vector<std::byte> payload_ = std::vector<std::byte>(2 << 20);
  std::vector<std::unique_ptr<std::array<std::byte, UcxFrameLayout::kBytes>>> headers_;
  std::unique_ptr<UcxWorker> worker_;

 private:
  bool on_message(std::span<const std::byte>, void*, size_t, bool) override { return false; }
  void on_sent(size_t, bool) override {}
  void on_received(size_t, bool) override {}
  void on_lost(const std::string&) override {}
};

TEST_F(LiarTest, ADamagedAddressNeverReachesUcx) {
  auto frame = address_frame();
  frame.back() ^= std::byte{1};
  introduce(frame);
  const std::string why = refusal();
  EXPECT_NE(why.find("wrong checksum of the address of the UCX worker"), std::string::npos) << why;
}

TEST_F(LiarTest, AnotherReleaseIsRefused) {
  auto frame = address_frame();
  store_little_endian<uint32_t>(&frame[20], 1u << 16 | 99);
  seal(frame);
  introduce(frame);
  const std::string why = refusal();
  EXPECT_NE(why.find("(this side), 1.99 at "), std::string::npos) << why;
}

TEST_F(LiarTest, AFrameInTheAddressesPlaceIsRefused) {
  const auto beat = TcpFrameLayout::encode({TcpFrameKind::heartbeat, Channel::control, 0});
  introduce({beat.begin(), beat.end()});
  const std::string why = refusal();
  EXPECT_NE(why.find("no address of a UCX worker came behind the greeting"), std::string::npos) << why;
}

// Heartbeats that come before UCX does wait in the socket for the endpoint.
TEST_F(LiarTest, APeerThatEndsBehindItsHeartbeatsIsMissedBeforeUcxIsThere) {
  const CapturedLog log;
  introduce(address_frame());
  constexpr size_t kAnswer = kGreetingBytes + TcpFrameLayout::kHeaderBytes;
  ASSERT_EQ(read_while_serving(*listener_, socket_.get(), kAnswer).size(), kAnswer);
  write(TcpFrameLayout::encode({TcpFrameKind::heartbeat, Channel::control, 0}));
  socket_.reset();
  EXPECT_TRUE(serve_until(*listener_, [&] {
    return log.text().find("the other side closed the connection") != std::string::npos;
  })) << log.text();
}

TEST_F(LiarTest, HonestMessagesArrive) {
  wire();
  say({UcxFrameKind::data, Channel::request, 0, 10, {}, 0}, 10);
  for (const Instant end = now() + kPatience; now() < end;) {
    worker_->progress();
    Incoming incoming;
    if (endpoint_->poll({&incoming, 1}) == 0) continue;
    EXPECT_EQ(incoming.lease.bytes().size(), 10u);
    return;
  }
  ADD_FAILURE() << peer_state_name(endpoint_->peer());
}

TEST_F(LiarTest, AMessageWithoutACreditIsBroken) {
  wire();
  EXPECT_EQ(state_after({UcxFrameKind::data, Channel::request, 4, 10, {}, 0}, 10), PeerState::broken);
}

TEST_F(LiarTest, AMessageThatWasSentBeforeIsBroken) {
  wire();
  say({UcxFrameKind::data, Channel::request, 1, 10, {}, 0}, 10);
  EXPECT_EQ(state_after({UcxFrameKind::data, Channel::request, 1, 10, {}, 0}, 10), PeerState::broken);
}

TEST_F(LiarTest, AMessageOfAnotherSizeThanSaidIsBroken) {
  wire();
  EXPECT_EQ(state_after({UcxFrameKind::data, Channel::request, 0, 10, {}, 0}, 11), PeerState::broken);
}

TEST_F(LiarTest, AMessageLargerThanASlotIsBroken) {
  wire();
  const size_t bytes = (1 << 20) + 1;
  EXPECT_EQ(
      state_after({UcxFrameKind::data, Channel::request, 0, static_cast<uint32_t>(bytes), {}, 0}, bytes),
      PeerState::broken);
}

TEST_F(LiarTest, CreditsThatAreNotOutAreBroken) {
  wire();
  EXPECT_EQ(state_after({UcxFrameKind::credit, Channel::control, 0, 0, {0, 1, 0}, 0}, 0), PeerState::broken);
}

TEST_F(LiarTest, ASecondHelloIsBroken) {
  wire();
  EXPECT_EQ(state_after({UcxFrameKind::hello, Channel::control, 0, 0, {}, 0}, 0), PeerState::broken);
}

TEST_F(LiarTest, AMessageBesideUcxIsBroken) {
  wire();
  write(TcpFrameLayout::encode({TcpFrameKind::data, Channel::request, 16}));
  EXPECT_EQ(wait_for_loss(*endpoint_), PeerState::broken);
}

class ImpatientLiarTest : public LiarTest {
 protected:
  ImpatientLiarTest() { options_ = options_with(std::chrono::milliseconds(400)); }
};

TEST_F(ImpatientLiarTest, MessagesWithoutHeartbeatsAreSilence) {
  wire();
  uint32_t sequence = 0;
  for (const Instant end = now() + kPatience; now() < end && endpoint_->peer() == PeerState::alive;) {
    if (sequence < 4) say({UcxFrameKind::data, Channel::request, sequence++, 10, {}, 0}, 10);
    // Credit frames cost no slot: messages of the peer for as long as it likes.
    say({UcxFrameKind::credit, Channel::control, 0, 0, {}, 0}, 0);
    worker_->progress();
    Incoming incoming;
    endpoint_->poll({&incoming, 1});
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(endpoint_->peer(), PeerState::silent);
  EXPECT_TRUE(ends_by_reset(socket_.get()));
}

TEST_F(LiarTest, WhatAGoodbyeAnnouncesIsAwaited) {
  wire();
  write(TcpFrameLayout::encode({TcpFrameKind::messages_sent, Channel::request, 1}));
  write(TcpFrameLayout::encode({TcpFrameKind::bye, Channel::control, 0}));
  for (int i = 0; i < 100; ++i) endpoint_->poll({});
  EXPECT_EQ(endpoint_->peer(), PeerState::alive);  // it may still come
  say({UcxFrameKind::data, Channel::request, 0, 10, {}, 0}, 10);
  Incoming last;
  while (endpoint_->poll({&last, 1}) == 0 && endpoint_->peer() == PeerState::alive) worker_->progress();
  EXPECT_EQ(last.lease.bytes().size(), 10u);
  EXPECT_EQ(wait_for_loss(*endpoint_), PeerState::closed);
}

}  // namespace
}  // namespace tandem
