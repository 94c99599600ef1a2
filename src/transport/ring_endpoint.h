// RingEndpoint: the Endpoint of inproc and shm. Messages and credits travel through RingMemory; a PeerLink
// says whether the other side lives. Threads: as endpoint.h says.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "transport/endpoint.h"
#include "transport/liveness.h"
#include "transport/ring.h"

namespace tandem {

// How one end of a ring connection learns of the other's life and death. Poller thread only.
class PeerLink {
 public:
  struct News {
    bool heard = false;                  // a sign of life since the last look
    PeerState state = PeerState::alive;  // closed or broken: with the reason
    std::string reason;
    bool orderly = false;  // it said goodbye
  };
  virtual ~PeerLink() = default;
  virtual News look() = 0;
  virtual void beat() = 0;     // tells the peer that this side lives
  virtual void close() = 0;    // ends the connection; the peer notices at once. Twice does nothing
  virtual int fd() const = 0;  // what the poller waits for; owned by the link
  // How often looking is worth its price while the poller does not sleep.
  virtual Duration look_interval() const = 0;
};

class RingEndpoint final : public Endpoint {
 public:
  RingEndpoint(std::string_view transport, std::string peer_name, int side, const EndpointOptions& options,
               std::shared_ptr<RingMemory> memory, std::unique_ptr<PeerLink> link);
  ~RingEndpoint() override;

  EndpointCaps caps() const override;
  const std::string& peer_name() const override { return peer_name_; }
  Result<SendSlot> acquire(Channel channel, size_t bytes) override;
  Result<void> commit(SendSlot slot, size_t bytes) override;
  size_t poll(std::span<Incoming> out) override;
  bool arm() override;
  int fd() const override { return link_->fd(); }
  PeerState peer() const override { return state_.load(std::memory_order_acquire); }
  void fence() override;

 private:
  void lose(PeerState state, const std::string& reason, bool orderly = false);
  void check_peer(Instant at);

  std::string_view transport_;
  std::string peer_name_;
  int side_;
  EndpointOptions options_;
  std::shared_ptr<RingMemory> memory_;
  std::unique_ptr<PeerLink> link_;
  RingSender sender_;
  std::shared_ptr<RingReceiver> receiver_;
  std::atomic<PeerState> state_ = PeerState::alive;

  // Poller thread.
  Liveness liveness_;
  Instant looked_;
  bool armed_ = false;
  bool fenced_ = false;
  size_t next_channel_ = 0;
};

}  // namespace tandem
