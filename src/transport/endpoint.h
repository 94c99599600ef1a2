// Endpoint: one connection to one peer. It moves bytes under credits and knows nothing of their meaning.
//
// Threads: `acquire`, `commit`, `peer`, `caps` and `peer_name` may be called by any thread (they lock
// briefly); `poll`, `arm`, `fence` and the destructor belong to one thread, the poller, usually the I/O
// thread of the process. No call blocks. Leases may be destroyed by any thread. When the destructor runs no
// other thread may be inside a call. Liveness: `poll` sends and answers heartbeats, so the poller must call
// it at least every `heartbeat_interval`, whatever compute does; a peer that has been silent for
// `silence_limit` is dead. Messages of one channel arrive in the order of their commits; channels are not
// ordered among themselves.
//
// Credits: a channel has a fixed number of slots in each direction. A slot is taken by `acquire` and given
// back when the receiver destroys the lease. Channels never share slots: exchange never waits on request
// (docs/protocol.md). Every slot that was acquired must be committed, with 0 bytes when there is nothing to
// send: a forgotten one is lost to the channel until the connection ends.
//
// Trust: what steers an index or a length is checked before it is used, on every transport; a peer that lies
// is `broken`. The bytes of a message are the peer's: with shm a faulty peer could still change them, so read
// what you check once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "transport/peer_security.h"

namespace tandem {

enum class Channel : uint8_t { control, request, exchange };
inline constexpr size_t kNumChannels = 3;

struct EndpointOptions {
  uint32_t slots_per_channel =
      8;  // credits in each direction; two lanes of tiles in flight with room to spare
  size_t slot_bytes =
      size_t{2}
      << 20;  // largest message: 64 rows x 7168 values in float64 would be 3.5 MiB, set by the caller
  Duration heartbeat_interval = std::chrono::milliseconds(100);
  // A loss must be reported within one second, of which a busy machine needs a fifth to notice and to tell
  // it. A lost packet is sent again after 200 and after 600 ms, so two in a row are no silence.
  Duration silence_limit = std::chrono::milliseconds(800);
  Duration connect_limit = std::chrono::seconds(5);
  // Only `connect`: this side does not know the four values above and takes those of the listening side,
  // which must be within `validate`'s bounds; `caps` says what they are. For a client without the model's
  // files.
  bool adopt = false;
  // What the message of a difference of slot_bytes advises: the caller knows what they follow from. Not sent.
  std::string_view slot_bytes_remedy = "set the same value on both sides";
  // How tcp and ucx peers must know each other; null: they do not. inproc and shm, which know their peers,
  // leave it aside. Both sides must have the same kind. No byte of a message leaves, none is taken and no
  // slot is allocated before the peer has shown what it must.
  std::shared_ptr<const PeerSecurity> security = nullptr;
};

// invalid_argument naming the option, its value and its range. `listen` and `connect` call it first.
[[nodiscard]] Result<void> validate(const EndpointOptions& options);

struct EndpointCaps {
  std::string_view transport;  // "inproc", "shm", "tcp", "ucx"
  bool zero_copy = false;      // `acquire` hands out memory that the peer reads
  size_t max_message_bytes = 0;
  bool encrypted = false;
  // As agreed with the peer.
  uint32_t slots_per_channel = 0;
  Duration heartbeat_interval{}, silence_limit{};
};

// closed: it ended the connection or its process ended; silent: nothing heard for silence_limit; broken: what
// it sent is not the protocol. A lost peer is logged once, with the reason, by the endpoint.
enum class PeerState : uint8_t { alive, closed, silent, broken };

std::string_view peer_state_name(PeerState state);

struct SendSlot {
  std::span<std::byte>
      bytes;  // as many as were asked for, 64-byte aligned; write the message here, then commit
  Channel channel = Channel::control;
  uint64_t token = 0;  // the endpoint's own
};

// A received message. Its bytes (64-byte aligned) stay valid until the lease is destroyed, also when the
// endpoint is destroyed before; destroying gives the credit back to the sender.
class Lease {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void release(uint64_t token) = 0;
  };
  Lease() = default;
  Lease(std::shared_ptr<Owner> owner, uint64_t token, std::span<const std::byte> bytes)
      : owner_(std::move(owner)), token_(token), bytes_(bytes) {}
  Lease(Lease&& other) noexcept { swap(other); }
  // The message held until now is released at once.
  Lease& operator=(Lease&& other) noexcept {
    Lease moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~Lease() {
    if (owner_) owner_->release(token_);
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void swap(Lease& other) noexcept {
    std::swap(owner_, other.owner_);
    std::swap(token_, other.token_);
    std::swap(bytes_, other.bytes_);
  }

  std::shared_ptr<Owner> owner_;
  uint64_t token_ = 0;
  std::span<const std::byte> bytes_;
};

struct Incoming {
  Channel channel = Channel::control;
  Lease lease;
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;
  virtual EndpointCaps caps() const = 0;
  // The peer as an operator knows it: "tcp://10.0.0.2:7000", "shm:///run/ffn0.sock (pid 42)".
  virtual const std::string& peer_name() const = 0;

  // would_block: no credit now (`fd` becomes readable when one comes back: poll, then try again);
  // unavailable: the peer is gone; out_of_range: larger than a slot; invalid_argument: 0 bytes.
  [[nodiscard]] virtual Result<SendSlot> acquire(Channel channel, size_t bytes) = 0;
  // Sends the first `bytes` of the slot. bytes == 0 gives the slot back unsent. unavailable: the peer is gone
  // (the slot is given back); out_of_range: more than was acquired (the slot stays acquired);
  // invalid_argument: not an acquired slot.
  [[nodiscard]] virtual Result<void> commit(SendSlot slot, size_t bytes) = 0;

  // Receives into `out`, flushes what could not be sent, keeps heartbeats. Returns how many were received; an
  // empty `out` keeps the heartbeats and receives nothing. Messages that a peer had sent before it closed are
  // still received after peer() says closed: poll until 0 before giving the peer up.
  virtual size_t poll(std::span<Incoming> out) = 0;
  // Readiness: poll until it returns 0, then arm; false means that something arrived meanwhile (a message, or
  // a credit that an `acquire` had missed): poll and try again. After true, `fd` becomes readable when there
  // is work (a message, a credit that an `acquire` missed, the loss of the peer); wait for it (and for the
  // heartbeat interval) with epoll. Waking without work is possible.
  virtual bool arm() = 0;
  virtual int fd() const = 0;

  // Once not alive, it never becomes alive again: a peer returns by a new connection.
  virtual PeerState peer() const = 0;
  // Drops the connection and all that it holds; nothing that the peer writes later is seen. Leases stay
  // readable. Afterwards peer() is closed, if it was alive. The destructor does the same: neither waits for
  // unsent messages.
  virtual void fence() = 0;
};

class Listener {
 public:
  virtual ~Listener() = default;
  // Readable when accept has something to do. Wait for it with epoll.
  virtual int fd() const = 0;
  // A new connection if one is waiting; null when none is. shm takes its memory here: tens of milliseconds
  // for 100 MiB. A peer that is refused (other options, other version, not this protocol) is told why, logged
  // here and is no error of the listener. One thread.
  virtual Result<std::unique_ptr<Endpoint>> accept() = 0;
  // What differed between our options and those of the peer that was refused last for it; said once. Always
  // empty for inproc, where the connecting side alone compares, and where peers must show who they are: one
  // that has not done so is a stranger, whose options concern nobody. The thread of `accept`.
  virtual std::optional<Error> take_mismatch() { return std::nullopt; }
  // The address that peers use, with the port that the system chose: "tcp://127.0.0.1:43211".
  virtual const std::string& address() const = 0;
};

// Addresses: "tcp://host:port" or "ucx://host:port" (port 0: chosen by the system when listening),
// "shm://path" (path of a Unix socket), "inproc://name". A word without a scheme is host:port.
Result<std::unique_ptr<Listener>> listen(const std::string& address, const EndpointOptions& options);

// Blocks for at most options.connect_limit: for the connecting thread at start, never for a compute thread.
// Does not try again when refused. Options of the two sides must agree (all but connect_limit); a difference
// is refused by name.
Result<std::unique_ptr<Endpoint>> connect(const std::string& address, const EndpointOptions& options);

}  // namespace tandem
