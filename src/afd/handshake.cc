#include "afd/handshake.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <random>
#include <thread>

#include "afd/tile_frame.h"
#include "base/log.h"

namespace tandem {
namespace {

constexpr size_t kMaxHelloLines = 256;    // 31 today; bounds the work that a stranger can cause
constexpr size_t kDifferencesInFull = 3;  // of another model nearly every key differs: three tell which it is
constexpr std::string_view kIdentityPrefix = "peer.";
constexpr std::string_view kAbsent = "(absent)";  // in messages, in the place of a value

// While waiting for an answer: often enough to keep heartbeats (every 100 ms) and to notice `stop`.
constexpr int kWaitMilliseconds = 20;

std::unexpected<Error> invalid(std::string message) {
  return make_error(ErrorCode::invalid_argument, std::move(message));
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// "1" of "1.0".
std::string_view major_of(std::string_view version) {
  return version.substr(0, version.find('.'));
}

template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

FrameHeader plain_header(FrameKind kind, uint64_t session, uint32_t incarnation) {
  FrameHeader header;
  header.kind = kind;
  header.session = session;
  header.incarnation = incarnation;
  return header;
}

// Takes a slot, lets `fill` write the payloads behind header and descriptors, sends.
template <class Fill>
Status send_frame(Endpoint& endpoint, Channel channel, const FrameLayout& layout, Fill&& fill) {
  TANDEM_ASSIGN(const SendSlot slot, endpoint.acquire(channel, layout.total_bytes()));
  layout.encode(slot.bytes);
  fill(slot.bytes);
  return endpoint.commit(slot, layout.total_bytes());
}

Status send_bytes(Endpoint& endpoint, Channel channel, std::span<const std::byte> frame) {
  TANDEM_ASSIGN(const SendSlot slot, endpoint.acquire(channel, frame.size()));
  std::memcpy(slot.bytes.data(), frame.data(), frame.size());
  return endpoint.commit(slot, frame.size());
}

// The first messages of a connection find credits; later ones may have to wait for theirs to travel back.
Status send_when_possible(Endpoint& endpoint, Channel channel, std::span<const std::byte> frame,
                          Instant deadline, const std::atomic<bool>& stop) {
  while (true) {
    const Status sent = send_bytes(endpoint, channel, frame);
    if (sent || sent.error().code != ErrorCode::would_block) return sent;
    if (stop.load(std::memory_order_relaxed))
      return make_error(ErrorCode::cancelled, "stopped during the handshake");
    if (now() >= deadline) {
      return make_error(ErrorCode::deadline_exceeded,
                        fmt::format("{} gives no credit back during the handshake", endpoint.peer_name()));
    }
    endpoint.poll({});
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // a handshake may take its time; no spinning
  }
}

Status send_settings(Endpoint& endpoint, const FrameHeader& header, const std::string& text,
                     const std::vector<uint32_t>* pieces) {
  std::array<PayloadShape, 2> shapes = {
      PayloadShape{PayloadRole::settings, DType::u8, 1, static_cast<uint32_t>(text.size())},
      PayloadShape{PayloadRole::pieces, DType::u32,
                   static_cast<uint32_t>(pieces != nullptr ? pieces->size() / kPieceWords : 0), kPieceWords}};
  TANDEM_ASSIGN(const FrameLayout layout,
                FrameLayout::create(header, std::span(shapes).first(pieces != nullptr ? 2 : 1)));
  return send_frame(endpoint, Channel::control, layout, [&](std::span<std::byte> frame) {
    std::ranges::copy(bytes_of(text), layout.payload(frame, PayloadRole::settings).begin());
    if (pieces != nullptr) {
      std::ranges::copy(std::as_bytes(std::span(*pieces)),
                        layout.payload(frame, PayloadRole::pieces).begin());
    }
  });
}

std::string_view text_of(const FrameView& frame, PayloadRole role) {
  const auto bytes = frame.payload(role);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The next message, whatever it is.
Result<Incoming> receive_one(Endpoint& endpoint, const std::string& address, std::string_view awaited,
                             Instant deadline, const std::atomic<bool>& stop) {
  Incoming incoming;
  while (true) {
    if (endpoint.poll({&incoming, 1}) == 1) return incoming;
    if (endpoint.peer() != PeerState::alive) {
      return make_error(ErrorCode::unavailable, fmt::format("{}: connection {} while waiting for {}", address,
                                                            peer_state_name(endpoint.peer()), awaited));
    }
    if (stop.load(std::memory_order_relaxed))
      return make_error(ErrorCode::cancelled, "stopped during the handshake");
    if (now() >= deadline) {
      return make_error(ErrorCode::deadline_exceeded,
                        fmt::format("{} ({}) sent no {} in time: it answers, but its data path does not",
                                    address, endpoint.peer_name(), awaited));
    }
    if (!endpoint.arm()) continue;
    pollfd wait{.fd = endpoint.fd(), .events = POLLIN, .revents = 0};
    ::poll(&wait, 1, kWaitMilliseconds);
  }
}

// The frame that is awaited now, or the reason why it does not come.
Result<FrameView> expect_frame(const Incoming& incoming, FrameKind wanted, const std::string& address) {
  auto frame = parse_frame(incoming.lease.bytes());
  if (!frame) return make_error(frame.error().code, fmt::format("{}: {}", address, frame.error().message));
  if (frame->header.kind == FrameKind::refuse) {
    Error error = read_error(*frame);
    return make_error(error.code, fmt::format("{} refused: {}", address, error.message));
  }
  if (frame->header.kind == FrameKind::goodbye || frame->header.kind == FrameKind::drain) {
    return make_error(ErrorCode::unavailable, fmt::format("{} is stopping", address));
  }
  if (frame->header.kind != wanted) {
    return make_error(ErrorCode::data_loss,
                      fmt::format("{} sent {} where {} was due", address, frame_kind_name(frame->header.kind),
                                  frame_kind_name(wanted)));
  }
  return frame;
}

}  // namespace

bool never_fits(ErrorCode code) {
  return code == ErrorCode::invalid_argument || code == ErrorCode::unsupported ||
         code == ErrorCode::data_loss;
}

bool same_major(std::string_view one, std::string_view other) {
  return major_of(one) == major_of(other);
}

std::string PeerIdentity::text() const {
  return fmt::format("{} rank {} ({})", role == "ffn" ? "FFN" : role, rank, name);
}

PeerIdentity make_identity(std::string role, uint32_t rank) {
  std::array<char, 256> host{};
  const bool named = gethostname(host.data(), host.size() - 1) == 0;
  std::random_device random;
  uint32_t incarnation = random();
  while (incarnation == 0) incarnation = random();  // 0 is "before the handshake"
  const std::string name = fmt::format("{}:{}", named ? host.data() : "unknown-host", getpid());
  return {std::move(role), rank, name, incarnation};
}

std::string encode_hello(const PeerIdentity& self, const SplitSettings& settings, bool states) {
  std::string text = fmt::format("peer.role={}\npeer.rank={}\npeer.name={}\npeer.incarnation={}\n", self.role,
                                 self.rank, self.name, self.incarnation);
  for (const Setting& setting : list_settings(settings)) {
    const bool stated = states || setting.key == "protocol" || setting.key == "tile_rows";
    text += fmt::format("{}={}\n", setting.key, stated ? std::string_view(setting.value) : kUnstatedSetting);
  }
  return text;
}

Result<Hello> decode_hello(std::string_view text) {
  Hello hello;
  std::vector<std::pair<std::string, std::string>> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos || equals == 0 || end == std::string_view::npos) {
      return invalid(
          fmt::format("hello: line \"{}\" is not key=value", clean_error_text(line.substr(0, 80))));
    }
    std::string key = clean_error_text(line.substr(0, equals));
    if (std::ranges::any_of(lines, [&](const auto& known) { return known.first == key; })) {
      return invalid(fmt::format("hello: {} is given twice", key));
    }
    if (lines.size() == kMaxHelloLines)
      return invalid(fmt::format("hello: more than {} lines", kMaxHelloLines));
    lines.emplace_back(std::move(key), clean_error_text(line.substr(equals + 1)));
  }
  std::optional<uint32_t> rank, incarnation;
  for (auto& [key, value] : lines) {
    if (key == "peer.role") hello.peer.role = value;
    if (key == "peer.rank") rank = parse_number<uint32_t>(value);
    if (key == "peer.name") hello.peer.name = value;
    if (key == "peer.incarnation") incarnation = parse_number<uint32_t>(value);
    if (!key.starts_with(kIdentityPrefix)) hello.settings.emplace_back(std::move(key), std::move(value));
  }
  if (hello.peer.role.empty() || hello.peer.name.empty() || !rank || !incarnation || *rank > UINT16_MAX) {
    return invalid("hello: peer.role, peer.rank (16 bits), peer.name and peer.incarnation must all be there");
  }
  hello.peer.rank = *rank;
  hello.peer.incarnation = *incarnation;
  return hello;
}

Status compare_settings(const SplitSettings& ours, const PeerIdentity& self, const Hello& theirs) {
  const auto their_value = [&](const std::string& key) {
    for (const auto& [name, value] : theirs.settings) {
      if (name == key) return value;
    }
    return std::string(kAbsent);
  };
  std::string message;
  std::string more;
  size_t differences = 0;
  const auto differ = [&](const std::string& key, const std::string& our_value, const std::string& other,
                          std::string_view remedy) {
    if (differences++ < kDifferencesInFull) {
      message += fmt::format("{}{} is {} on {} and {} on {}: {}", message.empty() ? "" : "; ", key, our_value,
                             self.text(), other, theirs.peer.text(), remedy);
    } else {
      more += fmt::format("{}{}", more.empty() ? "" : ", ", key);
    }
  };
  const std::vector<Setting> list = list_settings(ours);
  for (const Setting& setting : list) {
    const std::string other = their_value(setting.key);
    if (other == setting.value) continue;
    // Minor versions may differ: both keep to what the other one knows (docs/protocol.md, section 8).
    if (setting.key == "protocol" && same_major(other, setting.value)) continue;
    if (other == kUnstatedSetting && theirs.peer.role == "attention" && setting.key != "protocol") continue;
    if (setting.key == "numerics_id" && other != kAbsent && ours.sum_mode != SumMode::deterministic) {
      log_warning(fmt::format(
          "{} has other kernels ({}) than {} ({}): results may differ from a colocated run in the "
          "last bits",
          theirs.peer.text(), other, self.text(), setting.value));
      continue;
    }
    differ(setting.key, setting.value, other, setting.remedy);
  }
  for (const auto& [key, value] : theirs.settings) {
    if (key.starts_with(kOptionalSettingPrefix)) continue;
    if (std::ranges::none_of(list, [&](const Setting& setting) { return setting.key == key; })) {
      differ(key, std::string(kAbsent), value, "run the same release on both sides");
    }
  }
  if (differences == 0) return {};
  if (!more.empty()) message += fmt::format("; also different: {}", more);
  return invalid(clean_error_text(message));  // a stranger's keys and values may be long: this is for a log
}

Status send_plain(Endpoint& endpoint, FrameKind kind, uint64_t session, uint32_t incarnation) {
  TANDEM_ASSIGN(const FrameLayout layout, FrameLayout::create(plain_header(kind, session, incarnation), {}));
  return send_frame(endpoint, Channel::control, layout, [](std::span<std::byte>) {});
}

Status send_refuse(Endpoint& endpoint, uint64_t session, uint32_t incarnation, const Error& error) {
  const std::string text = clean_error_text(error.message);
  const std::array<PayloadShape, 2> shapes = {
      PayloadShape{PayloadRole::error_code, DType::u32, 1, 1},
      PayloadShape{PayloadRole::error_text, DType::u8, 1, static_cast<uint32_t>(text.size())}};
  TANDEM_ASSIGN(const FrameLayout layout,
                FrameLayout::create(plain_header(FrameKind::refuse, session, incarnation), shapes));
  return send_frame(endpoint, Channel::control, layout, [&](std::span<std::byte> frame) {
    const auto code = static_cast<uint32_t>(to_wire(error.code));
    std::ranges::copy(std::as_bytes(std::span(&code, 1)),
                      layout.payload(frame, PayloadRole::error_code).begin());
    std::ranges::copy(bytes_of(text), layout.payload(frame, PayloadRole::error_text).begin());
  });
}

Result<FfnRankFacts> open_session(Endpoint& endpoint, const std::string& address,
                                  const SplitSettings& settings, const PeerIdentity& self, Instant deadline,
                                  const std::atomic<bool>& stop, const SessionKind& kind) {
  TANDEM_TRY(send_settings(endpoint, plain_header(FrameKind::hello, 0, 0),
                           encode_hello(self, settings, kind.states), nullptr));
  FfnRankFacts facts;
  facts.address = address;
  {
    TANDEM_ASSIGN(const Incoming incoming, receive_one(endpoint, address, "hello_ack", deadline, stop));
    TANDEM_ASSIGN(const FrameView frame, expect_frame(incoming, FrameKind::hello_ack, address));
    TANDEM_ASSIGN(const Hello hello, decode_hello(text_of(frame, PayloadRole::settings)));
    if (const Status same = compare_settings(settings, self, hello); !same) {
      (void)send_refuse(endpoint, frame.header.session, frame.header.incarnation, same.error());
      return std::unexpected(same.error());
    }
    if (hello.peer.role != "ffn") {
      return invalid(fmt::format("{} is {}, not an FFN rank", address, hello.peer.text()));
    }
    const auto words = frame.payload(PayloadRole::pieces);
    facts.rank = hello.peer.rank;
    facts.name = hello.peer.name;
    facts.session = frame.header.session;
    facts.incarnation = frame.header.incarnation;
    TANDEM_ASSIGN(facts.pieces, decode_pieces({reinterpret_cast<const uint32_t*>(words.data()),
                                               words.size() / sizeof(uint32_t)},
                                              static_cast<uint16_t>(facts.rank), settings));
  }
  for (uint16_t index = 0; index < kNumCanaries; ++index) {
    TANDEM_ASSIGN(const std::vector<std::byte> canary,
                  make_canary(settings, facts.session, facts.incarnation, index, kind.parts));
    TANDEM_TRY(send_when_possible(endpoint, kind.channel, canary, deadline, stop));
    TANDEM_ASSIGN(const Incoming incoming, receive_one(endpoint, address, "canary_echo", deadline, stop));
    TANDEM_ASSIGN(const FrameView frame, expect_frame(incoming, FrameKind::canary_echo, address));
    const std::vector<std::byte> wanted = echo_canary(canary);
    const auto [want, got] = std::ranges::mismatch(wanted, frame.bytes);
    if (want != wanted.end() || got != frame.bytes.end()) {
      return make_error(
          ErrorCode::data_loss,
          fmt::format("{}: canary {} of {} bytes came back changed at byte {}: the path damages data",
                      address, index, wanted.size(), want - wanted.begin()));
    }
  }
  return facts;
}

Result<Hello> ask_settings(Endpoint& endpoint, const std::string& address, const std::string& hello_text,
                           Instant deadline, const std::atomic<bool>& stop) {
  TANDEM_TRY(send_settings(endpoint, plain_header(FrameKind::hello, 0, 0), hello_text, nullptr));
  TANDEM_ASSIGN(const Incoming incoming, receive_one(endpoint, address, "hello_ack", deadline, stop));
  TANDEM_ASSIGN(const FrameView frame, expect_frame(incoming, FrameKind::hello_ack, address));
  TANDEM_ASSIGN(Hello hello, decode_hello(text_of(frame, PayloadRole::settings)));
  // Leaves in order; that it may not arrive costs the rank a wait of its hello_limit at most.
  (void)send_plain(endpoint, FrameKind::goodbye, frame.header.session, frame.header.incarnation);
  endpoint.poll({});
  return hello;
}

Status FfnHandshake::on_frame(const FrameView& frame, Endpoint& endpoint) {
  const FrameKind kind = frame.header.kind;
  if (kind == FrameKind::refuse) {
    const Error error = read_error(frame);
    return make_error(ErrorCode::cancelled,
                      fmt::format("{} refused: {}", endpoint.peer_name(), error.message));
  }
  if (!greeted_) {
    if (kind != FrameKind::hello) return invalid(fmt::format("{} before hello", frame_kind_name(kind)));
    return on_hello(frame, endpoint);
  }
  if (kind != FrameKind::canary) {
    return invalid(
        fmt::format("{} before the canaries: the handshake is not finished", frame_kind_name(kind)));
  }
  return on_canary(frame);  // the echo leaves in `pump`, when the canary's own slot has been given back
}

Status FfnHandshake::on_hello(const FrameView& frame, Endpoint& endpoint) {
  TANDEM_ASSIGN(const Hello hello, decode_hello(text_of(frame, PayloadRole::settings)));
  peer_ = hello.peer;
  if (peer_.role != "attention" && !peer_is_ffn()) {
    return invalid(fmt::format("{} is neither an attention rank nor an FFN rank", peer_.text()));
  }
  if (Status same = compare_settings(settings_, self_, hello); !same) {
    misfit_ = true;
    return same;
  }
  TANDEM_TRY(admit());
  greeted_ = true;
  const std::vector<uint32_t> words = encode_pieces(pieces_);
  return send_settings(endpoint, plain_header(FrameKind::hello_ack, session_, self_.incarnation),
                       encode_hello(self_, settings_), &words);
}

Status FfnHandshake::admit() const {
  if (!peer_is_ffn()) return admission_.attention ? admission_.attention() : Status{};
  if (!admission_.ffn_ranks) {
    return invalid(
        fmt::format("{} wants to exchange rows, and {} does not: connector m2n needs no exchange; "
                    "start all FFN ranks with the same connector",
                    peer_.text(), self_.text()));
  }
  if (peer_.rank == self_.rank) {
    return invalid(fmt::format("{} and {} have the same rank: list FFN addresses in order of rank",
                               peer_.text(), self_.text()));
  }
  if (peer_.rank >= settings_.num_ffn_ranks) {
    return invalid(
        fmt::format("{} of {} FFN ranks: they are numbered from 0", peer_.text(), settings_.num_ffn_ranks));
  }
  return admission_.ffn_rank ? admission_.ffn_rank(peer_.rank) : Status{};
}

Status FfnHandshake::on_canary(const FrameView& frame) {
  const FrameHeader& header = frame.header;
  if (header.session != session_ || header.incarnation != self_.incarnation) {
    return invalid(
        fmt::format("canary of session {:#x}, incarnation {:#x}; this is session {:#x}, incarnation {:#x}",
                    header.session, header.incarnation, session_, self_.incarnation));
  }
  if (header.tile != canaries_ || header.tiles != kNumCanaries || !echo_.empty()) {
    return invalid(fmt::format("canary {} of {}, expected {} of {}", header.tile, header.tiles, canaries_,
                               kNumCanaries));
  }
  // The request canary must be a request that would be served; the reply canary has the reply's shape.
  if (header.tile == 0) {
    if (peer_is_ffn() && (header.flags & kFramePartial) == 0)
      return invalid("canary 0 of an FFN rank must be a part: that is what its requests are");
    TANDEM_TRY(read_request(frame, settings_));
  } else {
    const Descriptor* output = frame.find(PayloadRole::output);
    if (output == nullptr || output->dtype != settings_.reply_dtype ||
        output->cols != settings_.hidden_size) {
      return invalid("canary 1 must carry an output of the agreed dtype and width");
    }
  }
  ++canaries_;
  echo_ = echo_canary(frame.bytes);
  return {};
}

Status FfnHandshake::pump(Endpoint& endpoint) {
  if (echo_.empty()) return {};
  const Status sent = send_bytes(endpoint, channel(), echo_);
  if (!sent && sent.error().code == ErrorCode::would_block) return {};
  echo_.clear();
  return sent;
}

}  // namespace tandem
