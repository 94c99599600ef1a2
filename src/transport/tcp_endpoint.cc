#include "transport/tcp_endpoint.h"

#include "transport/endpoint_rules.h"
#include "transport/tcp_socket.h"

namespace tandem {

Result<std::unique_ptr<Endpoint>> TcpEndpoint::create(TcpStream stream, std::string peer_name,
                                                      const EndpointOptions& options) {
  TANDEM_ASSIGN(auto sender, TcpSender::create(std::move(stream), options));
  TANDEM_ASSIGN(auto receiver, TcpReceiver::create(sender, options));
  return std::unique_ptr<Endpoint>(
      new TcpEndpoint(std::move(sender), std::move(receiver), std::move(peer_name), options));
}

TcpEndpoint::TcpEndpoint(std::shared_ptr<TcpSender> sender, std::shared_ptr<TcpReceiver> receiver,
                         std::string peer_name, const EndpointOptions& options)
    : sender_(std::move(sender)),
      receiver_(std::move(receiver)),
      peer_name_(std::move(peer_name)),
      options_(options),
      encrypted_(sender_->stream().encrypted()),
      liveness_(options, now()) {}

EndpointCaps TcpEndpoint::caps() const {
  return {.transport = "tcp",
          .zero_copy = false,
          .max_message_bytes = options_.slot_bytes,
          .encrypted = encrypted_,
          .slots_per_channel = options_.slots_per_channel,
          .heartbeat_interval = options_.heartbeat_interval,
          .silence_limit = options_.silence_limit};
}

void TcpEndpoint::lose(PeerState state, const std::string& reason, bool orderly) {
  if (peer() != PeerState::alive) return;
  log_lost_peer(peer_name_, state, reason, orderly);
  state_.store(state, std::memory_order_release);
  if (state == PeerState::silent) reset_at_close(sender_->stream().socket());
  sender_->close(false);
}

Result<SendSlot> TcpEndpoint::acquire(Channel channel, size_t bytes) {
  if (peer() != PeerState::alive) return peer_unavailable(peer_name_, peer());
  TANDEM_TRY(check_message(options_, peer_name_, channel, bytes));
  return sender_->acquire(channel, bytes);
}

Result<void> TcpEndpoint::commit(SendSlot slot, size_t bytes) {
  auto committed = sender_->commit(slot, bytes, peer() == PeerState::alive);
  if (!committed && committed.error().code == ErrorCode::unavailable)
    return peer_unavailable(peer_name_, peer());
  if (committed && bytes != 0 && peer() != PeerState::alive) return peer_unavailable(peer_name_, peer());
  return committed;
}

void TcpEndpoint::exchange() {
  const Instant at = now();
  liveness_.on_poll(at);
  sender_->wake();
  if (liveness_.take_beat(at)) sender_->beat();
  sender_->flush();
  const auto progress = receiver_->read();
  if (!progress) {
    lose(PeerState::broken, progress.error().message);
    return;
  }
  if (progress->heard) liveness_.heard(at);
  if (progress->ended) {
    lose(PeerState::closed, progress->reason, progress->orderly);
  } else if (liveness_.is_silent(at)) {
    const auto silence = std::chrono::duration_cast<std::chrono::milliseconds>(liveness_.silence(at));
    lose(PeerState::silent, "nothing heard for " + std::to_string(silence.count()) + " ms");
  }
}

size_t TcpEndpoint::poll(std::span<Incoming> out) {
  if (fenced_) return 0;
  if (peer() == PeerState::alive) exchange();
  size_t received = 0;
  const PeerState state = peer();
  if (state == PeerState::silent || state == PeerState::broken) return 0;
  while (received < out.size()) {
    auto message = receiver_->next();
    if (!message) break;
    out[received++] = std::move(*message);
  }
  return received;
}

bool TcpEndpoint::arm() {
  const PeerState state = peer();
  if (fenced_ || state == PeerState::silent || state == PeerState::broken) return true;
  if (receiver_->has_waiting()) return false;
  if (state == PeerState::alive && sender_->stream().has_unread()) return false;
  return state != PeerState::alive || sender_->sleep();  // the socket itself wakes by level
}

void TcpEndpoint::fence() {
  if (fenced_) return;
  fenced_ = true;
  if (peer() != PeerState::alive) return;
  state_.store(PeerState::closed, std::memory_order_release);
  sender_->close(true);
}

}  // namespace tandem
