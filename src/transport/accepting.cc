#include "transport/accepting.h"

#include <utility>

#include "transport/socket.h"

namespace tandem {

std::optional<Error> AcceptingListener::take_mismatch() {
  return std::exchange(mismatch_, std::nullopt);
}

Result<std::unique_ptr<Endpoint>> AcceptingListener::accept() {
  // Those who are here go on and reach their limits also when there is no descriptor for one more: it is by
  // their end that descriptors come back.
  const Status taken = take_connections();
  for (size_t i = 0; i < handshakes_.size();) {
    Handshake& handshake = handshakes_[i];
    auto endpoint = handshake.machine->advance();
    if (endpoint && *endpoint == nullptr) {
      const int second = handshake.machine->second_descriptor();
      if (std::exchange(handshake.second, second) < 0 && second >= 0) {
        acceptor_.watch(second);
        acceptor_.watch_for_end(handshake.socket);
      }
      ++i;
      continue;
    }
    const std::unique_ptr<Accepting> done = take(i);
    if (endpoint) return endpoint;
    const Error& error = endpoint.error();
    if (error.code == ErrorCode::cancelled) continue;
    if (error.code == ErrorCode::invalid_argument && !options_.security) mismatch_ = error;
    refusals_.add("refused " + done->peer() + " at " + address() + ": " + error.message);
  }
  TANDEM_TRY(taken);
  return nullptr;
}

Status AcceptingListener::take_connections() {
  for (int i = 0; i < kAcceptsPerCall; ++i) {
    TANDEM_ASSIGN(Accepted taken, acceptor_.next());
    if (taken.none_waits) return {};
    if (!taken.socket) continue;
    const uint64_t host = host_number(taken.peer);
    auto begun = begin(std::move(taken));
    if (!begun) {
      refusals_.add("refused at " + address() + ": " + begun.error().message);
      continue;
    }
    if (handshakes_.size() == kMaxHandshakes) make_room();
    const int socket = (*begun)->socket();
    acceptor_.watch(socket);
    handshakes_.push_back({std::move(*begun), host, socket});
  }
  return {};
}

void AcceptingListener::make_room() {
  std::vector<uint64_t> hosts;
  hosts.reserve(handshakes_.size());
  for (const Handshake& handshake : handshakes_) hosts.push_back(handshake.host);
  const std::unique_ptr<Accepting> dropped = take(whom_to_drop(hosts));
  refusals_.add("dropped " + dropped->peer() + ": too many connections that say nothing");
}

std::unique_ptr<Accepting> AcceptingListener::take(size_t index) {
  acceptor_.forget(handshakes_[index].socket);
  acceptor_.forget(handshakes_[index].second);
  std::unique_ptr<Accepting> taken = std::move(handshakes_[index].machine);
  handshakes_.erase(handshakes_.begin() + static_cast<ptrdiff_t>(index));
  return taken;
}

}  // namespace tandem
