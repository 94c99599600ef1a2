#include "cli/conformance/connection.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/hello.h"
#include "transport/little_endian.h"
#include "transport/socket.h"
#include "transport/tcp_socket.h"

namespace tandem::conformance {
namespace {

constexpr size_t kReadBytes = 64 << 10;

// First byte of a record of TLS that says why there is no TLS.
constexpr std::byte kTlsAlert{21};

std::unexpected<Error> gone(const std::string& what) {
  return make_error(ErrorCode::unavailable, what);
}

Result<TcpStream> start_tls(UniqueFd socket, const PeerTlsContext& context, Instant deadline) {
  TANDEM_ASSIGN(auto session, TlsSession::create(context, socket.get(), true));
  TcpStream stream(std::move(socket), std::move(session));
  while (true) {
    TANDEM_ASSIGN(const bool stands, stream.handshake());
    if (stands) return stream;
    if (!wait_for_socket(stream.socket(), false, deadline)) return gone("no answer to a handshake of TLS");
  }
}

}  // namespace

Bytes CarrierNumbers::hello() const {
  Bytes bytes(HelloLayout::kBytes);
  store_little_endian<uint32_t>(&bytes[0], HelloLayout::kMagic);
  store_little_endian<uint32_t>(&bytes[4], version);
  store_little_endian<uint32_t>(&bytes[8], slots);
  store_little_endian<uint64_t>(&bytes[16], slot_bytes);
  store_little_endian<uint64_t>(&bytes[24], heartbeat_us);
  store_little_endian<uint64_t>(&bytes[32], silence_us);
  store_little_endian<uint32_t>(&bytes[40], carrier);
  store_little_endian<uint32_t>(&bytes[44], security);
  return bytes;
}

std::string Event::text() const {
  switch (kind) {
    case Kind::message:
      return fmt::format("a message of {} bytes on channel {}", bytes.size(), static_cast<int>(channel));
    case Kind::hello:
      return "a hello of the carrier";
    case Kind::nonce:
      return "a nonce";
    case Kind::proof:
      return "a proof of the key";
    case Kind::credit:
      return fmt::format("{} credits of channel {}", value, static_cast<int>(channel));
    case Kind::heartbeat:
      return "a heartbeat";
    case Kind::bye:
      return "a bye";
    case Kind::ended:
      return "the end of the connection (" + why + ")";
    case Kind::broken:
      return "bytes that are no frame of the carrier (" + why + ")";
    case Kind::nothing:
      break;
  }
  return "nothing";
}

Bytes carrier_head(TcpFrameKind kind, Channel channel, uint32_t value) {
  const auto head = TcpFrameLayout::encode({kind, channel, value});
  return {head.begin(), head.end()};
}

Bytes carrier_message(Channel channel, std::span<const std::byte> message) {
  const auto head =
      TcpFrameLayout::encode({TcpFrameKind::data, channel, static_cast<uint32_t>(message.size())});
  Bytes bytes(head.size() + message.size());
  std::ranges::copy(head, bytes.begin());
  std::ranges::copy(message, bytes.begin() + head.size());
  return bytes;
}

Bytes carrier_word(TcpFrameKind kind, std::span<const std::byte> value) {
  const auto head = TcpFrameLayout::encode({kind, Channel::control, static_cast<uint32_t>(value.size())});
  Bytes bytes(head.size() + value.size());
  std::ranges::copy(head, bytes.begin());
  std::ranges::copy(value, bytes.begin() + head.size());
  return bytes;
}

Bytes carrier_greeting(const CarrierNumbers& numbers) {
  return carrier_word(TcpFrameKind::hello, numbers.hello());
}

Result<std::unique_ptr<Connection>> Connection::open(const HostPort& peer, ConnectionList& list, Wrap wrap) {
  const std::string name = "tcp://" + format_host_port(peer);
  TANDEM_ASSIGN(const auto candidates, resolve(peer, name));
  std::string why = "no address";
  for (const SocketAddress& candidate : candidates) {
    UniqueFd socket(::socket(candidate.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket) continue;
    const bool at_once = connect(socket.get(), candidate.get(), candidate.length) == 0;
    if (!at_once && errno != EINPROGRESS) {
      why = std::strerror(errno);
      continue;
    }
    int error = 0;
    socklen_t length = sizeof error;
    if (!wait_for_socket(socket.get(), true, now() + list.patience)) {
      why = "no answer";
      continue;
    }
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) {
      why = std::strerror(error);
      continue;
    }
    set_no_delay(socket.get());
    TcpStream stream(std::move(socket));
    if (wrap == Wrap::as_agreed && list.security && list.security->mode() == SecurityMode::tls) {
      auto tls = start_tls(stream.take_socket(), *list.security->tls(), now() + list.patience);
      if (!tls) return make_error(tls.error().code, name + ": " + tls.error().message);
      stream = std::move(*tls);
    }
    return std::unique_ptr<Connection>(new Connection(std::move(stream), list));
  }
  return gone(name + ": " + why + "; is the FFN rank running there?");
}

Connection::~Connection() {
  std::erase(list_.open, this);
}

std::string Connection::why_failed(int error) const {
  const auto failure = stream_.failure();
  return failure ? failure->message : std::strerror(error);
}

Status Connection::send(std::span<const std::byte> bytes) {
  const Instant deadline = now() + patience();
  while (!bytes.empty() || stream_.has_unsent()) {
    const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    const ssize_t sent = bytes.empty() ? stream_.flush() : stream_.write({&part, 1});
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
      last_sent_ = now();
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_for_socket(stream_.socket(), true, deadline)) return gone("the rank does not read");
    } else if (errno != EINTR) {
      return gone("the rank ended the connection (" + why_failed(errno) + ")");
    }
  }
  return {};
}

Status Connection::send_byte_by_byte(std::span<const std::byte> bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) TANDEM_TRY(send(bytes.subspan(i, 1)));
  return {};
}

Status Connection::send_head(TcpFrameKind kind, Channel channel, uint32_t value) {
  return send(carrier_head(kind, channel, value));
}

Status Connection::send_message(Channel channel, std::span<const std::byte> message) {
  uint32_t& room = credits[static_cast<size_t>(channel)];
  if (room > 0) --room;  // a case may want to send without
  return send(carrier_message(channel, message));
}

Status Connection::give_credits(Channel channel) {
  uint32_t& owed = withheld[static_cast<size_t>(channel)];
  if (owed == 0) return {};
  TANDEM_TRY(send_head(TcpFrameKind::credit, channel, owed));
  owed = 0;
  return {};
}

void Connection::beat_if_due() {
  // Half of what is promised: whoever waits may come late.
  if (!beats || ended_ || !stream_ || now() - last_sent_ < beat_interval / 2) return;
  (void)send_head(TcpFrameKind::heartbeat, Channel::control, 0);  // an end is seen by whoever reads
}

Event Connection::take() {
  if (received_.size() < TcpFrameLayout::kHeaderBytes) return {};
  const auto frame = TcpFrameLayout::decode(std::span(received_).first<TcpFrameLayout::kHeaderBytes>());
  if (!frame) return {.kind = Event::Kind::broken, .bytes = {}, .why = frame.error().message};
  const bool has_body = frame->kind == TcpFrameKind::data || frame->kind == TcpFrameKind::hello ||
                        frame->kind == TcpFrameKind::nonce || frame->kind == TcpFrameKind::proof;
  const size_t end = TcpFrameLayout::kHeaderBytes + (has_body ? frame->value : 0);
  if (received_.size() < end) return {};
  Event event{.channel = frame->channel, .value = frame->value, .bytes = {}, .why = {}};
  const auto begin = received_.begin();
  if (has_body)
    event.bytes.assign(begin + TcpFrameLayout::kHeaderBytes, begin + static_cast<std::ptrdiff_t>(end));
  received_.erase(begin, begin + static_cast<std::ptrdiff_t>(end));
  switch (frame->kind) {
    case TcpFrameKind::data:
      event.kind = Event::Kind::message;
      break;
    case TcpFrameKind::hello:
      event.kind = Event::Kind::hello;
      break;
    case TcpFrameKind::nonce:
      event.kind = Event::Kind::nonce;
      break;
    case TcpFrameKind::proof:
      event.kind = Event::Kind::proof;
      break;
    case TcpFrameKind::credit:
      event.kind = Event::Kind::credit;
      break;
    case TcpFrameKind::heartbeat:
      event.kind = Event::Kind::heartbeat;
      break;
    case TcpFrameKind::bye:
      event.kind = Event::Kind::bye;
      break;
    default:
      event.kind = Event::Kind::broken;
      event.why = fmt::format("kind {} on a tcp connection", static_cast<int>(frame->kind));
  }
  return event;
}

void Connection::note(const Event& event) {
  const auto channel = static_cast<size_t>(event.channel);
  if (event.kind == Event::Kind::credit) credits[channel] += event.value;
  if (event.kind == Event::Kind::heartbeat) ++heartbeats;
  if (event.kind == Event::Kind::message) {
    ++withheld[channel];
    if (returns_credits) (void)give_credits(event.channel);
  }
}

void Connection::receive(Instant deadline, std::string& ending) {
  for (Connection* connection : list_.open) connection->beat_if_due();
  const Instant step = std::min(deadline, now() + beat_interval / 4);
  if (!stream_.has_unread() && !wait_for_socket(stream_.socket(), false, step)) return;
  const size_t before = received_.size();
  received_.resize(before + kReadBytes);
  const ssize_t got = stream_.read_some(std::span(received_).subspan(before));
  const int error = errno;
  received_.resize(before + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (got > 0 || (got < 0 && (error == EAGAIN || error == EWOULDBLOCK || error == EINTR))) return;
  ended_ = true;
  ending = got == 0 ? "closed" : why_failed(error);
  if (!stream_.encrypted() && !received_.empty() && received_.front() == kTlsAlert)
    ending = "closed with an alert of TLS: give --peer-tls-certificate, --peer-tls-key and --peer-tls-ca";
}

Event Connection::next(Duration limit) {
  const Instant deadline = now() + limit;
  while (true) {
    Event event = take();
    if (event.kind != Event::Kind::nothing) {
      note(event);
      return event;
    }
    if (ended_ || !stream_) return {.kind = Event::Kind::ended, .bytes = {}, .why = "it has ended before"};
    const size_t before = received_.size();
    std::string ending;
    receive(deadline, ending);
    if (ended_) return {.kind = Event::Kind::ended, .bytes = {}, .why = ending};
    if (received_.size() == before && now() >= deadline) return {};
  }
}

Result<Bytes> Connection::next_bytes(Duration limit) {
  const Instant deadline = now() + limit;
  std::string ending = "it has ended before";
  while (received_.empty()) {
    if (ended_ || !stream_) return gone(ending);
    receive(deadline, ending);
    if (received_.empty() && !ended_ && now() >= deadline) return Bytes{};
  }
  return std::exchange(received_, {});
}

}  // namespace tandem::conformance
