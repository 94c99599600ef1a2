#include "transport/tcp_handshake.h"

#include <sys/socket.h>

#include <cerrno>

#include "transport/system_error.h"

namespace tandem {

namespace {

// First bytes of records by which a side shows that it speaks TLS where no hello comes.
constexpr std::byte kTlsAlert{21};
constexpr std::byte kTlsHandshake{22};
// A record of TLS 1.2's form with a fatal alert: handshake_failure.
constexpr std::array<unsigned char, 7> kAlertRecord = {21, 3, 3, 0, 2, 2, 40};

}  // namespace

static_assert(PeerProof::kFrameBytes <= kGreetingBytes);  // received_ holds either

std::unexpected<Error> TcpHandshake::failed(ErrorCode code, const std::string& why) const {
  return make_error(code, connects() ? "handshake of " + local_ + " with " + peer_ + ": " + why : why);
}

// Until the frame has `bytes`: false while some are missing.
Result<bool> TcpHandshake::receive(size_t bytes) {
  while (size_ < bytes) {
    const ssize_t got = stream_.read_some(std::span(received_).subspan(size_, bytes - size_));
    if (got > 0) {
      size_ += static_cast<size_t>(got);
    } else if (got == 0 && connects() && size_ > 0 && received_[0] == kTlsAlert) {
      return failed(ErrorCode::invalid_argument,
                    "the other side speaks TLS; give this side --peer-tls-certificate, --peer-tls-key and "
                    "--peer-tls-ca as well");
    } else if (got == 0) {
      return failed(ErrorCode::unavailable, connects()
                                                ? "the other side closed the connection; its log says why"
                                                : "it closed before its handshake was complete");
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return false;
    } else if (errno != EINTR) {
      const int error_number = errno;
      if (const auto failure = stream_.failure()) return failed(failure->code, failure->message);
      return failed(ErrorCode::unavailable, system_message(error_number));
    }
  }
  return true;
}

Result<void> TcpHandshake::send(std::span<const std::byte> bytes) {
  if (stream_.write_short(bytes)) return {};
  return failed(ErrorCode::unavailable,
                connects() ? "the other side did not take our hello" : "it did not take our hello");
}

// Something else that talks (a browser, a scanner) is not waited for.
Result<void> TcpHandshake::check_head() const {
  const auto head = std::span(received_).first<TcpFrameLayout::kHeaderBytes>();
  if (phase_ == Phase::proof) {
    const auto checked = proof_->check_head(head);
    if (!checked) return failed(checked.error().code, checked.error().message);
    return {};
  }
  const auto frame = TcpFrameLayout::decode(head);
  if (frame && frame->kind == TcpFrameKind::hello && frame->value == HelloLayout::kBytes) return {};
  if (received_[0] == kTlsHandshake && !stream_.encrypted()) {
    return failed(ErrorCode::data_loss,
                  "it speaks TLS; give this side --peer-tls-certificate, --peer-tls-key and --peer-tls-ca as "
                  "well, or that side none");
  }
  return make_error(ErrorCode::data_loss,
                    connects() ? peer_ + " does not speak Tandem's transport (no hello); check the address"
                               : "it does not speak Tandem's transport");
}

// False while TLS is not there yet.
Result<bool> TcpHandshake::start_stream() {
  if (options_.security && options_.security->mode() == SecurityMode::tls && !stream_.encrypted()) {
    UniqueFd socket = stream_.take_socket();
    TANDEM_ASSIGN(auto tls, TlsSession::create(*options_.security->tls(), socket.get(), connects()));
    stream_ = TcpStream(std::move(socket), std::move(tls));
  }
  const auto ready = stream_.handshake();
  if (!ready) {
    // OpenSSL closes without a word on what is no TLS; who sent it understands an alert (receive, above).
    if (!connects() && ready.error().code == ErrorCode::data_loss)
      (void)::send(stream_.socket(), kAlertRecord.data(), kAlertRecord.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    return failed(ready.error().code, ready.error().message);
  }
  if (!*ready) return false;
  phase_ = Phase::hello;
  if (connects()) {
    greeted_ = true;
    TANDEM_TRY(send(greeting_));
  }
  return true;
}

Result<void> TcpHandshake::take_hello() {
  if (!greeted_) {
    greeted_ = true;
    TANDEM_TRY(send(greeting_));
  }
  TANDEM_ASSIGN(options_,
                adopt_hello(options_, std::span(received_).subspan(TcpFrameLayout::kHeaderBytes), peer_));
  // A listening side's hello never leaves anything open.
  TANDEM_TRY(match_greeting(received_, options_, local_, peer_, Carrier::messages,
                            connects() ? Unstated::refused : Unstated::adopted));
  if (!options_.security || options_.security->mode() != SecurityMode::key) {
    phase_ = Phase::done;
    return {};
  }
  const auto hello_of = [](const std::array<std::byte, kGreetingBytes>& bytes) {
    return std::span(bytes).subspan<TcpFrameLayout::kHeaderBytes, HelloLayout::kBytes>();
  };
  proof_ = std::make_unique<PeerProof>(options_.security, side_, hello_of(greeting_), hello_of(received_));
  phase_ = Phase::proof;
  TANDEM_ASSIGN(const auto nonce, proof_->nonce());
  return send(nonce);
}

Result<void> TcpHandshake::take_proof() {
  const auto step = proof_->take(std::span(received_).first<PeerProof::kFrameBytes>());
  if (!step) {
    // Whoever is refused learns that it was, and nothing else.
    const auto bye = TcpFrameLayout::encode({TcpFrameKind::bye, Channel::control, 0});
    [[maybe_unused]] const bool told = stream_.write_short(bye);
    return failed(step.error().code, step.error().message);
  }
  if (step->send) TANDEM_TRY(send(step->answer));
  if (proof_->done()) phase_ = Phase::done;
  return {};
}

Result<bool> TcpHandshake::advance() {
  while (phase_ != Phase::done) {
    bool whole = false;
    if (phase_ == Phase::tls) {
      TANDEM_ASSIGN(whole, start_stream());
      if (whole) continue;
    } else {
      TANDEM_ASSIGN(whole, receive(TcpFrameLayout::kHeaderBytes));
    }
    if (whole) {
      TANDEM_TRY(check_head());
      TANDEM_ASSIGN(whole, receive(phase_ == Phase::hello ? kGreetingBytes : PeerProof::kFrameBytes));
    }
    if (!whole) {
      // Also of one that sends a byte now and then.
      if (now() < deadline_) return false;
      return failed(ErrorCode::deadline_exceeded, connects() ? "no answer within the connect_limit"
                                                             : "no whole handshake within the connect_limit");
    }
    TANDEM_TRY(phase_ == Phase::hello ? take_hello() : take_proof());
    size_ = 0;
  }
  return true;
}

}  // namespace tandem
