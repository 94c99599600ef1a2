// What a stranger says to an FFN rank before any request: messages over a real endpoint, each u8 channel, u16
// length, bytes (first byte 0; with bit 7 a right hello goes first, and sizes and checksums are repaired); or
// (1) the settings of a hello, (2) pieces of a hello_ack, (3) the greeting of a tcp connection. Nobody is
// served who did not greet, and every refusal says why, in one line.
#include <cstring>
#include <vector>

#include "afd/frame_testing.h"
#include "afd/handshake.h"
#include "afd/topology.h"
#include "fuzzing.h"
#include "transport/endpoint.h"
#include "transport/hello.h"
#include "transport/tcp_frame.h"

namespace {

using namespace tandem;
using fuzz::require;
using Bytes = std::span<const std::byte>;

void hello(Bytes input) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  const auto decoded = decode_hello(text);
  if (!decoded) {
    require(!decoded.error().message.empty(), "a refusal says why");
    return;
  }
  const PeerIdentity self{"ffn", 0, "h:1", 1};
  if (const Status same = compare_settings(small_settings(), self, *decoded); !same) {
    require(same.error().message.find('\n') == std::string::npos, "a refusal is one line");
  }
}

void pieces(Bytes input) {
  std::vector<uint32_t> words(input.size() / 4);
  if (!words.empty()) std::memcpy(words.data(), input.data(), words.size() * 4);
  const SplitSettings settings = small_settings();
  const auto decoded = decode_pieces(words, 0, settings);
  if (!decoded) return;
  FfnRankFacts facts;
  facts.pieces = *decoded;
  const uint32_t epoch = map_epoch(std::span(&facts, 1));
  require(epoch != 0, "an epoch is never 0");
  const auto map = assemble_topology(settings, std::span(&facts, 1), epoch);
  if (!map) require(!map.error().message.empty(), "a refusal says why");
}

void greeting(Bytes input) {
  if (input.size() < TcpFrameLayout::kHeaderBytes) return;
  const auto frame = TcpFrameLayout::decode(input.first<TcpFrameLayout::kHeaderBytes>());
  if (frame) {
    const auto again = TcpFrameLayout::encode(*frame);
    require(std::memcmp(again.data(), input.data(), again.size()) == 0, "a tcp frame writes its bytes again");
  }
  const auto same = match_hello({}, "tcp://a:1", input.subspan(TcpFrameLayout::kHeaderBytes), "tcp://b:2");
  if (!same) require(same.error().message.find('\n') == std::string::npos, "a refusal is one line");
}

// Both ends of a connection inside the process, as an FFN rank has it.
struct Pair {
  std::unique_ptr<Listener> listener;
  std::unique_ptr<Endpoint> stranger, rank;
};

Pair connected() {
  Pair pair;
  EndpointOptions options;
  options.slot_bytes = size_t{64} << 10;
  auto listener = listen("inproc://fuzz", options);
  require(listener.has_value(), "it listens");
  pair.listener = std::move(*listener);
  auto stranger = connect("inproc://fuzz", options);
  require(stranger.has_value(), "it connects");
  pair.stranger = std::move(*stranger);
  auto rank = pair.listener->accept();
  require(rank.has_value() && *rank != nullptr, "it accepts");
  pair.rank = std::move(*rank);
  return pair;
}

std::vector<std::byte> right_hello(const SplitSettings& settings) {
  const std::string text = encode_hello({"attention", 3, "a:1", 1}, settings);
  FrameHeader header;
  header.kind = FrameKind::hello;
  const std::array<PayloadShape, 1> payloads = {
      PayloadShape{PayloadRole::settings, DType::u8, 1, static_cast<uint32_t>(text.size())}};
  const auto layout = FrameLayout::create(header, payloads);
  require(layout.has_value(), "a hello has a layout");
  std::vector<std::byte> frame(layout->total_bytes());
  layout->encode(frame);
  std::memcpy(layout->payload(frame, PayloadRole::settings).data(), text.data(), text.size());
  return frame;
}

// The messages of the input, in order.
struct Message {
  Channel channel = Channel::control;
  std::vector<std::byte> bytes;
};

std::vector<Message> messages(Bytes input, bool repaired, const SplitSettings& settings) {
  std::vector<Message> list;
  if (repaired) list.push_back({Channel::control, right_hello(settings)});
  while (input.size() > 3) {
    const auto channel = static_cast<Channel>(static_cast<unsigned>(input[0]) % kNumChannels);
    const size_t length = std::min<size_t>(static_cast<size_t>(input[1]) | static_cast<size_t>(input[2]) << 8,
                                           input.size() - 3);
    std::vector<std::byte> bytes(input.begin() + 3, input.begin() + 3 + static_cast<ptrdiff_t>(length));
    input = input.subspan(3 + length);
    if (bytes.empty()) continue;
    if (repaired) repair_frame(bytes);
    list.push_back({channel, std::move(bytes)});
  }
  return list;
}

void session(Bytes input, bool repaired) {
  const SplitSettings settings = small_settings();
  const PeerIdentity self{"ffn", 0, "h:1", 1};
  const FfnAdmission admission{.ffn_ranks = true};
  Pair pair = connected();
  FfnHandshake handshake(settings, self, {}, 7, admission);
  std::vector<Incoming> incoming(8);
  for (const auto& [channel, message] : messages(input, repaired, settings)) {
    if (handshake.done()) break;
    const auto slot = pair.stranger->acquire(channel, message.size());
    if (!slot) return;  // longer than a slot
    std::memcpy(slot->bytes.data(), message.data(), message.size());
    require(pair.stranger->commit(*slot, message.size()).has_value(), "it is sent");
    const size_t count = pair.rank->poll(incoming);
    for (size_t i = 0; i < count; ++i) {
      const auto view = parse_frame(incoming[i].lease.bytes());
      if (!view) return;
      const Status status = handshake.on_frame(*view, *pair.rank);
      incoming[i].lease = Lease();
      if (!status) {
        require(!status.error().message.empty(), "a refusal says why");
        return;
      }
      if (!handshake.pump(*pair.rank)) return;
    }
    require(!handshake.done() || handshake.greeted(), "nobody is served who did not greet");
    std::vector<Incoming> answers(8);
    pair.stranger->poll(answers);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const Bytes input(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  switch ((data[0] & 0x7f) % 4) {
    case 1:
      hello(input);
      break;
    case 2:
      pieces(input);
      break;
    case 3:
      greeting(input);
      break;
    default:
      session(input, (data[0] & 0x80) != 0);
      break;
  }
  return 0;
}
