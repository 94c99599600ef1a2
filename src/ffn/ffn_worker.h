// FfnWorker: the FFN role. It listens, shakes hands with attention clients and other FFN ranks, queues their
// tiles by layer and class, merges what waits into grouped products, and answers with times. With several FFN
// ranks under p2p or auto it is home to rows whose experts others hold: see home_groups.h. It never reads a
// weight file: the caller loads the model and gives it the block that computes.
//
// Threads: two of its own. The I/O thread accepts, receives, keeps liveness and sends what had to wait; it
// never computes, so a slow rank is not a dead one. The compute thread picks groups (FfnScheduler), runs the
// MoE block on the caller's thread pool, and replies. The public functions may be called by any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "afd/split_settings.h"
#include "base/clock.h"
#include "base/trace_ring.h"
#include "ffn/exchange_links.h"
#include "ffn/ffn_scheduler.h"
#include "ffn/ffn_stats.h"
#include "ffn/home_groups.h"
#include "ffn/tile_batch.h"
#include "moe/expert_map.h"
#include "moe/moe_block.h"

namespace tandem {

struct FfnWorkerOptions {
  std::string listen_address = "tcp://0.0.0.0:7000";
  uint32_t rank = 0;
  SplitSettings settings;
  std::vector<Piece> pieces;  // what this rank holds: held_pieces(...)
  // Of all FFN ranks, in order of rank; needed by connectors p2p and auto with several ranks, whose FFN ranks
  // exchange rows. The own address is not used.
  std::vector<std::string> ffn_addresses;
  ExchangeKind exchange = ExchangeKind::automatic;
  // How a home chooses replicas. by_experts: such a group's parts go by alltoall, unless `exchange` is
  // allgather, whose receivers can choose by row only.
  ReplicaChoice replica_choice = ReplicaChoice::by_row;
  uint32_t slots_per_channel = 8;  // credits in each direction, for each client; equal on both sides
  uint32_t max_sessions = 64;      // clients; other FFN ranks and connections that are none yet do not count
  // Of one client, waiting here; one that sends more gets resource_exhausted for the excess. Credits bound it
  // already (slots_per_channel tiles of 64 rows); a lower quota keeps many clients from filling the queue.
  ClientQuota quota;
  ClientUnit client_unit = ClientUnit::connection;  // whose quota and share of the time
  SchedulerPolicy policy;
  Duration hello_limit = std::chrono::seconds(5);  // for a connection to finish its handshake
  Duration heartbeat_interval = EndpointOptions{}.heartbeat_interval;
  Duration silence_limit = EndpointOptions{}.silence_limit;
  // How clients and other FFN ranks must show who they are over tcp and ucx; null: not at all.
  std::shared_ptr<const PeerSecurity> security = nullptr;
  // There is a CPU for the I/O thread beside the compute threads: it looks for the next request for a bounded
  // time before it sleeps (transport/idle_spin.h).
  bool may_spin = false;
  std::function<void()> on_start = {};  // called first on the compute thread; may be empty
  // Where the compute thread records its calls and waits, while somebody asks for it; outlives the worker.
  TraceRing* trace = nullptr;
};

class FfnWorker {
 public:
  // `block` outlives the worker, which is its only user. Refused: a block that does not do what `settings`
  // say (gate, shared experts, dtypes, sums), an address that cannot be listened on.
  // `urgent`: another block of the same weights and options, which runs the decode groups that go between two
  // pieces of a prefill group. Null: decode waits until the prefill group is done.
  static Result<std::unique_ptr<FfnWorker>> create(const FfnWorkerOptions& options, MoeBlock& block,
                                                   MoeBlock* urgent = nullptr);
  // The same with any function in the block's place; `run` is called by the compute thread only.
  // `route`: where the gate is here and ranks exchange; by the compute thread as well.
  static Result<std::unique_ptr<FfnWorker>> create(const FfnWorkerOptions& options, MoeRun run,
                                                   MoeRoute route = {});
  // Like stop(0).
  ~FfnWorker();

  // Where clients connect, with the port that the system chose.
  const std::string& address() const;

  // Ends: tells clients to send nothing new, answers what waits for at most `drain_limit`, says goodbye,
  // stops both threads. Clients that have nothing in flight leave at once.
  void stop(Duration drain_limit);

  // Set for good when the rank has refused a client whose settings (or model, or release) differ, before any
  // client was served: whoever started it may want to end, so that both sides of a wrong start end. The
  // refusal has left by then. A rank that has served somebody never says it.
  std::optional<Error> misfit() const;

  FfnStats stats() const;
  std::vector<FfnClientReport> clients() const;

 private:
  struct Impl;
  static Result<std::unique_ptr<FfnWorker>> create(const FfnWorkerOptions& options, MoeRun run,
                                                   MoeRoute route, const MoeBlock* counted, MoeBlock* urgent);
  explicit FfnWorker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
