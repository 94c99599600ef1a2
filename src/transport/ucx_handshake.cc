#include "transport/ucx_handshake.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/log.h"
#include "transport/little_endian.h"
#include "transport/system_error.h"
#include "transport/ucx_endpoint.h"

namespace tandem {
namespace {

// The frame worker_address: CRC-32 of what follows u32 | UCX release u32 | address of the worker.
constexpr size_t kAddressPrefix = 8;
// Some hundred bytes, and a few more for each network interface of a host.
constexpr size_t kMaxAddressBytes = 64 << 10;

std::string release_text(uint32_t release) {
  return std::to_string(release >> 16) + "." + std::to_string(release & 0xffff);
}

}  // namespace

// Until `bytes` have been received: false while some are missing.
Result<bool> UcxHandshake::receive(size_t bytes) {
  while (received_.size() < bytes) {
    const size_t have = received_.size();
    received_.resize(bytes);
    const ssize_t got = recv(socket_.get(), received_.data() + have, bytes - have, MSG_DONTWAIT);
    received_.resize(have + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) {
      return make_error(ErrorCode::unavailable, "the other side closed the connection; its log says why");
    }
    if (got < 0 && errno != EINTR) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
      return make_error(ErrorCode::unavailable, system_message(errno));
    }
  }
  return true;
}

Result<void> UcxHandshake::send(std::span<const std::byte> bytes) {
  // Far below what an empty socket takes at once.
  const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent == static_cast<ssize_t>(bytes.size())) return {};
  return make_error(ErrorCode::unavailable, "the other side did not take our hello");
}

Result<void> UcxHandshake::take_greeting() {
  TANDEM_ASSIGN(options_,
                adopt_hello(options_, std::span(received_).subspan(TcpFrameLayout::kHeaderBytes), peer_));
  // Either side: a listening one never leaves anything open.
  TANDEM_TRY(match_greeting(std::span(received_).first<kGreetingBytes>(), options_, local_, peer_,
                            Carrier::ucx, Unstated::adopted));
  const auto hello = std::span<const std::byte>(received_).subspan<TcpFrameLayout::kHeaderBytes>();
  std::memcpy(peer_host_.data(), hello.data() + HelloLayout::kHostToken, peer_host_.size());
  if (!options_.security) {
    received_.clear();
    return make_connection();
  }
  proof_ =
      std::make_unique<PeerProof>(options_.security, side_, std::span(greeting_).last<HelloLayout::kBytes>(),
                                  hello.first<HelloLayout::kBytes>());
  received_.clear();
  phase_ = Phase::proof;
  TANDEM_ASSIGN(const auto nonce, proof_->nonce());
  return send(nonce);
}

// The proofs of the key, before anything is made for the peer.
Result<bool> UcxHandshake::take_proof() {
  while (!proof_->done()) {
    TANDEM_ASSIGN(bool whole, receive(TcpFrameLayout::kHeaderBytes));
    if (!whole) return false;
    TANDEM_TRY(proof_->check_head(std::span(received_).first<TcpFrameLayout::kHeaderBytes>()));
    TANDEM_ASSIGN(whole, receive(PeerProof::kFrameBytes));
    if (!whole) return false;
    const auto step = proof_->take(std::span(received_).first<PeerProof::kFrameBytes>());
    received_.clear();
    if (!step) {
      // Whoever is refused learns that it was, and nothing else.
      [[maybe_unused]] const auto told =
          send(TcpFrameLayout::encode({TcpFrameKind::bye, Channel::control, 0}));
      return std::unexpected(step.error());
    }
    if (step->send) TANDEM_TRY(send(step->answer));
  }
  TANDEM_TRY(make_connection());
  return true;
}

Result<void> UcxHandshake::make_connection() {
  phase_ = Phase::address;
  TANDEM_ASSIGN(path_, ucx_path_of(socket_.get(), peer_host_));
  log_debug("ucx: " + local_ + " with " + peer_ + " over " + path_.text());
  TANDEM_ASSIGN(connection_, UcxConnection::create(options_, path_));
  TANDEM_ASSIGN(const UcxLibrary* library, UcxLibrary::get());
  const auto address = connection_->address();
  std::vector<std::byte> frame(TcpFrameLayout::kHeaderBytes + kAddressPrefix);
  frame.insert(frame.end(), address.begin(), address.end());
  const auto value = static_cast<uint32_t>(kAddressPrefix + address.size());
  const auto header = TcpFrameLayout::encode({TcpFrameKind::worker_address, Channel::control, value});
  std::memcpy(frame.data(), header.data(), header.size());
  const auto body = std::span(frame).subspan(TcpFrameLayout::kHeaderBytes);
  store_little_endian<uint32_t>(&body[4], library->release());
  store_little_endian<uint32_t>(&body[0], crc32(body.subspan(4)));
  return send(frame);
}

Result<bool> UcxHandshake::take_address() {
  TANDEM_ASSIGN(const bool has_header, receive(TcpFrameLayout::kHeaderBytes));
  if (!has_header) return false;
  TANDEM_ASSIGN(const TcpFrame frame,
                TcpFrameLayout::decode(std::span(received_).first<TcpFrameLayout::kHeaderBytes>()));
  if (frame.kind != TcpFrameKind::worker_address || frame.value <= kAddressPrefix ||
      frame.value > kAddressPrefix + kMaxAddressBytes) {
    return make_error(ErrorCode::data_loss, "no address of a UCX worker came behind the greeting");
  }
  TANDEM_ASSIGN(const bool has_body, receive(TcpFrameLayout::kHeaderBytes + frame.value));
  if (!has_body) return false;
  const auto body = std::span(received_).subspan(TcpFrameLayout::kHeaderBytes);
  // UCX does not check an address before it follows it.
  if (load_little_endian<uint32_t>(&body[0]) != crc32(body.subspan(4))) {
    return make_error(ErrorCode::data_loss, "wrong checksum of the address of the UCX worker");
  }
  TANDEM_ASSIGN(const UcxLibrary* library, UcxLibrary::get());
  if (const auto theirs = load_little_endian<uint32_t>(&body[4]); theirs != library->release()) {
    return make_error(ErrorCode::invalid_argument,
                      "UCX release differs: " + release_text(library->release()) + " at " + local_ +
                          " (this side), " + release_text(theirs) + " at " + peer_ +
                          "; install the same UCX on both sides, or use tcp://");
  }
  TANDEM_TRY(connection_->connect(body.subspan(kAddressPrefix)));
  received_.clear();
  phase_ = Phase::wiring;
  return true;
}

Result<bool> UcxHandshake::wire() {
  for (;;) {
    const auto progress = connection_->progress();
    if (!progress.lie.empty()) return make_error(ErrorCode::data_loss, progress.lie);
    if (!progress.lost.empty()) return make_error(ErrorCode::unavailable, progress.lost);
    if (connection_->wired()) return true;
    // Nothing but heartbeats may come meanwhile, and they stay for the endpoint; an end must be noticed, also
    // behind them.
    pollfd end{socket_.get(), POLLRDHUP, 0};
    if (::poll(&end, 1, 0) > 0) {
      return make_error(ErrorCode::unavailable, "the other side closed the connection; its log says why");
    }
    if (connection_->sleep()) return false;
  }
}

Result<UcxHandshake::Step> UcxHandshake::advance() {
  if (!greeted_) {
    // Sent before the other one is compared: both sides name a difference.
    greeted_ = true;
    greeting_ = make_greeting(options_, Carrier::ucx);
    const HostToken host = host_token();
    std::memcpy(greeting_.data() + TcpFrameLayout::kHeaderBytes + HelloLayout::kHostToken, host.data(),
                host.size());
    TANDEM_TRY(send(greeting_));
  }
  if (phase_ == Phase::greeting) {
    TANDEM_ASSIGN(const bool complete, receive(kGreetingBytes));
    // Something else that talks (a browser, a scanner) is not waited for.
    if (received_.size() >= TcpFrameLayout::kHeaderBytes &&
        !TcpFrameLayout::decode(std::span(received_).first<TcpFrameLayout::kHeaderBytes>())) {
      return make_error(ErrorCode::data_loss, "it does not speak Tandem's transport");
    }
    if (complete) TANDEM_TRY(take_greeting());
  }
  bool goes_on = phase_ != Phase::greeting;
  if (goes_on && phase_ == Phase::proof) {
    TANDEM_ASSIGN(goes_on, take_proof());
  }
  if (goes_on && phase_ == Phase::address) {
    TANDEM_ASSIGN(goes_on, take_address());
  }
  if (goes_on && phase_ == Phase::wiring) {
    TANDEM_ASSIGN(goes_on, wire());
    if (goes_on) return Step::done;
  }
  if (now() >= deadline_) {
    return make_error(ErrorCode::deadline_exceeded,
                      phase_ == Phase::wiring
                          ? "UCX did not reach the peer within the connect_limit over " + path_.text() +
                                "; set UCX_TLS and UCX_NET_DEVICES alike on both sides, or use tcp://"
                          : "no answer within the connect_limit");
  }
  return Step::waits;
}

Result<std::unique_ptr<Endpoint>> UcxHandshake::finish() && {
  return UcxEndpoint::create(std::move(socket_), std::move(connection_), std::move(peer_), options_);
}

}  // namespace tandem
