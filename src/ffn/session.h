// Session: one client of an FFN rank, an attention rank or another FFN rank: its connection, its handshake,
// the replies that wait for a credit.
//
// Threads: the I/O thread owns the connection (poll, arm, fence, destruction). `reply*` may be called by the
// compute thread as well: it sends under the session's mutex and never waits for a credit.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "afd/handshake.h"
#include "afd/tile_frame.h"
#include "ffn/client_load.h"
#include "transport/endpoint.h"

namespace tandem {

class Session {
 public:
  enum class Phase : uint8_t {
    handshake,
    serving,
    closing,  // a refusal is on its way; what arrives is thrown away
    closed,   // fenced; destroyed once nobody computes for it
  };

  Session(uint64_t id, std::unique_ptr<Endpoint> endpoint, const SplitSettings& settings,
          const PeerIdentity& self, std::span<const Piece> pieces, const FfnAdmission& admission);

  uint64_t id() const { return id_; }
  // "attention rank 0 (host:pid)", or the address before the hello.
  std::string peer_text() const;
  // Who is at the other end, as far as the carrier knows: the host's address without the port over tcp and
  // ucx, otherwise the name of the one connection, with shm that of the process.
  std::string_view host() const;

  // ---- I/O thread ----
  Endpoint& endpoint() { return *endpoint_; }
  FfnHandshake& handshake() { return handshake_; }
  // Where its requests come and replies go. Settled by the hello.
  Channel channel() const { return handshake_.channel(); }
  Phase phase() const { return phase_; }
  void set_phase(Phase phase) { phase_ = phase; }
  std::optional<Error> misfit;  // why this peer and this rank never fit, when it was refused for that
  Instant phase_limit{};        // handshake: when it must be done; closing: when it is dropped
  void close();                 // fences; later replies are dropped
  // Sends replies that found no credit.
  void pump_replies();
  bool replies_waiting() const;

  // ---- any thread ----
  // A slot for this reply, or an error when one has to wait; then use `reply`.
  Result<SendSlot> acquire_reply(const FrameLayout& layout);
  void commit_reply(const SendSlot& slot, size_t bytes);
  // Sends now or as soon as there is a credit. `output` [rows, hidden] of the reply dtype. `request_lease` is
  // given back when the reply leaves: a client that does not read its replies gets no further credit for
  // requests.
  void reply(const FrameHeader& request, const FfnTimes& times, std::span<const std::byte> output,
             Lease request_lease);
  void reply_error(const FrameHeader& request, const FfnTimes& times, const Error& error,
                   Lease request_lease);

  // Tiles that the compute thread holds: the connection must not be destroyed before they are done.
  std::atomic<uint32_t> pins{0};

  // Under the worker's queue mutex.
  ClientLoad& load() const { return *load_; }
  const std::shared_ptr<ClientLoad>& shared_load() const { return load_; }

 private:
  struct QueuedReply {
    std::vector<std::byte> frame;
    Lease request_lease;
  };

  template <class Fill>
  void send(const FrameLayout& layout, Lease request_lease, Fill&& fill);

  const uint64_t id_;
  const std::shared_ptr<ClientLoad> load_ = std::make_shared<ClientLoad>();
  const SplitSettings& settings_;
  std::unique_ptr<Endpoint> endpoint_;
  FfnHandshake handshake_;
  std::atomic<Phase> phase_{Phase::handshake};  // changed by the I/O thread only

  mutable std::mutex mutex_;
  bool open_ = true;  // replies still go out
  std::deque<QueuedReply>
      replies_;  // wait for a credit, oldest first; at most as many as the client has slots
  std::atomic<bool> waiting_{false};  // replies_ has some, or is about to: asked without the mutex
};

}  // namespace tandem
