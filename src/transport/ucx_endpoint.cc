#include "transport/ucx_endpoint.h"

#include <sys/epoll.h>

#include "transport/endpoint_rules.h"
#include "transport/system_error.h"
#include "transport/tcp_socket.h"

namespace tandem {
namespace {

// Looking at the control connection is a system call: not worth more than once a millisecond while messages
// keep the poller awake. A poller that sleeps is woken by it.
constexpr Duration kLookInterval = std::chrono::milliseconds(1);

}  // namespace

Result<std::unique_ptr<Endpoint>> UcxEndpoint::create(UniqueFd socket,
                                                      std::shared_ptr<UcxConnection> connection,
                                                      std::string peer_name, const EndpointOptions& options) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  for (const int fd : {socket.get(), connection->ucx_fd(), connection->wake_fd(), connection->timer_fd()}) {
    if (!epoll || epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) return no_descriptor("epoll");
  }
  return std::unique_ptr<Endpoint>(new UcxEndpoint(std::move(socket), std::move(epoll), std::move(connection),
                                                   std::move(peer_name), options));
}

UcxEndpoint::UcxEndpoint(UniqueFd socket, UniqueFd epoll, std::shared_ptr<UcxConnection> connection,
                         std::string peer_name, const EndpointOptions& options)
    : connection_(std::move(connection)),
      control_(std::move(socket)),
      epoll_(std::move(epoll)),
      peer_name_(std::move(peer_name)),
      options_(options),
      liveness_(options, now()),
      looked_(now()) {}

EndpointCaps UcxEndpoint::caps() const {
  return {.transport = "ucx",
          .zero_copy = false,
          .max_message_bytes = options_.slot_bytes,
          .encrypted = false,
          .slots_per_channel = options_.slots_per_channel,
          .heartbeat_interval = options_.heartbeat_interval,
          .silence_limit = options_.silence_limit};
}

Result<SendSlot> UcxEndpoint::acquire(Channel channel, size_t bytes) {
  if (peer() != PeerState::alive) return peer_unavailable(peer_name_, peer());
  TANDEM_TRY(check_message(options_, peer_name_, channel, bytes));
  return connection_->acquire(channel, bytes);
}

Result<void> UcxEndpoint::commit(SendSlot slot, size_t bytes) {
  const bool alive = peer() == PeerState::alive;
  TANDEM_TRY(connection_->commit(slot, bytes, alive));
  if (!alive && bytes != 0) return peer_unavailable(peer_name_, peer());
  return {};
}

void UcxEndpoint::close(bool say_bye) {
  // Out of the epoll before UCX closes its descriptor.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection_->ucx_fd(), nullptr);
  if (say_bye) connection_->flush();
  const auto totals = connection_->sent_totals();
  connection_->close();
  control_.close(say_bye ? &totals : nullptr);
}

void UcxEndpoint::lose(PeerState state, const std::string& reason, bool orderly) {
  if (peer() != PeerState::alive) return;
  log_lost_peer(peer_name_, state, reason, orderly);
  state_.store(state, std::memory_order_release);
  if (state == PeerState::silent) reset_at_close(control_.socket());
  close(false);
}

void UcxEndpoint::look_at_peer(Instant at, const std::string& path_lost) {
  looked_ = at;
  const auto news = control_.look();
  if (!news) {
    lose(PeerState::broken, news.error().message);
    return;
  }
  if (news->heard) liveness_.heard(at);
  if (news->ended) {
    // UCX may deliver later what was sent before the goodbye; it is waited for as long as a living peer may
    // be silent. Without a goodbye nobody knows what is missing: what UCX has once more is all.
    const bool first = !left_;
    if (first) left_ = at;
    const bool waits = news->orderly ? path_lost.empty() && at - *left_ <= options_.silence_limit &&
                                           !connection_->has_received(news->totals)
                                     : first;
    if (!waits) lose(PeerState::closed, news->reason, news->orderly);
  } else if (!path_lost.empty()) {
    lose(PeerState::closed, path_lost);
  } else if (liveness_.is_silent(at)) {
    const auto silence = std::chrono::duration_cast<std::chrono::milliseconds>(liveness_.silence(at));
    lose(PeerState::silent, "nothing heard for " + std::to_string(silence.count()) + " ms");
  }
}

void UcxEndpoint::exchange() {
  const Instant at = now();
  liveness_.on_poll(at);
  if (liveness_.take_beat(at)) control_.beat();
  auto progress = connection_->progress();
  // Messages are no sign of life: who can send them and not a heartbeat cannot say goodbye either, and nobody
  // would learn of its death.
  if (progress.lie.empty() && (slept_ || left_ || !progress.lost.empty() || at - looked_ >= kLookInterval)) {
    slept_ = false;
    look_at_peer(at, progress.lost);
  }
  if (!progress.lie.empty()) lose(PeerState::broken, progress.lie);
}

size_t UcxEndpoint::poll(std::span<Incoming> out) {
  if (fenced_) return 0;
  if (peer() == PeerState::alive) exchange();
  size_t received = 0;
  const PeerState state = peer();
  if (state == PeerState::silent || state == PeerState::broken) return 0;
  while (received < out.size()) {
    auto message = connection_->next();
    if (!message) break;
    out[received++] = std::move(*message);
  }
  return received;
}

bool UcxEndpoint::arm() {
  const PeerState state = peer();
  if (fenced_ || state == PeerState::silent || state == PeerState::broken) return true;
  if (connection_->has_waiting()) return false;
  if (state != PeerState::alive) return true;
  if (left_) return false;  // the control connection is readable for good
  slept_ = true;
  return connection_->sleep();
}

void UcxEndpoint::fence() {
  if (fenced_) return;
  fenced_ = true;
  if (peer() != PeerState::alive) return;
  state_.store(PeerState::closed, std::memory_order_release);
  close(true);
}

}  // namespace tandem
