// For tests of endpoints: pairs over any transport, and patient helpers that wait by the contract (poll, arm,
// epoll).
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "transport/endpoint.h"
#include "transport/poller.h"
#include "transport/tcp_socket.h"

namespace tandem {

// Far above what any machine needs; a test that gets there has lost a wake.
inline constexpr Duration kPatience = std::chrono::seconds(30);

// A limit of silence for tests that wait for it: far above what a busy machine keeps a living process from
// running.
inline constexpr Duration kSilence = std::chrono::seconds(2);

struct EndpointPair {
  std::unique_ptr<Endpoint> connected;
  std::unique_ptr<Endpoint> accepted;
};

inline std::string unique_address(const std::string& transport) {
  static int counter = 0;
  const std::string tag = std::to_string(getpid()) + "_" + std::to_string(++counter);
  if (transport == "tcp" || transport == "ucx") return transport + "://127.0.0.1:0";
  if (transport == "shm") return "shm:///tmp/tandem_test_" + tag + ".sock";
  return "inproc://test_" + tag;
}

inline std::unique_ptr<Endpoint> accept_one(Listener& listener, Duration limit = kPatience) {
  auto poller = Poller::create();
  EXPECT_TRUE(poller->add(listener.fd(), 1));
  uint64_t key = 0;
  for (const Instant end = now() + limit; now() < end;) {
    auto endpoint = listener.accept();
    EXPECT_TRUE(endpoint) << endpoint.error().message;
    if (!endpoint || *endpoint) return endpoint ? std::move(*endpoint) : nullptr;
    poller->wait(end - now(), {&key, 1});
  }
  return nullptr;
}

inline EndpointPair make_pair(Listener& listener, const EndpointOptions& options) {
  EndpointPair pair;
  std::thread connecting([&] {
    auto connected = connect(listener.address(), options);
    EXPECT_TRUE(connected) << connected.error().message;
    if (connected) pair.connected = std::move(*connected);
  });
  pair.accepted = accept_one(listener);
  connecting.join();
  return pair;
}

inline EndpointPair make_pair(const std::string& transport, const EndpointOptions& options) {
  auto listener = listen(unique_address(transport), options);
  EXPECT_TRUE(listener) << listener.error().message;
  return make_pair(**listener, options);
}

// Waits by the contract until the endpoint has work or `limit` is over; false after the limit.
inline bool wait_ready(Endpoint& endpoint, Duration limit = kPatience) {
  if (!endpoint.arm()) return true;
  auto poller = Poller::create();
  EXPECT_TRUE(poller->add(endpoint.fd(), 1));
  uint64_t key = 0;
  return poller->wait(limit, {&key, 1}) != 0;
}

// The next message; `others` are polled meanwhile so that what they could not send goes out.
inline Incoming receive_one(Endpoint& endpoint, std::vector<Endpoint*> others = {}) {
  Incoming incoming;
  for (const Instant end = now() + kPatience; now() < end;) {
    if (endpoint.poll({&incoming, 1}) == 1) return incoming;
    if (endpoint.peer() != PeerState::alive) break;
    for (Endpoint* other : others) other->poll({});
    wait_ready(endpoint, others.empty() ? std::chrono::milliseconds(100) : std::chrono::milliseconds(1));
  }
  ADD_FAILURE() << "no message from " << endpoint.peer_name() << ", which is "
                << peer_state_name(endpoint.peer());
  return incoming;
}

// A slot as soon as a credit is back; `others` are polled meanwhile so that they can give theirs.
inline Result<SendSlot> acquire_patiently(Endpoint& endpoint, Channel channel, size_t bytes,
                                          std::vector<Endpoint*> others = {}) {
  for (const Instant end = now() + kPatience; now() < end;) {
    auto slot = endpoint.acquire(channel, bytes);
    if (slot || slot.error().code != ErrorCode::would_block) return slot;
    for (Endpoint* other : others) other->poll({});
    endpoint.poll({});
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return make_error(ErrorCode::deadline_exceeded, "no credit came back");
}

inline Result<void> send_text(Endpoint& endpoint, Channel channel, const std::string& text) {
  TANDEM_ASSIGN(SendSlot slot, endpoint.acquire(channel, text.size()));
  std::memcpy(slot.bytes.data(), text.data(), text.size());
  return endpoint.commit(slot, text.size());
}

inline std::string text_of(const Lease& lease) {
  return {reinterpret_cast<const char*>(lease.bytes().data()), lease.bytes().size()};
}

// Reads what a raw socket still gets: true when a reset ends it, false when an end in order does.
inline bool ends_by_reset(int socket) {
  std::vector<std::byte> rest(4096);
  for (const Instant end = now() + kPatience; now() < end;) {
    const ssize_t got = recv(socket, rest.data(), rest.size(), MSG_DONTWAIT);
    if (got == 0) return false;
    if (got < 0 && errno == ECONNRESET) return true;
    if (got < 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ADD_FAILURE() << "the connection did not end";
  return false;
}

// All bytes, waiting as long as it takes; false when the other side ends before.
inline bool read_fully(int socket, std::span<std::byte> bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t got = recv(socket, bytes.data() + done, bytes.size() - done, MSG_DONTWAIT);
    if (got > 0) done += static_cast<size_t>(got);
    if (got > 0 || (got < 0 && errno == EINTR)) continue;
    const bool waits = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    if (!waits || !wait_for_socket(socket, false, now() + kPatience)) return false;
  }
  return true;
}
inline bool write_fully(int socket, std::span<const std::byte> bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t put = send(socket, bytes.data() + done, bytes.size() - done, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put > 0) done += static_cast<size_t>(put);
    if (put > 0 || (put < 0 && errno == EINTR)) continue;
    const bool waits = put < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    if (!waits || !wait_for_socket(socket, true, now() + kPatience)) return false;
  }
  return true;
}

// Lets the listener work until `done`; it may let nobody in. False: it was not in time.
template <class Done>
bool serve_until(Listener& listener, Done done) {
  for (const Instant end = now() + kPatience; now() < end;) {
    if (done()) return true;
    EXPECT_EQ(accept_one(listener, std::chrono::milliseconds(5)), nullptr);
  }
  return done();
}

// What a socket still gets while the listener works, until so many bytes have come or the other side ends.
inline std::vector<std::byte> read_while_serving(Listener& listener, int socket, size_t limit) {
  std::vector<std::byte> bytes(limit);
  size_t size = 0;
  const bool ended = serve_until(listener, [&] {
    while (size < limit) {
      const ssize_t got = recv(socket, bytes.data() + size, limit - size, MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno == ECONNRESET)) return true;
      if (got < 0) return false;
      size += static_cast<size_t>(got);
    }
    return true;
  });
  EXPECT_TRUE(ended) << "neither " << limit << " bytes nor an end came";
  bytes.resize(size);
  return bytes;
}

// Standard error, and with it the log, goes into a file as long as this lives.
class CapturedLog {
 public:
  CapturedLog() : file_(std::tmpfile()), before_(dup(STDERR_FILENO)) { dup2(fileno(file_), STDERR_FILENO); }
  ~CapturedLog() {
    dup2(before_.get(), STDERR_FILENO);
    std::fclose(file_);
  }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;
  std::string text() const {
    std::string text(1 << 16, '\0');
    const ssize_t got = pread(fileno(file_), text.data(), text.size(), 0);
    text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    return text;
  }

 private:
  std::FILE* file_;
  const UniqueFd before_;
};

// A connected tcp socket that has said nothing.
inline Result<UniqueFd> connect_patiently(const Address& address) {
  TANDEM_ASSIGN(TcpConnector connector, TcpConnector::start(address, kPatience));
  for (;;) {
    TANDEM_ASSIGN(UniqueFd socket, connector.advance());
    if (socket) return socket;
    wait_for_socket(connector.socket(), true, connector.deadline());
  }
}

// Polls until the peer is not alive.
inline PeerState wait_for_loss(Endpoint& endpoint, Duration limit = kPatience) {
  for (const Instant end = now() + limit; now() < end && endpoint.peer() == PeerState::alive;) {
    std::vector<Incoming> out(4);
    if (endpoint.poll(out) == 0) wait_ready(endpoint, std::chrono::milliseconds(5));
  }
  return endpoint.peer();
}

}  // namespace tandem
