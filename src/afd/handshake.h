// Handshake: how an attention rank and an FFN rank, or two FFN ranks, make sure that they fit, before any
// request is served.
//
//   attention (or FFN)                FFN
//   hello: identity, settings    ->
//                                <-   hello_ack: identity, settings, pieces, session   (or refuse, naming the
//                                key)
//   canary, one for each payload ->
//                                <-   canary_echo: the same bytes
//
// Both sides compare; a difference names the key, both values and both peers. Canaries have the largest size
// that requests and replies of the session can have and go over the channel of its requests: what carried
// them carries work. `numerics_id` is compared always; a difference is refused with deterministic sums and
// logged otherwise.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "afd/frame_layout.h"
#include "afd/split_settings.h"
#include "afd/topology.h"
#include "base/clock.h"
#include "transport/endpoint.h"

namespace tandem {

struct PeerIdentity {
  std::string role;  // "attention" or "ffn"
  uint32_t rank = 0;
  std::string name;  // "host:pid"
  uint32_t incarnation =
      0;  // different at every start of the process; a rank returns only through a new hello

  std::string text() const;  // "attention rank 0 (host:pid)"
};

// Identity of this process, with a fresh random incarnation.
PeerIdentity make_identity(std::string role, uint32_t rank);

// Errors of a handshake that another try cannot mend: who does not fit stays so.
bool never_fits(ErrorCode code);
// How long one try to connect may take at most: who waits for the rank hears that often why it is not there.
inline constexpr Duration kLongestTry = std::chrono::seconds(1);

// Settings whose key begins so are never compared: a peer that does not know such a one passes it over.
inline constexpr std::string_view kOptionalSettingPrefix = "may.";
// Whether two values of the setting `protocol` have the same major number.
bool same_major(std::string_view one, std::string_view other);

// What a hello or hello_ack says: who, and the settings as received, in order.
struct Hello {
  PeerIdentity peer;
  std::vector<std::pair<std::string, std::string>> settings;
};

// `states`: whether all values are in it; otherwise those that a release does not fix are left to the FFN
// rank (kUnstatedSetting).
std::string encode_hello(const PeerIdentity& self, const SplitSettings& settings, bool states = true);
// Refused: no "key=value" lines, a key given twice, a missing identity.
Result<Hello> decode_hello(std::string_view text);

// The value of a setting that an attention side leaves to the FFN rank: a client without the model's files
// does not know it, and takes what hello_ack states. Any key but `protocol`.
inline constexpr std::string_view kUnstatedSetting = "-";

// invalid_argument naming every differing key (the first few in full); what attention left to an FFN rank
// differs from nothing. Writes to the log what is only worth a warning.
Status compare_settings(const SplitSettings& ours, const PeerIdentity& self, const Hello& theirs);

// A frame without payload or with an error text, over the control channel. would_block when the channel has
// no credit.
Status send_plain(Endpoint& endpoint, FrameKind kind, uint64_t session, uint32_t incarnation);
Status send_refuse(Endpoint& endpoint, uint64_t session, uint32_t incarnation, const Error& error);

// How requests of a session travel, beyond what the settings say.
struct SessionKind {
  Channel channel = Channel::request;  // exchange: between FFN ranks
  bool parts = false;                  // requests are parts (kFramePartial); their canary is one
  bool states = true;  // of the own hello, as encode_hello; what comes back is compared in any case
};

// The canaries of a session: the request (with its routing kind), and the reply.
inline constexpr uint16_t kNumCanaries = 2;
Result<std::vector<std::byte>> make_canary(const SplitSettings& settings, uint64_t session,
                                           uint32_t incarnation, uint16_t index, bool part = false);
// The echo of a canary: the same bytes, kind canary_echo.
std::vector<std::byte> echo_canary(std::span<const std::byte> canary);

// The side that connects: performs the handshake on a new connection; the calling thread becomes the poller.
// Blocks
// until done, until `deadline`, or until `stop`. Errors that another try cannot mend have the codes
// invalid_argument, unsupported or data_loss; unavailable and deadline_exceeded may go away.
Result<FfnRankFacts> open_session(Endpoint& endpoint, const std::string& address,
                                  const SplitSettings& settings, const PeerIdentity& self, Instant deadline,
                                  const std::atomic<bool>& stop, const SessionKind& kind = {});

// Describes the rank at the other end and leaves: sends `hello_text` (encode_hello's form; settings that the
// sender does not know have the value "-"), returns what the hello_ack states, says goodbye. The calling
// thread becomes the poller; the connection is of no use afterwards. Errors as open_session.
Result<Hello> ask_settings(Endpoint& endpoint, const std::string& address, const std::string& hello_text,
                           Instant deadline, const std::atomic<bool>& stop);

// Whom an FFN rank lets in, beyond who fits. Called by its I/O thread.
struct FfnAdmission {
  bool ffn_ranks = false;  // other FFN ranks, to exchange rows
  // Why that FFN rank must come again later; a value when it may come now. Empty: always.
  std::function<Status(uint32_t rank)> ffn_rank = {};
  // Why attention ranks must come again later; a value when they may come now. Empty: always.
  std::function<Status()> attention = {};
};

// The side of an FFN rank that was connected to: fed with frames by the I/O thread, never blocks.
class FfnHandshake {
 public:
  FfnHandshake(const SplitSettings& settings, const PeerIdentity& self, std::span<const Piece> pieces,
               uint64_t session, const FfnAdmission& admission)
      : settings_(settings), self_(self), pieces_(pieces), session_(session), admission_(admission) {}

  // All canaries were echoed: requests may be served.
  bool done() const { return canaries_ == kNumCanaries && echo_.empty(); }
  bool greeted() const { return greeted_; }
  // The peer's settings differ: it was refused for that, and no other try would go better.
  bool misfit() const { return misfit_; }
  const PeerIdentity& peer() const { return peer_; }
  bool peer_is_ffn() const { return peer_.role == "ffn"; }
  // Where canaries, requests and replies travel.
  Channel channel() const { return peer_is_ffn() ? Channel::exchange : Channel::request; }

  // One frame of an unfinished handshake. An error is the reason to refuse the connection.
  Status on_frame(const FrameView& frame, Endpoint& endpoint);
  // Sends the echo that is due; call when the frame's lease has been destroyed, and after every poll.
  Status pump(Endpoint& endpoint);

 private:
  Status on_hello(const FrameView& frame, Endpoint& endpoint);
  Status admit() const;
  Status on_canary(const FrameView& frame);

  const SplitSettings& settings_;
  const PeerIdentity& self_;
  std::span<const Piece> pieces_;
  uint64_t session_;
  const FfnAdmission& admission_;
  PeerIdentity peer_;
  bool greeted_ = false, misfit_ = false;
  uint16_t canaries_ = 0;
  std::vector<std::byte> echo_;  // waits for a credit
};

}  // namespace tandem
