// TcpEndpoint: the Endpoint over one tcp connection: TcpSender, TcpReceiver and the life of the peer.
// Threads: as endpoint.h says.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "transport/endpoint.h"
#include "transport/liveness.h"
#include "transport/tcp_receiver.h"
#include "transport/tcp_sender.h"

namespace tandem {

class TcpEndpoint final : public Endpoint {
 public:
  // Takes a connection whose handshake is done. resource_exhausted: no memory for the slots.
  static Result<std::unique_ptr<Endpoint>> create(TcpStream stream, std::string peer_name,
                                                  const EndpointOptions& options);
  ~TcpEndpoint() override { fence(); }

  EndpointCaps caps() const override;
  const std::string& peer_name() const override { return peer_name_; }
  Result<SendSlot> acquire(Channel channel, size_t bytes) override;
  Result<void> commit(SendSlot slot, size_t bytes) override;
  size_t poll(std::span<Incoming> out) override;
  bool arm() override;
  int fd() const override { return sender_->epoll(); }
  PeerState peer() const override { return state_.load(std::memory_order_acquire); }
  void fence() override;

 private:
  TcpEndpoint(std::shared_ptr<TcpSender> sender, std::shared_ptr<TcpReceiver> receiver, std::string peer_name,
              const EndpointOptions& options);
  void lose(PeerState state, const std::string& reason, bool orderly = false);
  void exchange();

  std::shared_ptr<TcpSender> sender_;
  std::shared_ptr<TcpReceiver> receiver_;
  std::string peer_name_;
  EndpointOptions options_;
  const bool encrypted_;
  std::atomic<PeerState> state_ = PeerState::alive;  // written by the poller

  // Poller thread.
  Liveness liveness_;
  bool fenced_ = false;
};

}  // namespace tandem
