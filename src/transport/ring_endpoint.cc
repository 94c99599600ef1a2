#include "transport/ring_endpoint.h"

#include "transport/endpoint_rules.h"

namespace tandem {

RingEndpoint::RingEndpoint(std::string_view transport, std::string peer_name, int side,
                           const EndpointOptions& options, std::shared_ptr<RingMemory> memory,
                           std::unique_ptr<PeerLink> link)
    : transport_(transport),
      peer_name_(std::move(peer_name)),
      side_(side),
      options_(options),
      memory_(std::move(memory)),
      link_(std::move(link)),
      sender_(memory_, side, options.slot_bytes),
      receiver_(std::make_shared<RingReceiver>(memory_, side, options.slot_bytes)),
      liveness_(options, now()),
      looked_(now()) {}

RingEndpoint::~RingEndpoint() {
  fence();
}

EndpointCaps RingEndpoint::caps() const {
  return {.transport = transport_,
          .zero_copy = true,
          .max_message_bytes = options_.slot_bytes,
          .encrypted = false,
          .slots_per_channel = options_.slots_per_channel,
          .heartbeat_interval = options_.heartbeat_interval,
          .silence_limit = options_.silence_limit};
}

void RingEndpoint::lose(PeerState state, const std::string& reason, bool orderly) {
  PeerState expected = PeerState::alive;
  if (!state_.compare_exchange_strong(expected, state, std::memory_order_acq_rel)) return;
  log_lost_peer(peer_name_, state, reason, orderly);
  memory_->ring(side_);  // this may be another thread: the poller closes the link
}

Result<SendSlot> RingEndpoint::acquire(Channel channel, size_t bytes) {
  if (peer() != PeerState::alive) return peer_unavailable(peer_name_, peer());
  TANDEM_TRY(check_message(options_, peer_name_, channel, bytes));
  auto slot = sender_.acquire(channel, bytes);
  if (!slot && slot.error().code == ErrorCode::data_loss) {
    lose(PeerState::broken, slot.error().message);
    return peer_unavailable(peer_name_, peer());
  }
  return slot;
}

Result<void> RingEndpoint::commit(SendSlot slot, size_t bytes) {
  const bool alive = peer() == PeerState::alive;
  TANDEM_TRY(sender_.commit(slot, bytes, alive));
  if (!alive && bytes != 0) return peer_unavailable(peer_name_, peer());
  return {};
}

void RingEndpoint::check_peer(Instant at) {
  looked_ = at;
  const PeerLink::News news = link_->look();
  if (news.heard) liveness_.heard(at);
  if (news.state != PeerState::alive) {
    lose(news.state, news.reason, news.orderly);
  } else if (liveness_.is_silent(at)) {
    const auto silence = std::chrono::duration_cast<std::chrono::milliseconds>(liveness_.silence(at));
    lose(PeerState::silent, "nothing heard for " + std::to_string(silence.count()) + " ms");
  }
}

size_t RingEndpoint::poll(std::span<Incoming> out) {
  if (fenced_) {
    memory_->drain(side_);  // a late ring must not keep the poller awake
    return 0;
  }
  const Instant at = now();
  liveness_.on_poll(at);
  const bool woken = armed_;
  if (armed_) {
    armed_ = false;
    memory_->side(side_).armed.store(0, std::memory_order_relaxed);
  }
  const bool rung = (woken || peer() != PeerState::alive) && memory_->drain(side_);
  if (peer() == PeerState::alive) {
    if (liveness_.take_beat(at)) link_->beat();
    // Woken by the bell is not woken by the link: what the link has to say keeps the poller awake until it is
    // looked at.
    if ((woken && !rung) || at - looked_ >= link_->look_interval()) check_peer(at);
  }
  // Closed is looked at before the rings: what the peer had published before it closed is all there.
  size_t received = 0;
  PeerState state = peer();
  for (size_t empty = 0; empty < kNumChannels && received < out.size();) {
    if (state == PeerState::silent || state == PeerState::broken) break;
    const auto channel = static_cast<Channel>(next_channel_);
    auto message = receiver_->receive(channel);
    if (!message) {
      lose(PeerState::broken, message.error().message);
      state = PeerState::broken;
    } else if (!*message) {
      next_channel_ = (next_channel_ + 1) % kNumChannels;
      ++empty;
    } else {
      out[received++] = Incoming{channel, std::move(**message)};
      next_channel_ = (next_channel_ + 1) % kNumChannels;  // one each: no channel waits behind a busy one
      empty = 0;
    }
  }
  if (state != PeerState::alive) link_->close();
  return received;
}

bool RingEndpoint::arm() {
  const PeerState state = peer();
  if (fenced_ || state == PeerState::silent || state == PeerState::broken) return true;
  armed_ = true;
  // Say that this side sleeps, then look again: either we see the message or its sender sees that we sleep.
  memory_->side(side_).armed.store(1, std::memory_order_seq_cst);
  if (!receiver_->has_waiting() && !sender_.take_credit_news()) return true;
  memory_->side(side_).armed.store(0, std::memory_order_relaxed);
  return false;
}

void RingEndpoint::fence() {
  if (fenced_) return;
  fenced_ = true;
  PeerState expected = PeerState::alive;
  state_.compare_exchange_strong(expected, PeerState::closed, std::memory_order_acq_rel);
  link_->close();
}

}  // namespace tandem
