// The handshake (docs/protocol.md, section 4): who is let in, and what canaries must be.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cli/conformance/case.h"

namespace tandem::conformance {
namespace {

// A hello of this text is refused, and the session ends.
Status refused_hello(Lab& lab, const std::string& text, std::string_view word = {}) {
  TANDEM_ASSIGN(const auto client, Client::greeted(lab));
  TANDEM_TRY(client->say_hello(text));
  TANDEM_TRY(expect_refuse(*client, word));
  return expect_end(*client);
}

Case hello_case(const std::string& name, const std::string& expects,
                std::function<std::string(std::string)> change, const std::string& word = {}) {
  return {"handshake." + name, expects, [change = std::move(change), word](Lab& lab) {
            return refused_hello(lab, change(lab.facts.hello_text()), word);
          }};
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// The first frame of a session that has (or has not) been acknowledged is refused.
Case early(const std::string& name, const std::string& expects, bool acknowledged,
           std::function<RawFrame(Client&)> frame, Channel channel) {
  return {"handshake." + name, expects,
          [acknowledged, channel, frame = std::move(frame)](Lab& lab) -> Status {
            TANDEM_ASSIGN(const auto client, acknowledged ? Client::acknowledged(lab) : Client::greeted(lab));
            TANDEM_TRY(client->send(frame(*client), channel));
            TANDEM_TRY(expect_refuse(*client));
            (void)client->send(client->request(1));  // a closing session serves nobody
            return expect_end(*client);
          }};
}

Case wrong_canary(const std::string& name, const std::string& expects, uint16_t index,
                  std::function<void(const RankFacts&, RawFrame&)> change) {
  return {"handshake." + name, expects, [index, change = std::move(change)](Lab& lab) -> Status {
            TANDEM_ASSIGN(const auto client, Client::acknowledged(lab));
            if (index == 1) {
              TANDEM_TRY(client->send(client->canary(0)));
              TANDEM_ASSIGN([[maybe_unused]] const Received echo, client->frame());
            }
            RawFrame canary = client->canary(index);
            change(lab.facts, canary);
            TANDEM_TRY(client->send(canary));
            return expect_refuse(*client);
          }};
}

Status describe(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::greeted(lab));
  std::string text = "peer.role=attention\npeer.rank=0\npeer.name=conformance:1\npeer.incarnation=1\n";
  for (const auto& [key, value] : lab.facts.settings)
    text += fmt::format("{}={}\n", key, key == "protocol" ? value : "-");
  TANDEM_TRY(client->say_hello(text));
  TANDEM_ASSIGN(const Received ack, client->hello_ack());
  const auto bytes = ack.view.payload(PayloadRole::settings);
  // Each line between two ends, the first one too.
  const std::string said = "\n" + std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (const auto& [key, value] : lab.facts.settings) {
    if (said.find("\n" + key + "=" + value + "\n") == std::string::npos)
      return mismatch(fmt::format("{}={} as before", key, value), "another value, or none");
  }
  TANDEM_TRY(client->send(client->plain(FrameKind::goodbye), Channel::control));
  return expect_end(*client);
}

Status whole_map(Lab& lab) {
  const RankFacts& facts = lab.facts;
  std::map<uint32_t, std::vector<uint32_t>> held;  // layer -> how often each expert is stated
  for (const uint16_t layer : facts.moe_layers) held[layer].resize(facts.num_experts);
  for (size_t at = 0; at + 6 <= facts.pieces.size(); at += 6) {
    const auto piece = std::span(facts.pieces).subspan(at, 6);
    const auto layer = held.find(piece[0]);
    if (layer == held.end() || piece[1] >= piece[2] || piece[2] > facts.num_experts)
      return mismatch("pieces of the model",
                      fmt::format("layer {}, experts {} to {}", piece[0], piece[1], piece[2]));
    if (piece[3] != 0 || piece[4] != facts.moe_intermediate_size)
      return mismatch("whole experts on the only rank", fmt::format("rows {} to {}", piece[3], piece[4]));
    for (uint32_t expert = piece[1]; expert < piece[2]; ++expert) ++layer->second[expert];
  }
  for (const auto& [layer, times] : held) {
    for (uint32_t expert = 0; expert < facts.num_experts; ++expert) {
      if (times[expert] != 1)
        return mismatch(fmt::format("expert {} of layer {} once among the pieces", expert, layer),
                        fmt::format("{} times", times[expert]));
    }
  }
  return {};
}

Status echoed_canaries(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::acknowledged(lab));
  for (uint16_t index = 0; index < 2; ++index) {
    const RawFrame canary = client->canary(index);
    RawFrame wanted = canary;
    wanted.header.kind = FrameKind::canary_echo;
    TANDEM_TRY(client->send(canary));
    TANDEM_ASSIGN(const Received echo, client->frame());
    if (echo.view.header.kind != FrameKind::canary_echo) return mismatch("canary_echo", echo.text());
    const Bytes bytes = wanted.encode();
    const auto [want, got] = std::ranges::mismatch(bytes, echo.bytes);
    if (want != bytes.end() || got != echo.bytes.end())
      return mismatch(fmt::format("canary {} back with every byte", index),
                      fmt::format("another byte at {}", want - bytes.begin()));
    if (echo.channel != Channel::request) return mismatch("the echo over request", "another channel");
  }
  return expect_served(*client);
}

Status fresh_session(Lab& lab) {
  TANDEM_ASSIGN(const auto one, Client::acknowledged(lab));
  TANDEM_ASSIGN(const auto two, Client::acknowledged(lab));
  if (one->session == 0 || one->incarnation == 0)
    return mismatch("a session and an incarnation that are not 0",
                    fmt::format("session {:#x}, incarnation {:#x}", one->session, one->incarnation));
  if (one->session == two->session) return mismatch("a session of its own for each connection", "the same");
  if (one->incarnation != two->incarnation) return mismatch("one incarnation of the rank", "two");
  if (one->incarnation != lab.facts.peer_incarnation)
    return mismatch("the incarnation that peer.incarnation says", fmt::format("{}", one->incarnation));
  return {};
}

}  // namespace

void add_handshake_cases(std::vector<Case>& cases) {
  cases.push_back(
      {"handshake.equal", "a hello with the rank's own settings opens a session", [](Lab& lab) -> Status {
         TANDEM_ASSIGN(const auto client, Client::serving(lab));
         return expect_served(*client);
       }});
  cases.push_back({"handshake.describe", "a hello that knows no value (-) gets them all", describe});
  cases.push_back(
      {"handshake.pieces", "the only rank states every expert of every layer, once and whole", whole_map});
  cases.push_back(
      {"handshake.session", "each connection has a session of its own in one incarnation", fresh_session});
  cases.push_back(
      {"handshake.canary_echo", "canaries come back byte by byte, as canary_echo", echoed_canaries});
  cases.push_back(hello_case(
      "key_missing", "a hello without a key is refused, naming it",
      [](std::string text) { return replaced(text, "\ntop_k=", "\nother="); }, "top_k"));
  cases.push_back(hello_case(
      "key_unknown", "a key that the rank does not know is refused, naming it",
      [](std::string text) { return text + "colour=green\n"; }, "colour"));
  cases.push_back({"handshake.key_may", "a key that begins with may. is passed over", [](Lab& lab) -> Status {
                     TANDEM_ASSIGN(const auto client, Client::greeted(lab));
                     TANDEM_TRY(client->say_hello(lab.facts.hello_text() + "may.features=colours\n"));
                     TANDEM_ASSIGN([[maybe_unused]] const Received ack, client->hello_ack());
                     return {};
                   }});
  cases.push_back(hello_case("key_twice", "a key that is given twice is refused",
                             [](std::string text) { return text + "protocol=1.0\n"; }));
  cases.push_back(hello_case("no_line", "a line that is no key=value is refused",
                             [](std::string text) { return text + "hello there\n"; }));
  cases.push_back(hello_case("no_identity", "a hello that does not say who speaks is refused",
                             [](std::string text) { return replaced(text, "peer.incarnation=1\n", ""); }));
  cases.push_back(
      hello_case("role_unknown", "a peer that is neither attention nor FFN is refused",
                 [](std::string text) { return replaced(text, "peer.role=attention", "peer.role=cook"); }));
  cases.push_back(hello_case(
      "role_ffn", "an FFN rank has nothing to exchange with a rank that is alone", [](std::string text) {
        return replaced(text, "peer.role=attention\npeer.rank=0", "peer.role=ffn\npeer.rank=1");
      }));
  cases.push_back(hello_case("no_settings", "a hello with an identity alone is refused",
                             [](std::string text) { return text.substr(0, text.find("protocol=")); }));
  const auto request = [](Client& client) { return client.request(1); };
  const auto hello = [](Client&) {
    RawFrame frame;
    frame.header.kind = FrameKind::hello;
    frame.payloads.push_back(text_payload(PayloadRole::settings, "peer.role=attention\n"));
    return frame;
  };
  cases.push_back(early("request_before_hello", "a request before the hello is refused", false, request,
                        Channel::request));
  cases.push_back(early("request_before_canaries", "a request before the canaries is refused", true, request,
                        Channel::request));
  cases.push_back(early(
      "canary_before_hello", "a canary before the hello is refused", false,
      [](Client& client) { return client.canary(0); }, Channel::request));
  cases.push_back(early("second_hello", "a second hello is refused", true, hello, Channel::control));
  cases.push_back(
      early("hello_channel", "a hello over the request channel is refused", false, hello, Channel::request));
  cases.push_back(early(
      "canary_channel", "a canary over control is refused", true,
      [](Client& client) { return client.canary(0); }, Channel::control));
  cases.push_back(early(
      "cancel_before_canaries", "a cancel before the canaries is refused", true,
      [](Client& client) { return client.plain(FrameKind::cancel); }, Channel::control));
  cases.push_back(wrong_canary("canary_order", "canary 1 before canary 0 is refused", 0,
                               [](const RankFacts&, RawFrame& canary) { canary.header.tile = 1; }));
  cases.push_back(wrong_canary("canary_count", "a canary of three is refused", 0,
                               [](const RankFacts&, RawFrame& canary) { canary.header.tiles = 3; }));
  cases.push_back(wrong_canary("canary_session", "a canary of another session is refused", 0,
                               [](const RankFacts&, RawFrame& canary) { ++canary.header.session; }));
  cases.push_back(wrong_canary("canary_incarnation", "a canary of another incarnation is refused", 1,
                               [](const RankFacts&, RawFrame& canary) { ++canary.header.incarnation; }));
  cases.push_back(wrong_canary("canary_layer", "canary 0 must be a request of a layer with experts", 0,
                               [](const RankFacts& facts, RawFrame& canary) {
                                 canary.header.layer = static_cast<uint16_t>(facts.moe_layers.back() + 1);
                               }));
  cases.push_back(wrong_canary(
      "canary_width", "canary 0 must have the agreed width", 0, [](const RankFacts& facts, RawFrame& canary) {
        RawPayload& rows = canary.payloads.front();
        rows.cols = facts.hidden_size * 2;
        rows.data.resize(rows.data.size() * 2);
        if (RawPayload* scale = canary.find(PayloadRole::activation_scale);
            scale != nullptr && scale->log2_block != 0) {
          scale->cols = (rows.cols + (1u << scale->log2_block) - 1) >> scale->log2_block;
          scale->data.resize(kMaxTileRows * dtype_bytes(scale->dtype, scale->cols));
        }
      }));
  cases.push_back(wrong_canary("canary_output", "canary 1 must have the agreed width", 1,
                               [](const RankFacts& facts, RawFrame& canary) {
                                 RawPayload& rows = canary.payloads.front();
                                 rows.cols = facts.hidden_size * 2;
                                 rows.data.resize(rows.data.size() * 2);
                               }));
  cases.push_back(
      {"handshake.goodbye", "a goodbye before the canaries ends the session", [](Lab& lab) -> Status {
         TANDEM_ASSIGN(const auto client, Client::acknowledged(lab));
         TANDEM_TRY(client->send(client->plain(FrameKind::goodbye), Channel::control));
         return expect_end(*client);
       }});
  cases.push_back(
      {"handshake.client_refuses", "a refuse of the client ends the session", [](Lab& lab) -> Status {
         TANDEM_ASSIGN(const auto client, Client::acknowledged(lab));
         RawFrame refuse = client->plain(FrameKind::refuse);
         refuse.payloads.push_back(
             {PayloadRole::error_code, DType::u32, 1, 1, bytes_of(std::vector<uint32_t>{1})});
         refuse.payloads.push_back(text_payload(PayloadRole::error_text, "conformance does not want to"));
         TANDEM_TRY(client->send(refuse, Channel::control));
         return expect_end(*client);
       }});
  cases.push_back(
      {"handshake.unfinished", "a handshake that nobody finishes ends after 5 s", [](Lab& lab) -> Status {
         TANDEM_ASSIGN(const auto client, Client::acknowledged(lab));
         return expect_end(*client, std::chrono::seconds(15));
       }});
}

}  // namespace tandem::conformance
