#include "cli/conformance/client.h"

#include <fmt/format.h>

#include <algorithm>

#include "afd/tile_frame.h"
#include "transport/hello.h"
#include "transport/little_endian.h"

namespace tandem::conformance {
namespace {

std::unexpected<Error> unexpected_event(const std::string& wanted, const std::string& got) {
  return make_error(ErrorCode::unavailable, fmt::format("expected {}, got {}", wanted, got));
}

// Of the rank's hello.
Result<CarrierNumbers> numbers_of(const Bytes& bytes) {
  if (bytes.size() != HelloLayout::kBytes || load_little_endian<uint32_t>(&bytes[0]) != HelloLayout::kMagic)
    return unexpected_event("a hello of 64 bytes with its magic", fmt::format("{} bytes", bytes.size()));
  return CarrierNumbers{.version = load_little_endian<uint32_t>(&bytes[4]),
                        .slots = load_little_endian<uint32_t>(&bytes[8]),
                        .slot_bytes = load_little_endian<uint64_t>(&bytes[16]),
                        .heartbeat_us = load_little_endian<uint64_t>(&bytes[24]),
                        .silence_us = load_little_endian<uint64_t>(&bytes[32]),
                        .carrier = load_little_endian<uint32_t>(&bytes[40]),
                        .security = load_little_endian<uint32_t>(&bytes[44])};
}

// A rank that has nothing to do gives slots back at once. One that keeps them is some case's business.
constexpr Duration kSlotsLimit = std::chrono::seconds(1);

}  // namespace

std::string Received::reason() const {
  return read_error(view).message;
}

uint32_t Received::code() const {
  const auto code = view.payload(PayloadRole::error_code);
  return code.empty() ? 0 : load_little_endian<uint32_t>(code.data());
}

std::string Received::text() const {
  const std::string kind(frame_kind_name(view.header.kind));
  return code() == 0 ? kind : fmt::format("{} with code {}: {}", kind, code(), reason());
}

Result<std::unique_ptr<Client>> Client::silent(Lab& lab) {
  TANDEM_ASSIGN(auto connection, Connection::open(lab.peer, lab.connections));
  return std::make_unique<Client>(lab, std::move(connection));
}

Result<Proof> Client::exchange_hellos(const CarrierNumbers& ours) {
  TANDEM_TRY(wire().send(carrier_greeting(ours)));
  Event hello = wire().next(wire().patience());
  if (hello.kind != Event::Kind::hello) return unexpected_event("a hello of the carrier", hello.text());
  TANDEM_ASSIGN(const CarrierNumbers theirs, numbers_of(hello.bytes));
  if (theirs.security != ours.security) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("the rank knows its peers by {}, and this side has {}: give the "
                                  "--peer-key-file or --peer-tls-... that the rank has",
                                  security_name(theirs.security), security_name(ours.security)));
  }
  wire().credits.fill(theirs.slots);
  wire().beat_interval = std::chrono::microseconds(theirs.heartbeat_us);
  Proof proof{ours.hello(), std::move(hello.bytes), {}, {}};
  if (lab_.mode() != SecurityMode::key) return proof;
  TANDEM_ASSIGN(proof.connecting_nonce, fresh_nonce());
  TANDEM_TRY(wire().send(carrier_word(TcpFrameKind::nonce, proof.connecting_nonce)));
  Event nonce = wire().next(wire().patience());
  if (nonce.kind != Event::Kind::nonce || nonce.bytes.size() != kWordBytes)
    return unexpected_event("a nonce of 32 bytes", nonce.text());
  proof.listening_nonce = std::move(nonce.bytes);
  return proof;
}

Result<Bytes> Client::greet(const CarrierNumbers& ours) {
  TANDEM_ASSIGN(Proof proof, exchange_hellos(ours));
  if (lab_.mode() == SecurityMode::key) {
    TANDEM_ASSIGN(const Bytes mine, proof.value(*lab_.security(), kConnecting));
    TANDEM_TRY(wire().send(carrier_word(TcpFrameKind::proof, mine)));
    const Event answer = wire().next(wire().patience());
    if (answer.kind == Event::Kind::bye) {
      return make_error(ErrorCode::invalid_argument,
                        "the rank refuses this side's proof: give the --peer-key-file that the rank has");
    }
    TANDEM_ASSIGN(const Bytes wanted, proof.value(*lab_.security(), kListening));
    if (answer.kind != Event::Kind::proof || answer.bytes != wanted)
      return unexpected_event("the rank's proof that it has the key", answer.text());
  }
  wire().beats = true;
  return std::move(proof.listening_hello);
}

Result<std::unique_ptr<Client>> Client::greeted(Lab& lab) {
  TANDEM_ASSIGN(auto client, silent(lab));
  TANDEM_TRY(client->greet(lab.facts.carrier));
  return client;
}

Result<std::unique_ptr<Client>> Client::acknowledged(Lab& lab) {
  TANDEM_ASSIGN(auto client, greeted(lab));
  TANDEM_TRY(client->say_hello(lab.facts.hello_text()));
  TANDEM_ASSIGN([[maybe_unused]] const Received ack, client->hello_ack());
  return client;
}

Result<std::unique_ptr<Client>> Client::serving(Lab& lab) {
  TANDEM_ASSIGN(auto client, acknowledged(lab));
  for (uint16_t index = 0; index < 2; ++index) {
    TANDEM_TRY(client->send(client->canary(index)));
    TANDEM_ASSIGN(const Received echo, client->frame());
    if (echo.view.header.kind != FrameKind::canary_echo)
      return unexpected_event(fmt::format("the echo of canary {}", index), echo.text());
  }
  client->await_slots();
  return client;
}

void Client::await_slots() {
  const Instant deadline = now() + std::min<Duration>(wire().patience(), kSlotsLimit);
  while (
      std::ranges::any_of(wire().credits, [&](uint32_t room) { return room < lab_.facts.carrier.slots; })) {
    const Event event = wire().next(deadline - now());
    if (event.kind != Event::Kind::credit && event.kind != Event::Kind::heartbeat) return;
  }
}

const RankFacts& Client::facts() const {
  return lab_.facts;
}

Status Client::say_hello(const std::string& settings) {
  RawFrame hello;
  hello.header.kind = FrameKind::hello;
  hello.payloads.push_back(text_payload(PayloadRole::settings, settings));
  return send(hello, Channel::control);
}

Result<Received> Client::hello_ack() {
  TANDEM_ASSIGN(Received ack, frame());
  if (ack.view.header.kind != FrameKind::hello_ack) return unexpected_event("hello_ack", ack.text());
  session = ack.view.header.session;
  incarnation = ack.view.header.incarnation;
  return ack;
}

RawFrame Client::canary(uint16_t index) const {
  const RankFacts& facts = lab_.facts;
  RequestShape shape;
  for (uint32_t row = 0; row < kMaxTileRows; ++row) shape.rows.push_back(row);
  RawFrame frame = make_request(facts, shape);
  frame.header.kind = FrameKind::canary;
  frame.header.step = frame.header.attempt = 0;
  frame.header.map_epoch = 0;
  frame.header.session = session;
  frame.header.incarnation = incarnation;
  frame.header.tile = index;
  frame.header.tiles = 2;
  if (index == 0) return frame;
  Bytes values(dtype_bytes(facts.reply_dtype, size_t{kMaxTileRows} * facts.hidden_size));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::byte>(i * 31 % 251);
  frame.payloads = {
      {PayloadRole::output, facts.reply_dtype, kMaxTileRows, facts.hidden_size, std::move(values)}};
  return frame;
}

Result<Received> Client::frame(Duration limit) {
  const Instant deadline = now() + (limit == Duration::zero() ? wire().patience() : limit);
  while (true) {
    Event event = wire().next(std::max<Duration>(deadline - now(), std::chrono::milliseconds(1)));
    if (event.kind == Event::Kind::credit || event.kind == Event::Kind::heartbeat) continue;
    if (event.kind != Event::Kind::message) return make_error(ErrorCode::unavailable, event.text());
    Received received{.channel = event.channel, .bytes = std::move(event.bytes), .view = {}};
    auto view = parse_frame(received.bytes);
    if (!view) {
      return make_error(ErrorCode::data_loss,
                        "bytes that break a rule of frames (" + view.error().message + ")");
    }
    received.view = *view;
    return received;
  }
}

RawFrame Client::request(uint32_t rows) {
  RequestShape shape;
  for (uint32_t row = 0; row < rows; ++row) shape.rows.push_back(row);
  return request(shape);
}

RawFrame Client::request(const RequestShape& shape) {
  RawFrame frame = make_request(lab_.facts, shape);
  frame.header.session = session;
  frame.header.incarnation = incarnation;
  frame.header.step = ++step_;
  return frame;
}

Status Client::send(const RawFrame& frame, Channel channel) {
  return wire().send_message(channel, frame.encode());
}

RawFrame Client::plain(FrameKind kind, const RawFrame* request) const {
  RawFrame frame;
  if (request != nullptr) frame.header = request->header;
  frame.header.kind = kind;
  frame.header.session = session;
  frame.header.incarnation = incarnation;
  frame.header.rows = frame.header.capacity = 0;
  return frame;
}

Result<std::unique_ptr<Lab>> Lab::open(const HostPort& peer, Duration patience,
                                       std::shared_ptr<const PeerSecurity> security) {
  auto lab = std::make_unique<Lab>();
  lab->peer = peer;
  lab->connections.patience = patience;
  lab->connections.security = std::move(security);
  TANDEM_ASSIGN(const auto client, Client::silent(*lab));
  // Zeros: the numbers are the rank's to say. A rank that does not take them has said them all the same.
  TANDEM_ASSIGN(const Bytes hello, client->greet({.security = static_cast<uint32_t>(lab->mode())}));
  TANDEM_ASSIGN(const CarrierNumbers numbers, numbers_of(hello));
  std::string text = "peer.role=attention\npeer.rank=0\npeer.name=conformance:1\npeer.incarnation=1\n";
  text += fmt::format("protocol={}.{}\n", kProtocolMajor, kProtocolMinor);
  for (const char* key : kSettingKeys) text += fmt::format("{}=-\n", key);
  TANDEM_TRY(client->say_hello(text));
  auto ack = client->hello_ack();
  if (!ack) {
    return make_error(
        ErrorCode::unavailable,
        "the rank does not say its settings to a hello that takes them (setting -, section 4 of the "
        "protocol): " +
            ack.error().message);
  }
  const auto settings = ack->view.payload(PayloadRole::settings);
  TANDEM_ASSIGN(lab->facts,
                RankFacts::parse({reinterpret_cast<const char*>(settings.data()), settings.size()}));
  lab->facts.carrier = numbers;
  const auto pieces = ack->view.payload(PayloadRole::pieces);
  for (size_t at = 0; at + 4 <= pieces.size(); at += 4)
    lab->facts.pieces.push_back(load_little_endian<uint32_t>(&pieces[at]));
  TANDEM_TRY(client->send(client->plain(FrameKind::goodbye), Channel::control));
  // The first session is a right one: a rank that nobody has used may take the first difference for a wrong
  // start and end.
  TANDEM_ASSIGN(lab->bystander, Client::serving(*lab));
  return lab;
}

}  // namespace tandem::conformance
