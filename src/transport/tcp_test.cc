// What only tcp has: framing, hellos, and peers that send what they like.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <random>

#include "transport/connecting.h"
#include "transport/endpoint_test_util.h"
#include "transport/hello.h"
#include "transport/socket.h"
#include "transport/tcp_frame.h"
#include "transport/tcp_greeting.h"
#include "transport/tcp_socket.h"

namespace tandem {
namespace {

EndpointOptions small_options() {
  EndpointOptions options;
  options.slots_per_channel = 2;
  options.slot_bytes = 256;
  options.silence_limit = std::chrono::seconds(20);
  return options;
}

void append(std::vector<std::byte>& bytes, std::span<const std::byte> more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

std::vector<std::byte> frame(TcpFrameKind kind, Channel channel, uint32_t value, size_t payload = 0) {
  std::vector<std::byte> bytes;
  append(bytes, TcpFrameLayout::encode({kind, channel, value}));
  bytes.resize(bytes.size() + payload, std::byte{0x5a});
  return bytes;
}

std::vector<std::byte> greeting(const EndpointOptions& options) {
  auto bytes = frame(TcpFrameKind::hello, Channel::control, HelloLayout::kBytes);
  append(bytes, HelloLayout::encode(options));
  return bytes;
}

// A peer that is nothing but a socket.
UniqueFd raw_connect(const std::string& address) {
  const auto port = parse_host_port(address.substr(6), address)->port;
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in target{};
  target.sin_family = AF_INET;
  target.sin_port = htons(port);
  target.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&target), sizeof(target)), 0);
  return socket;
}

void raw_send(const UniqueFd& socket, std::span<const std::byte> bytes) {
  // What the other side did not want to read any more is no failure of the test.
  [[maybe_unused]] const auto sent = write_fully(socket.get(), bytes);
}

class TcpTest : public testing::Test {
 protected:
  std::unique_ptr<Listener> listener_ = std::move(*listen("tcp://127.0.0.1:0", small_options()));

  // A raw socket that has said a good hello, and the endpoint that believed it.
  std::pair<UniqueFd, std::unique_ptr<Endpoint>> raw_peer() {
    UniqueFd socket = raw_connect(listener_->address());
    raw_send(socket, greeting(small_options()));
    return {std::move(socket), accept_one(*listener_)};
  }

  PeerState state_after(std::span<const std::byte> bytes) {
    auto [socket, endpoint] = raw_peer();
    raw_send(socket, bytes);
    shutdown(socket.get(), SHUT_WR);
    return wait_for_loss(*endpoint);
  }
};

TEST(TcpFrame, EncodeAndDecodeAreInverse) {
  for (const TcpFrame& wanted : {TcpFrame{TcpFrameKind::data, Channel::exchange, 917568},
                                 TcpFrame{TcpFrameKind::credit, Channel::request, 8},
                                 TcpFrame{TcpFrameKind::heartbeat, Channel::control, 0},
                                 TcpFrame{TcpFrameKind::bye, Channel::control, 0}}) {
    const auto bytes = TcpFrameLayout::encode(wanted);
    const auto got = TcpFrameLayout::decode(bytes);
    ASSERT_TRUE(got);
    EXPECT_EQ(got->kind, wanted.kind);
    EXPECT_EQ(got->channel, wanted.channel);
    EXPECT_EQ(got->value, wanted.value);
    for (size_t at = 0; at < bytes.size(); ++at) {
      for (int bit = 0; bit < 8; ++bit) {
        auto damaged = bytes;
        damaged[at] ^= static_cast<std::byte>(1 << bit);
        EXPECT_FALSE(TcpFrameLayout::decode(damaged)) << at << "." << bit;
      }
    }
  }
  // The wire is normative: another implementation must make these bytes.
  const auto bytes = TcpFrameLayout::encode({TcpFrameKind::data, Channel::exchange, 0x01020304});
  const std::array<unsigned char, 12> begin = {'T', 'N', 'D', 'T', 2, 2, 0, 0, 4, 3, 2, 1};
  EXPECT_EQ(std::memcmp(bytes.data(), begin.data(), begin.size()), 0);
}

TEST(TcpFrame, ValuesThatAKindCannotHaveAreRefused) {
  for (const TcpFrame& bad : {TcpFrame{TcpFrameKind::data, Channel::request, 0},
                              TcpFrame{TcpFrameKind::credit, Channel::request, 0},
                              TcpFrame{TcpFrameKind::heartbeat, Channel::control, 1},
                              TcpFrame{TcpFrameKind::heartbeat, Channel::request, 0},
                              TcpFrame{static_cast<TcpFrameKind>(0), Channel::control, 0},
                              TcpFrame{static_cast<TcpFrameKind>(6), Channel::control, 0},
                              TcpFrame{TcpFrameKind::data, static_cast<Channel>(3), 5}}) {
    EXPECT_EQ(TcpFrameLayout::decode(TcpFrameLayout::encode(bad)).error().code, ErrorCode::data_loss);
  }
}

TEST_F(TcpTest, APeerThatBreaksTheProtocolIsBroken) {
  const auto data = [](size_t bytes) {
    return frame(TcpFrameKind::data, Channel::request, static_cast<uint32_t>(bytes), bytes);
  };
  std::vector<std::byte> three;  // two credits
  for (int i = 0; i < 3; ++i) append(three, data(10));
  EXPECT_EQ(state_after(three), PeerState::broken);
  EXPECT_EQ(state_after(data(257)), PeerState::broken);
  EXPECT_EQ(state_after(frame(TcpFrameKind::data, Channel::request, 0xffffffff)), PeerState::broken);
  EXPECT_EQ(state_after(frame(TcpFrameKind::credit, Channel::request, 1)), PeerState::broken);
  EXPECT_EQ(state_after(frame(TcpFrameKind::credit, Channel::request, 0xffffffff)), PeerState::broken);
  EXPECT_EQ(state_after(greeting(small_options())), PeerState::broken);
  EXPECT_EQ(state_after(std::vector<std::byte>(100, std::byte{'x'})), PeerState::broken);
  EXPECT_EQ(state_after(frame(TcpFrameKind::bye, Channel::control, 0)), PeerState::closed);  // the good one
}

TEST_F(TcpTest, TruncatedStreamsEndClosedAndDeliverOnlyWholeMessages) {
  std::vector<std::byte> stream = frame(TcpFrameKind::data, Channel::request, 40, 40);
  append(stream, frame(TcpFrameKind::data, Channel::exchange, 30, 30));
  for (size_t length = 0; length <= stream.size(); length += 3) {
    auto [socket, endpoint] = raw_peer();
    raw_send(socket, std::span(stream).first(length));
    socket.reset();
    size_t received = 0;
    for (const Instant end = now() + kPatience; now() < end;) {
      Incoming out[4];
      const size_t count = endpoint->poll(out);
      received += count;
      if (count == 0 && endpoint->peer() != PeerState::alive) break;
      if (count == 0) wait_ready(*endpoint, std::chrono::milliseconds(5));
    }
    EXPECT_EQ(endpoint->peer(), PeerState::closed);
    EXPECT_EQ(received, (length >= 56 ? 1u : 0u) + (length >= stream.size() ? 1u : 0u)) << length;
  }
}

TEST_F(TcpTest, RandomBytesNeverCrash) {
  std::mt19937 random(7);
  for (int round = 0; round < 150; ++round) {
    // Half of the rounds: good frames with some bytes damaged; the others: noise.
    std::vector<std::byte> bytes;
    for (int i = 0; i < 6; ++i) {
      const auto value = static_cast<uint32_t>(1 + random() % 256);
      append(bytes, frame(TcpFrameKind::data, static_cast<Channel>(random() % 3), value, value));
    }
    if (round % 2 == 0) {
      for (int i = 0; i < 3; ++i)
        bytes[random() % bytes.size()] ^= static_cast<std::byte>(1 + random() % 255);
    } else {
      for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    }
    const PeerState state = state_after(bytes);
    EXPECT_TRUE(state == PeerState::broken || state == PeerState::closed);
    if (round % 2 == 1) {
      EXPECT_EQ(state, PeerState::broken);
    }
  }
}

TEST_F(TcpTest, StrangersAtTheListenerAreDroppedAndItGoesOn) {
  const UniqueFd browser = raw_connect(listener_->address());
  const std::string request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  raw_send(browser, std::as_bytes(std::span(request)));
  const UniqueFd mute = raw_connect(listener_->address());  // never says a word
  const UniqueFd half = raw_connect(listener_->address());
  const auto hello = greeting(small_options());
  raw_send(half, std::span(hello).first(40));
  EXPECT_EQ(accept_one(*listener_, std::chrono::milliseconds(20)), nullptr);
  auto [a, b] = make_pair(*listener_, small_options());
  ASSERT_TRUE(a && b);
  ASSERT_TRUE(send_text(*a, Channel::control, "works"));
  EXPECT_EQ(text_of(receive_one(*b, {a.get()}).lease), "works");
  EXPECT_TRUE(read_while_serving(*listener_, browser.get(), 1).empty());  // closed, with no answer
}

TEST_F(TcpTest, MoreSilentStrangersThanAreHeldAreDroppedOldestFirst) {
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 80; ++i) {
    strangers.push_back(raw_connect(listener_->address()));
    if (i % 20 == 19) {
      EXPECT_EQ(accept_one(*listener_, std::chrono::milliseconds(5)), nullptr);
    }
  }
  raw_send(strangers.back(), greeting(small_options()));
  EXPECT_NE(accept_one(*listener_), nullptr);
}

TEST_F(TcpTest, AnotherVersionIsRefusedByNameOnBothSides) {
  UniqueFd socket = raw_connect(listener_->address());
  auto bytes = greeting(small_options());
  bytes[TcpFrameLayout::kHeaderBytes + 4] = std::byte{9};
  raw_send(socket, bytes);
  // Told what this side speaks.
  ASSERT_EQ(read_while_serving(*listener_, socket.get(), bytes.size()).size(), bytes.size());
  const auto refused =
      match_hello(small_options(), "here", std::span(bytes).subspan(TcpFrameLayout::kHeaderBytes), "there");
  ASSERT_FALSE(refused);
  EXPECT_EQ(
      refused.error().message,
      "transport version differs: 1 at here (this side), 9 at there; install the same release on both sides");
}

TEST_F(TcpTest, ConnectingToSomethingElseIsRefusedByName) {
  // A listener that answers with another protocol.
  const UniqueFd server(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_GE(server.get(), 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(server.get(), reinterpret_cast<sockaddr*>(&any), sizeof(any)), 0);
  ASSERT_EQ(::listen(server.get(), 1), 0);
  const std::string address = tcp_name_of_local_end(server.get());
  std::thread answering([&] {
    const UniqueFd socket(::accept(server.get(), nullptr, nullptr));
    const std::string text(200, 'S');
    raw_send(socket, std::as_bytes(std::span(text)));
    char ignored[200];
    [[maybe_unused]] auto got = recv(socket.get(), ignored, sizeof(ignored), MSG_WAITALL);
  });
  auto wrong = connect(address, small_options());
  answering.join();
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, ErrorCode::data_loss);
  EXPECT_NE(wrong.error().message.find(address + " does not speak"), std::string::npos)
      << wrong.error().message;

  // One that never answers: both ends are named.
  EndpointOptions hasty = small_options();
  hasty.connect_limit = std::chrono::milliseconds(50);
  wrong = connect(address, hasty);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, ErrorCode::deadline_exceeded);
  EXPECT_NE(wrong.error().message.find(address), std::string::npos) << wrong.error().message;
  EXPECT_NE(wrong.error().message.find("handshake of tcp://127.0.0.1:"), std::string::npos)
      << wrong.error().message;
}

// A client that knows no sizes is told them; what it does state must be right.
TEST_F(TcpTest, AClientMayLeaveTheOptionsToTheListeningSide) {
  EndpointOptions unstated = small_options();
  unstated.slots_per_channel = 0;
  unstated.slot_bytes = 0;
  unstated.heartbeat_interval = unstated.silence_limit = Duration::zero();
  EndpointOptions wrong = unstated;
  wrong.slot_bytes = small_options().slot_bytes + 1;
  for (const bool fits : {true, false}) {
    const UniqueFd socket = raw_connect(listener_->address());
    raw_send(socket, greeting(fits ? unstated : wrong));
    std::unique_ptr<Endpoint> accepted;
    std::array<std::byte, kGreetingBytes> answer{};
    size_t received = 0;
    for (const Instant limit = now() + kPatience; received < answer.size() && now() < limit;) {
      if (auto taken = listener_->accept(); taken && *taken) accepted = std::move(*taken);
      const ssize_t got =
          recv(socket.get(), answer.data() + received, answer.size() - received, MSG_DONTWAIT);
      if (got > 0) received += static_cast<size_t>(got);
    }
    EXPECT_TRUE(match_greeting(answer, small_options(), "here", "there")) << "the answer states all of them";
    EXPECT_EQ(accepted != nullptr, fits);
    EXPECT_EQ(listener_->take_mismatch().has_value(), !fits);
  }
}

TEST_F(TcpTest, ConnectingToWhoNeverAnswersEndsAtItsLimitOrAtAStop) {
  const auto mute = listen_tcp({"tcp", "127.0.0.1:0"});
  ASSERT_TRUE(mute);
  const std::string rest = tcp_name_of_local_end(mute->get()).substr(6);
  for (const std::string scheme : {"tcp", "ucx"}) {
    const std::string address = scheme + "://" + rest;
    EndpointOptions options = small_options();
    options.connect_limit = std::chrono::hours(1);
    auto connecting = start_connecting(address, options);
    ASSERT_TRUE(connecting) << connecting.error().message;
    for (int i = 0; i < 100; ++i) {
      const auto connected = (*connecting)->advance();
      ASSERT_TRUE(connected) << connected.error().message;
      EXPECT_EQ(*connected, nullptr);
    }
    const std::atomic<bool> stop = true;
    const auto stopped = connect(address, options, stop);
    ASSERT_FALSE(stopped);
    EXPECT_EQ(stopped.error().code, ErrorCode::cancelled) << stopped.error().message;

    options.connect_limit = std::chrono::milliseconds(50);
    const auto late = connect(address, options);
    ASSERT_FALSE(late);
    EXPECT_EQ(late.error().code, ErrorCode::deadline_exceeded);
    const std::string both = "handshake of " + scheme + "://127.0.0.1:";
    EXPECT_TRUE(late.error().message.starts_with(both)) << late.error().message;
    EXPECT_NE(late.error().message.find(" with " + address + ": no answer"), std::string::npos)
        << late.error().message;
  }
}

// A host with an address that swallows packets in front of one that works, as IPv6 without a route is.
TEST_F(TcpTest, AnAddressThatDoesNotAnswerLeavesTimeForTheNextOne) {
  const UniqueFd full(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketAddress silent;
  silent.length = sizeof(sockaddr_in);
  auto* address = reinterpret_cast<sockaddr_in*>(silent.get());
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(full.get(), silent.get(), silent.length), 0);
  ASSERT_EQ(::listen(full.get(), 0), 0);
  ASSERT_EQ(getsockname(full.get(), silent.get(), &silent.length), 0);
  // Whoever comes when the backlog is full gets no answer at all.
  std::vector<UniqueFd> waiting;
  for (bool taken = true; taken && waiting.size() < 8;) {
    waiting.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    ::connect(waiting.back().get(), silent.get(), silent.length);
    taken = wait_for_socket(waiting.back().get(), true, now() + std::chrono::milliseconds(200));
  }
  const auto host_port = parse_host_port(listener_->address().substr(6), listener_->address());
  const SocketAddress works = resolve(*host_port, listener_->address())->front();
  TcpConnector connector({"tcp", "two.addresses:7000"}, {silent, silent, works}, std::chrono::seconds(3));
  UniqueFd socket;
  while (!socket) {
    auto advanced = connector.advance();
    ASSERT_TRUE(advanced) << advanced.error().message;
    socket = std::move(*advanced);
    wait_for_socket(connector.socket(), true, now() + std::chrono::milliseconds(10));
  }
  SocketAddress reached;
  reached.length = sizeof(reached.storage);
  ASSERT_EQ(getpeername(socket.get(), reached.get(), &reached.length), 0);
  EXPECT_EQ(tcp_name(reached), listener_->address());
}

TEST_F(TcpTest, AddressesThatCannotWorkAreRefusedByName) {
  const auto expect = [](const auto& result, ErrorCode code, const std::string& part) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, code) << result.error().message;
    EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
  };
  expect(connect("tcp://host.invalid:7000", small_options()), ErrorCode::not_found, "host.invalid");
  expect(connect("tcp://127.0.0.1:0", small_options()), ErrorCode::invalid_argument, "not 0");
  expect(connect("tcp://:7000", small_options()), ErrorCode::invalid_argument, "needs a host");
  expect(connect("127.0.0.1:notaport", small_options()), ErrorCode::invalid_argument, "notaport");
  expect(listen("tcp://192.0.2.1:0", small_options()), ErrorCode::invalid_argument,
         "not an address of this machine");
  const std::string address = listener_->address();
  listener_.reset();
  expect(connect(address, small_options()), ErrorCode::unavailable, "start the peer first");
}

TEST_F(TcpTest, IPv6) {
  auto listener = listen("tcp://[::1]:0", small_options());
  if (!listener) GTEST_SKIP() << "no IPv6 here: " << listener.error().message;
  EXPECT_EQ((*listener)->address().find("tcp://[::1]:"), 0u);
  auto [a, b] = make_pair(**listener, small_options());
  ASSERT_TRUE(send_text(*a, Channel::control, "six"));
  EXPECT_EQ(text_of(receive_one(*b, {a.get()}).lease), "six");
}

TEST_F(TcpTest, AReaderThatDoesNotReadBlocksOnlyCreditsAndLosesNothing) {
  EndpointOptions options = small_options();
  options.slots_per_channel = 16;
  options.slot_bytes = size_t{1} << 20;  // more than the socket buffers hold
  auto [a, b] = make_pair("tcp", options);
  int sent = 0;
  for (const auto channel : {Channel::control, Channel::request, Channel::exchange}) {
    for (uint32_t i = 0; i < options.slots_per_channel; ++i) {
      auto slot = a->acquire(channel, options.slot_bytes);
      ASSERT_TRUE(slot);
      std::memset(slot->bytes.data(), sent, slot->bytes.size());
      ASSERT_TRUE(a->commit(*slot, slot->bytes.size()));
      ++sent;
    }
    EXPECT_EQ(a->acquire(channel, 1).error().code, ErrorCode::would_block);
  }
  for (int i = 0; i < 20; ++i) a->poll({});  // the rest waits in the slots
  for (int got = 0; got < sent; ++got) {
    const Incoming message = receive_one(*b, {a.get()});
    ASSERT_EQ(message.lease.bytes().size(), options.slot_bytes);
    ASSERT_EQ(message.lease.bytes().front(), static_cast<std::byte>(got));
    ASSERT_EQ(message.lease.bytes().back(), static_cast<std::byte>(got));
  }
}

TEST_F(TcpTest, ASilentPeerIsToldByAResetWhichWaitsForNothing) {
  EndpointOptions options = small_options();
  options.silence_limit = std::chrono::milliseconds(300);
  auto listener = listen("tcp://127.0.0.1:0", options);
  ASSERT_TRUE(listener);
  const UniqueFd socket = raw_connect((*listener)->address());
  raw_send(socket, greeting(options));
  const auto endpoint = accept_one(**listener);
  ASSERT_TRUE(endpoint);
  EXPECT_EQ(wait_for_loss(*endpoint), PeerState::silent);
  EXPECT_TRUE(ends_by_reset(socket.get()));
}

TEST_F(TcpTest, AStoppedProcessIsSilentAndAKilledOneClosed) {
  EndpointOptions options = small_options();
  options.heartbeat_interval = std::chrono::milliseconds(10);
  for (const bool stop : {true, false}) {
    options.silence_limit = stop ? kSilence : kPatience;
    auto listener = std::move(*listen("tcp://127.0.0.1:0", options));
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto endpoint = connect(listener->address(), options);
      if (!endpoint) _exit(1);
      while ((*endpoint)->peer() == PeerState::alive) {
        (*endpoint)->poll({});
        usleep(2000);
      }
      _exit(0);
    }
    auto endpoint = accept_one(*listener);
    ASSERT_TRUE(endpoint);
    Incoming none;
    for (int i = 0; i < 20; ++i) {
      endpoint->poll({&none, 1});
      wait_ready(*endpoint, std::chrono::milliseconds(10));
    }
    EXPECT_EQ(endpoint->peer(), PeerState::alive);
    kill(child, stop ? SIGSTOP : SIGKILL);
    EXPECT_EQ(wait_for_loss(*endpoint), stop ? PeerState::silent : PeerState::closed);
    kill(child, SIGKILL);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
  }
}

}  // namespace
}  // namespace tandem
