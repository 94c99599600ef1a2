// Client: a connection that speaks the protocol as attention does, up to the point where a case wants to
// differ; Lab: what the cases share. One thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "afd/frame_layout.h"
#include "cli/conformance/connection.h"
#include "cli/conformance/facts.h"
#include "cli/conformance/proof.h"
#include "cli/conformance/raw_frame.h"

namespace tandem::conformance {

// Every key that a hello_ack of protocol 1.0 states and both sides compare, beside `protocol` itself.
inline constexpr const char* kSettingKeys[] = {"model_fingerprint",
                                               "hidden_size",
                                               "num_layers",
                                               "draft_layers",
                                               "moe_layers",
                                               "hash_layers",
                                               "num_experts",
                                               "top_k",
                                               "moe_intermediate_size",
                                               "shared_intermediate_size",
                                               "vocab_size",
                                               "gate",
                                               "shared_experts",
                                               "num_ffn_ranks",
                                               "connector",
                                               "routing",
                                               "token_ids",
                                               "compute_dtype",
                                               "weights",
                                               "activation_dtype",
                                               "reply_dtype",
                                               "deterministic",
                                               "execution",
                                               "capture_sizes",
                                               "tile_rows",
                                               "numerics_id"};

// A frame of the rank. It keeps to the rules of frames, or it is not one of these.
struct Received {
  Channel channel = Channel::control;
  Bytes bytes;
  FrameView view;

  std::string text() const;  // "ffn_reply", "refuse invalid_argument: ..."
  std::string reason() const;
  uint32_t code() const;  // of a refuse or an error reply; 0: carries none
};

struct Lab;

class Client {
 public:
  // Connected, and nothing said.
  static Result<std::unique_ptr<Client>> silent(Lab& lab);
  // The carrier's hellos are exchanged, and with a key the proofs.
  static Result<std::unique_ptr<Client>> greeted(Lab& lab);
  // And hello is answered.
  static Result<std::unique_ptr<Client>> acknowledged(Lab& lab);
  // And the canaries are echoed: requests may follow.
  static Result<std::unique_ptr<Client>> serving(Lab& lab);
  explicit Client(Lab& lab, std::unique_ptr<Connection> connection)
      : lab_(lab), connection_(std::move(connection)) {}

  const RankFacts& facts() const;
  Connection& wire() { return *connection_; }
  uint64_t session = 0;
  uint32_t incarnation = 0;

  // The carrier's hellos, and with a key the nonces: the proof is next. invalid_argument: the rank knows its
  // peers by something else than this side.
  Result<Proof> exchange_hellos(const CarrierNumbers& ours);
  // And the proofs, where there is a key: from here on heartbeats are written. The rank's hello.
  Result<Bytes> greet(const CarrierNumbers& ours);

  Status say_hello(const std::string& settings);
  Result<Received> hello_ack();  // awaits it, and takes session and incarnation from it
  RawFrame canary(uint16_t index) const;
  // The next frame, whatever it is; credits and heartbeats are passed over. unavailable: the connection
  // ended, or nothing came in `limit` (0: the patience of all connections).
  Result<Received> frame(Duration limit = Duration::zero());

  // A request of rows that nobody else sends, with a step of its own.
  RawFrame request(uint32_t rows);
  RawFrame request(const RequestShape& shape);
  Status send(const RawFrame& frame, Channel channel = Channel::request);
  // Control frames without payload: cancel names `request`.
  RawFrame plain(FrameKind kind, const RawFrame* request = nullptr) const;

 private:
  // Until the slots of the handshake have come back: cases begin with all of them.
  void await_slots();

  Lab& lab_;
  std::unique_ptr<Connection> connection_;
  uint32_t step_ = 0;
};

struct Lab {
  HostPort peer;
  RankFacts facts;
  ConnectionList connections;
  // A session that does nothing wrong while the cases do: it must be served after every one of them.
  std::unique_ptr<Client> bystander;

  // Learns the facts: a hello that takes the rank's numbers and settings. `security`: how the rank knows its
  // peers, null: not at all.
  static Result<std::unique_ptr<Lab>> open(const HostPort& peer, Duration patience,
                                           std::shared_ptr<const PeerSecurity> security);
  Duration patience() const { return connections.patience; }
  const PeerSecurity* security() const { return connections.security.get(); }
  SecurityMode mode() const { return security() == nullptr ? SecurityMode::none : security()->mode(); }
};

}  // namespace tandem::conformance
