// UcxEndpoint: the Endpoint over UCX: UcxConnection for the messages, UcxControl and Liveness for the life of
// the peer. Threads: as endpoint.h says.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "transport/endpoint.h"
#include "transport/liveness.h"
#include "transport/ucx_connection.h"
#include "transport/ucx_control.h"

namespace tandem {

class UcxEndpoint final : public Endpoint {
 public:
  // Takes a wired connection and the non-blocking socket of its handshake.
  static Result<std::unique_ptr<Endpoint>> create(UniqueFd socket, std::shared_ptr<UcxConnection> connection,
                                                  std::string peer_name, const EndpointOptions& options);
  ~UcxEndpoint() override { fence(); }

  EndpointCaps caps() const override;
  const std::string& peer_name() const override { return peer_name_; }
  Result<SendSlot> acquire(Channel channel, size_t bytes) override;
  Result<void> commit(SendSlot slot, size_t bytes) override;
  size_t poll(std::span<Incoming> out) override;
  bool arm() override;
  int fd() const override { return epoll_.get(); }
  PeerState peer() const override { return state_.load(std::memory_order_acquire); }
  void fence() override;

 private:
  UcxEndpoint(UniqueFd socket, UniqueFd epoll, std::shared_ptr<UcxConnection> connection,
              std::string peer_name, const EndpointOptions& options);
  void exchange();
  void look_at_peer(Instant at, const std::string& path_lost);
  void lose(PeerState state, const std::string& reason, bool orderly = false);
  void close(bool say_bye);

  std::shared_ptr<UcxConnection> connection_;
  UcxControl control_;
  UniqueFd epoll_;  // the control connection, UCX's descriptor and those of the connection
  std::string peer_name_;
  EndpointOptions options_;
  std::atomic<PeerState> state_ = PeerState::alive;  // written by the poller

  // Poller thread.
  Liveness liveness_;
  Instant looked_;
  std::optional<Instant> left_;  // when the peer said goodbye while messages of it were still on the way
  bool slept_ = false;
  bool fenced_ = false;
};

}  // namespace tandem
