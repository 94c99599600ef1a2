// Connection: one tcp connection to the rank under test, byte by byte (docs/protocol.md, section 12). It
// keeps to the carrier's rules unless its user wants otherwise: heartbeats and credits can be held back, and
// any bytes can be sent, around TLS too. One thread; it writes heartbeats of all connections of its list
// whenever one of them waits.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "cli/conformance/raw_frame.h"
#include "transport/address.h"
#include "transport/peer_security.h"
#include "transport/tcp_frame.h"
#include "transport/tcp_stream.h"

namespace tandem::conformance {

// What the carrier's hello says.
struct CarrierNumbers {
  uint32_t version = 1;
  uint32_t slots = 0;
  uint64_t slot_bytes = 0, heartbeat_us = 0, silence_us = 0;
  uint32_t carrier = 0;
  uint32_t security = 0;  // SecurityMode

  Bytes hello() const;  // 64 bytes, without the head
};

struct Event {
  enum class Kind { message, hello, nonce, proof, credit, heartbeat, bye, ended, broken, nothing };
  Kind kind = Kind::nothing;
  Channel channel = Channel::control;
  uint32_t value = 0;
  Bytes bytes = {};      // of a message, hello, nonce or proof
  std::string why = {};  // ended, broken

  std::string text() const;  // "a message of 64 bytes on channel 0", for reports
};

class Connection;
// Connections that are open: each has its heartbeats written while any of them waits.
struct ConnectionList {
  std::vector<Connection*> open;
  // How long an answer may take that comes at once where the machine is idle.
  Duration patience = std::chrono::seconds(10);
  // How the rank knows its peers; null: not at all. With TLS connections are inside it.
  std::shared_ptr<const PeerSecurity> security = nullptr;
};

// Whether a connection is what the list's security says, or a stranger's without TLS.
enum class Wrap { as_agreed, none };

class Connection {
 public:
  // unavailable: nobody is there; invalid_argument, data_loss: TLS does not stand, saying why.
  static Result<std::unique_ptr<Connection>> open(const HostPort& peer, ConnectionList& list,
                                                  Wrap wrap = Wrap::as_agreed);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool beats = false;           // writes heartbeats; set when the hellos are exchanged
  bool returns_credits = true;  // gives a message's slot back at once
  Duration beat_interval = std::chrono::milliseconds(100);
  std::array<uint32_t, kNumChannels> credits{};   // messages that the rank has room for
  std::array<uint32_t, kNumChannels> withheld{};  // messages whose slots were not given back
  uint64_t heartbeats = 0;                        // that came

  // Everything, or unavailable: the rank has ended the connection or does not read.
  Status send(std::span<const std::byte> bytes);
  Status send_byte_by_byte(std::span<const std::byte> bytes);
  Status send_head(TcpFrameKind kind, Channel channel, uint32_t value);
  Status send_message(Channel channel, std::span<const std::byte> message);
  Status give_credits(Channel channel);  // the withheld ones, in one frame

  Duration patience() const { return list_.patience; }
  // The next thing that the rank says or does; `nothing` after `limit`.
  Event next(Duration limit);
  // The next bytes as they came, which are then nobody's frames; empty after `limit`. unavailable: the end.
  Result<Bytes> next_bytes(Duration limit);
  // Closes without bye.
  void cut() { stream_.reset(); }

 private:
  Connection(TcpStream stream, ConnectionList& list) : stream_(std::move(stream)), list_(list) {
    list_.open.push_back(this);
  }
  void beat_if_due();
  Event take();  // out of what was received; nothing: more must come
  void note(const Event& event);
  std::string why_failed(int error) const;
  // More in received_, or ended_ with the reason in `ending`; neither when `deadline` is over.
  void receive(Instant deadline, std::string& ending);

  TcpStream stream_;
  ConnectionList& list_;
  Bytes received_;
  Instant last_sent_{};
  bool ended_ = false;
};

Bytes carrier_head(TcpFrameKind kind, Channel channel, uint32_t value);
Bytes carrier_message(Channel channel, std::span<const std::byte> message);
// A nonce or a proof.
Bytes carrier_word(TcpFrameKind kind, std::span<const std::byte> value);
Bytes carrier_greeting(const CarrierNumbers& numbers);

}  // namespace tandem::conformance
