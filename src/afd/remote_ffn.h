// RemoteFfn: the FfnPort whose experts live in one FFN process: connector p2p with one FFN rank, each of the
// connections of a MultiRankFfn, and each of those between FFN ranks (ffn/exchange_links.h). A request is cut
// into tiles of at most 64 rows, written straight into the endpoint's slots under its credits; what finds no
// credit waits here and leaves as replies come back, so a request may have any number of tiles.
//
// Threads: the FfnPort functions belong to one thread, the lane executor. An I/O thread of its own receives,
// keeps liveness, checks deadlines, and reconnects: when the connection is lost every request in flight
// completes with `unavailable` naming the peer, `health` and `submit` say so, and a new connection with a
// full handshake is tried every `reconnect_interval`; when it stands, requests are taken again.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "afd/split_settings.h"
#include "afd/tile_frame.h"
#include "afd/topology.h"
#include "moe/expert_map.h"
#include "moe/ffn_port.h"
#include "moe/replica_choice.h"

namespace tandem {

struct RemoteFfnOptions {
  std::vector<std::string> addresses;  // of FFN rank 0, 1, ...; RemoteFfn takes one, MultiRankFfn any number
  uint32_t ffn_rank = 0;               // that the peer must be
  // The peer may hold any part of the experts: whoever owns the connection assembles the map. A rank that
  // comes back must hold what it held before.
  bool holds_part = false;
  // Of this side: an attention rank, or an FFN rank that sends parts of rows to another one over
  // Channel::exchange.
  std::string role = "attention";
  uint32_t attention_rank = 0;  // its number within its role
  // Called whenever a completion was added, by any thread: it must not call back. For an owner that waits for
  // something else than `wait_fd`, which stays silent then. May be empty.
  std::function<void()> notify = {};
  SplitSettings settings;
  // A client of somebody's pool, which learned `settings` from it: hellos leave everything to the rank, so
  // that one that comes back with others is refused here by name, and does not end itself for it.
  bool states_settings = true;
  // How this side chooses replicas where it dispatches (m2n). Its own affair: a part says what it is.
  ReplicaChoice replica_choice = ReplicaChoice::by_row;
  uint32_t slots_per_channel = 8;  // credits in each direction: two lanes of tiles with room to spare
  uint32_t max_in_flight = 256;    // requests; `submit` answers would_block beyond
  // How long `create` waits for FFN ranks: they load most of the weights and may be started later.
  Duration start_limit = std::chrono::minutes(30);
  const std::atomic<bool>* give_up = nullptr;  // set by a signal handler, say: ends the waiting (cancelled)
  Duration handshake_limit = std::chrono::seconds(5);  // each connection; a handshake is four small messages
  Duration reconnect_interval = std::chrono::milliseconds(100);
  // A request without a deadline of its own fails when the peer lives but has answered nothing at all for
  // this long: only a lost reply or a kernel that hangs explains that.
  Duration reply_limit = std::chrono::seconds(60);
  Duration heartbeat_interval = EndpointOptions{}.heartbeat_interval;
  Duration silence_limit = EndpointOptions{}.silence_limit;
  // How peers must know each other over tcp and ucx; null: not at all.
  std::shared_ptr<const PeerSecurity> security = nullptr;
  // There is a CPU for the I/O thread beside the compute threads: it looks for the next reply for a bounded
  // time before it sleeps (transport/idle_spin.h).
  bool may_spin = false;
};

// Counts since the start.
struct RemoteFfnStats {
  uint64_t requests = 0, tiles_sent = 0, replies = 0;
  uint64_t replies_dropped = 0;  // late: cancelled, past their deadline
  uint64_t failures = 0;         // requests completed with an error
  uint64_t connections = 0;      // handshakes done
};

// One FFN rank as its connection sees it now.
struct RankState {
  uint32_t rank = 0;
  std::string address, name, transport;  // name and transport: as of the latest connection
  uint64_t session = 0;
  size_t num_pieces = 0;
  bool up = false;
  std::string reason;  // why it is not up
};

class RemoteFfn final : public FfnPort {
 public:
  // Blocks until the FFN rank has shaken hands or `start_limit` is over (deadline_exceeded, saying what was
  // waited for). What another try cannot mend (settings that differ, missing experts, a wrong address) fails
  // at once, by name.
  static Result<std::unique_ptr<RemoteFfn>> create(const RemoteFfnOptions& options);
  // The same without blocking: `start` begins to connect, `start_result` says what came of it: nothing yet, a
  // connection, or an error that another try cannot mend.
  static Result<std::unique_ptr<RemoteFfn>> start(const RemoteFfnOptions& options);
  std::optional<Status> start_result() const;
  // Nobody writes any request's `out` afterwards.
  ~RemoteFfn() override;

  const FfnTraits& traits() const override;
  Result<Ticket> submit(const FfnRequest& request) override;
  // A request that is a part of a larger one: of the rows part.row_index[0], part.row_index[1], ... of
  // request.in; everything else is in that order. What `part` points to stays valid until completion.
  Result<Ticket> submit(const FfnRequest& request, const RequestPart& part);
  size_t poll(std::span<Completion> out) override;
  void cancel(Ticket ticket) override;
  int wait_fd() const override;
  Status health() const override;

  // Any thread.
  bool up() const;  // requests are taken now
  RemoteFfnStats stats() const;
  RankState rank_state() const;
  FfnRankFacts peer() const;                     // as of the last handshake
  std::string transport() const;                 // "tcp", "ucx", "shm", "inproc"
  std::shared_ptr<const ExpertMap> map() const;  // null when the peer holds a part
  // Why there is no connection, or why there was none last.
  std::string waiting_for() const;

 private:
  struct Impl;
  explicit RemoteFfn(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
