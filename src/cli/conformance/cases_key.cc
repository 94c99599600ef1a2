// The pre-shared key (docs/protocol.md, section 13): whoever does not prove that he has it
// gets a hello, a nonce and perhaps a bye, and not a byte more.
#include <fmt/format.h>

#include "cli/conformance/case.h"

namespace tandem::conformance {
namespace {

// The rank gives a peer 5 s for its proof.
constexpr Duration kProofLimit = std::chrono::seconds(15);
// Long enough for what the rank must not say to show on a busy machine.
constexpr Duration kQuiet = std::chrono::milliseconds(250);

std::string without_key(const RankFacts& facts) {
  return facts.carrier.security == static_cast<uint32_t>(SecurityMode::key)
             ? ""
             : "the rank has no key (--peer-key-file)";
}

// The end of the connection, and before it nothing but what tells a stranger that he is refused.
Status expect_end_of_stranger(Client& client, Duration limit) {
  const Instant deadline = now() + limit;
  while (true) {
    const Event event = client.wire().next(deadline - now());
    if (event.kind == Event::Kind::ended) return {};
    if (event.kind == Event::Kind::bye) continue;
    return mismatch("the end of the connection, and no byte but a bye before it", event.text());
  }
}

struct Asked {
  std::unique_ptr<Client> client;
  Proof proof;
};

// Hellos and nonces are exchanged: the rank awaits the proof.
Result<Asked> asked(Lab& lab) {
  TANDEM_ASSIGN(auto client, Client::silent(lab));
  TANDEM_ASSIGN(Proof proof, client->exchange_hellos(lab.facts.carrier));
  return Asked{std::move(client), std::move(proof)};
}

// What a stranger says where the proof is awaited, and the hello of attention behind it, for a rank that is
// careless enough to answer.
using Lie = std::function<Result<Bytes>(Lab&, Proof&)>;

Status lie(Lab& lab, const Lie& words, Duration limit) {
  TANDEM_ASSIGN(Asked stranger, asked(lab));
  TANDEM_ASSIGN(const Bytes said, words(lab, stranger.proof));
  TANDEM_TRY(stranger.client->wire().send(said));
  (void)stranger.client->say_hello(lab.facts.hello_text());  // it may have ended already
  return expect_end_of_stranger(*stranger.client, limit);
}

Case lie_case(const std::string& name, const std::string& expects, Lie words) {
  return {"security." + name, expects,
          [words = std::move(words)](Lab& lab) { return lie(lab, words, lab.patience()); }, without_key};
}

Bytes proof_word(Bytes value) {
  return carrier_word(TcpFrameKind::proof, value);
}

// A proof of text that differs from the right one.
Case changed_text(const std::string& name, const std::string& expects,
                  std::function<Status(Lab&, Proof&)> change) {
  return lie_case(name, expects, [change = std::move(change)](Lab& lab, Proof& proof) -> Result<Bytes> {
    TANDEM_TRY(change(lab, proof));
    TANDEM_ASSIGN(Bytes value, proof.value(*lab.security(), kConnecting));
    return proof_word(std::move(value));
  });
}

// A right proof, changed.
Case changed_proof(const std::string& name, const std::string& expects, std::function<void(Bytes&)> change) {
  return lie_case(name, expects, [change = std::move(change)](Lab& lab, Proof& proof) -> Result<Bytes> {
    TANDEM_ASSIGN(Bytes value, proof.value(*lab.security(), kConnecting));
    change(value);
    return proof_word(std::move(value));
  });
}

Status nonces_are_fresh(Lab& lab) {
  TANDEM_ASSIGN(const Asked one, asked(lab));
  TANDEM_ASSIGN(const Asked two, asked(lab));
  if (one.proof.listening_nonce == two.proof.listening_nonce)
    return mismatch("another nonce for each connection", "the same");
  if (one.proof.listening_nonce == one.proof.connecting_nonce)
    return mismatch("a nonce of the rank's own", "the one that was sent to it");
  return {};
}

Status proves_last(Lab& lab) {
  TANDEM_ASSIGN(const Asked peer, asked(lab));
  const Event early = peer.client->wire().next(kQuiet);
  if (early.kind != Event::Kind::nothing) return mismatch("nothing before the proof", early.text());
  TANDEM_ASSIGN(Bytes mine, peer.proof.value(*lab.security(), kConnecting));
  TANDEM_TRY(peer.client->wire().send(proof_word(std::move(mine))));
  const Event answer = peer.client->wire().next(lab.patience());
  TANDEM_ASSIGN(const Bytes wanted, peer.proof.value(*lab.security(), kListening));
  if (answer.kind != Event::Kind::proof) return mismatch("the rank's proof", answer.text());
  return answer.bytes == wanted ? Status{} : mismatch("the proof of the listening side", "another one");
}

// A word that has its place before the proof, in a session that serves.
Case late_word(const std::string& name, const std::string& expects, TcpFrameKind kind) {
  return {"security." + name, expects,
          [kind](Lab& lab) -> Status {
            TANDEM_ASSIGN(const auto client, Client::serving(lab));
            TANDEM_ASSIGN(const Bytes value, fresh_nonce());
            TANDEM_TRY(client->wire().send(carrier_word(kind, value)));
            return expect_end(*client);
          },
          without_key};
}

Status data_before_nonce(Lab& lab) {
  TANDEM_ASSIGN(const auto client, Client::silent(lab));
  TANDEM_TRY(client->wire().send(carrier_greeting(lab.facts.carrier)));
  (void)client->say_hello(lab.facts.hello_text());
  for (const Event::Kind kind : {Event::Kind::hello, Event::Kind::nonce}) {
    const Event event = client->wire().next(lab.patience());
    if (event.kind == Event::Kind::ended) return {};
    if (event.kind == Event::Kind::bye) break;  // it has read the message before it said a nonce
    if (event.kind != kind) return mismatch("no more than a hello and a nonce", event.text());
  }
  return expect_end_of_stranger(*client, lab.patience());
}

}  // namespace

void add_key_cases(std::vector<Case>& cases) {
  cases.push_back(
      {"security.key_nonces", "each connection gets a nonce of its own", nonces_are_fresh, without_key});
  cases.push_back({"security.key_proves_last",
                   "the rank proves that it has the key once the client has, and not before", proves_last,
                   without_key});
  cases.push_back(changed_proof("key_wrong_proof", "a proof that is none gets no byte of a result",
                                [](Bytes& value) { value.assign(value.size(), std::byte{0x5a}); }));
  cases.push_back(changed_proof("key_last_byte", "a proof that is wrong in its last byte is wrong",
                                [](Bytes& value) { value.back() ^= std::byte{1}; }));
  cases.push_back(changed_proof("key_short_proof",
                                "a proof of 16 bytes, the right ones, gets no byte of a result",
                                [](Bytes& value) { value.resize(kWordBytes / 2); }));
  cases.push_back(changed_proof("key_empty_proof", "a proof without bytes gets no byte of a result",
                                [](Bytes& value) { value.clear(); }));
  cases.push_back({"security.key_truncated_proof",
                   "half a proof and nothing behind it ends after 5 s, without a byte",
                   [](Lab& lab) -> Status {
                     TANDEM_ASSIGN(const Asked stranger, asked(lab));
                     TANDEM_ASSIGN(Bytes value, stranger.proof.value(*lab.security(), kConnecting));
                     Bytes word = proof_word(std::move(value));
                     word.resize(word.size() - kWordBytes / 2);
                     TANDEM_TRY(stranger.client->wire().send(word));
                     return expect_end_of_stranger(*stranger.client, kProofLimit);
                   },
                   without_key});
  cases.push_back({"security.key_no_proof",
                   "a client that never proves anything ends after 5 s, without a byte",
                   [](Lab& lab) -> Status {
                     TANDEM_ASSIGN(const Asked stranger, asked(lab));
                     return expect_end_of_stranger(*stranger.client, kProofLimit);
                   },
                   without_key});
  cases.push_back(lie_case("key_data_before_proof",
                           "a message in the place of the proof gets no byte of a result",
                           [](Lab&, Proof&) { return Bytes{}; }));
  cases.push_back(lie_case("key_heartbeat_before_proof", "not even a heartbeat has a place before the proof",
                           [](Lab& lab, Proof& proof) -> Result<Bytes> {
                             Bytes said = carrier_head(TcpFrameKind::heartbeat, Channel::control, 0);
                             TANDEM_ASSIGN(Bytes value, proof.value(*lab.security(), kConnecting));
                             const Bytes word = proof_word(std::move(value));
                             said.insert(said.end(), word.begin(), word.end());
                             return said;
                           }));
  cases.push_back({"security.key_data_before_nonce",
                   "a message in the place of the nonce gets no byte of a result", data_before_nonce,
                   without_key});
  cases.push_back(lie_case("key_other_side", "a proof of the listening side is none of the connecting one",
                           [](Lab& lab, Proof& proof) -> Result<Bytes> {
                             TANDEM_ASSIGN(Bytes value, proof.value(*lab.security(), kListening));
                             return proof_word(std::move(value));
                           }));
  cases.push_back(changed_text("key_other_connection", "a proof of another connection is none of this one",
                               [](Lab& lab, Proof& proof) -> Status {
                                 TANDEM_ASSIGN(const Asked other, asked(lab));
                                 proof.listening_nonce = other.proof.listening_nonce;
                                 return {};
                               }));
  cases.push_back(changed_text("key_other_nonce", "a proof of another nonce of the client is none",
                               [](Lab&, Proof& proof) -> Status {
                                 proof.connecting_nonce.front() ^= std::byte{1};
                                 return {};
                               }));
  cases.push_back(changed_text("key_other_hello", "a proof of a hello that was not said is none",
                               [](Lab& lab, Proof& proof) -> Status {
                                 CarrierNumbers adopting = lab.facts.carrier;
                                 adopting.slots = 0;
                                 proof.connecting_hello = adopting.hello();
                                 return {};
                               }));
  cases.push_back(
      late_word("key_late_nonce", "a nonce in a session that serves ends it", TcpFrameKind::nonce));
  cases.push_back(
      late_word("key_late_proof", "a proof in a session that serves ends it", TcpFrameKind::proof));
}

}  // namespace tandem::conformance
