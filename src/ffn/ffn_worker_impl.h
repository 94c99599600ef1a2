// FfnWorker::Impl: what the files of FfnWorker share. Not for anybody else.
//
// The I/O thread owns the list of sessions and their connections (ffn_worker_io.cc); the compute thread owns
// the benches, `homes` and what it took from `queue` (ffn_worker_compute.cc).
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "afd/handshake.h"
#include "ffn/exchange_links.h"
#include "ffn/ffn_worker.h"
#include "ffn/held_experts.h"
#include "ffn/home_groups.h"
#include "ffn/prepared_programs.h"
#include "ffn/session.h"
#include "ffn/tile_queue.h"
#include "transport/idle_spin.h"
#include "transport/poller.h"
#include "transport/refusal_log.h"

namespace tandem {

struct FfnWorker::Impl {
  Impl(const FfnWorkerOptions& given, MoeRun compute_rows, const MoeBlock* counted,
       std::unique_ptr<Listener> socket, Poller io_poller)
      : options(given),
        self(make_identity("ffn", given.rank)),
        block(counted),
        listener(std::move(socket)),
        poller(std::move(io_poller)),
        queue(policy_of(given), most_tiles(given), given.settings.moe_layers),
        held(options.settings, options.pieces) {
    ordinary.run = [this, whole = std::move(compute_rows)](const MoeRequest& request) {
      if (!cut) return whole(request);
      MoeRequest pieces = request;
      pieces.between = &between;
      return whole(pieces);
    };
  }

  // In the queue or in a group, one tile a credit; and a home group's own part.
  static size_t most_tiles(const FfnWorkerOptions& options) {
    const size_t sessions = size_t{options.max_sessions} + options.settings.num_ffn_ranks - 1;
    return sessions * options.slots_per_channel + 1;
  }

  static SchedulerPolicy policy_of(const FfnWorkerOptions& options) {
    SchedulerPolicy policy = options.policy;
    policy.num_experts = options.settings.num_experts;
    policy.top_k = options.settings.top_k;
    return policy;
  }

  uint32_t max_group_rows() const {
    return std::max({options.policy.max_decode_rows, options.policy.max_prefill_rows, kMaxTileRows});
  }

  // Connects to the other FFN ranks, if the options name them.
  Status start_exchange();
  bool exchanges() const { return exchange != nullptr; }

  // ---- compute thread: ffn_worker_compute.cc ----

  // What a group is computed with. A group that goes between the pieces of another one has its own.
  struct Bench {
    MoeRun run;
    MoeRoute route;                      // of home rows, where the gate is here
    TileBatch batch;                     // of eager groups
    std::vector<const TileView*> tiles;  // reused
  };

  void compute();
  // Between two pieces of a prefill group: at most one decode group, so that both go on.
  void preempt();
  // TileQueue::take_group, with the time that it waits counted.
  bool wait_for_group(std::vector<WaitingTile>& group);
  bool traced() const { return options.trace != nullptr && options.trace->on(); }
  // Holding stats_mutex. A wait that is going on counts up to now: a report between two tiles is whole.
  void count_wait();
  bool home_has_room() const { return homes == nullptr || homes->has_room(); }
  void run_group(std::vector<WaitingTile>& group, Bench& bench);
  PreparedPrograms::Choice choose_program(const std::vector<WaitingTile>& group);
  // Home tiles with the parts of others that wait beside them; neither fails for the other. `used` holds all
  // their rows; fewer are computed here where some have no slot on this rank.
  void run_homes(std::vector<WaitingTile>& group, Instant start, bool replay, TileBatch& used, Bench& bench);
  Status run_own_part(HomeGroups::Group& home, const TileView& own, std::span<WaitingTile> parts,
                      Instant start, TileBatch& used, Bench& bench);
  // Answers the home groups that are complete.
  void collect_answers();
  // One product for all; each tile on its own where that fails.
  void merge(std::span<WaitingTile> group, Instant start, TileBatch& used, Bench& bench);
  // Without merging, rows are read from the request's slot and written to the reply's.
  void run_alone(WaitingTile& waiting, Instant start, TileBatch& used, Bench& bench);
  static void let_go(WaitingTile& tile);
  static void let_go(std::vector<WaitingTile>& group);
  static FfnTimes times_of(const WaitingTile& waiting, Instant start, Instant end);
  // Returns the number of clients.
  uint64_t count_group(const std::vector<WaitingTile>& group, const PreparedPrograms::Choice& choice);
  void count_execution(const std::vector<WaitingTile>& group, const PreparedPrograms::Choice& choice);
  // `host`: of the time spent, what was not computing.
  void count_compute(bool prefill, bool replay, uint32_t spent, Duration host);
  // What the blocks have counted, whoever had them run: in the fields that are theirs.
  FfnStats counts_of_blocks() const;

  // ---- I/O thread: ffn_worker_io.cc ----

  void serve();
  // Whether somebody may be there: the poller said so, or it was not asked for a while, because messages kept
  // coming.
  bool look_at_listener();
  void close_all();
  bool done();
  // Tells every client once; a client leaves when it has nothing in flight.
  void drain_step();
  bool accept_all();
  // A connection that is no client yet; it may be refused, or make others leave.
  void admit(std::unique_ptr<Endpoint> endpoint);
  void make_room();
  bool refuse_beyond_limit(const std::shared_ptr<Session>& session);
  size_t count(Session::Phase phase) const;
  // Of those that are served: attention ranks (request) or other FFN ranks (exchange).
  size_t count_served(Channel channel) const;
  // Why FFN rank `rank` must come later; its old connection may not have ended yet.
  Status admit_ffn_rank(uint32_t rank) const;
  // The session shares the account of another one of its host, where those are weighed.
  void join_account(const Session& session);
  // What strangers cost delays the next one: see kStrangerShare. `began`: when the I/O thread turned to them.
  void charge_strangers(Instant began);
  Duration time_to_sleep() const;
  // Return whether something arrived.
  bool service(const std::shared_ptr<Session>& session);
  bool receive(const std::shared_ptr<Session>& session);
  void open_session(const std::shared_ptr<Session>& session);
  void on_message(const std::shared_ptr<Session>& session, Incoming& incoming);
  void on_request(const std::shared_ptr<Session>& session, const FrameView& frame, Incoming& incoming);
  // Whether what the tile wants is this rank's to do.
  Status check_work(const Session& session, const TileView& tile) const;
  void reject(const std::shared_ptr<Session>& session, const FrameHeader& header, const Error& error,
              Incoming& incoming);
  void refuse(const std::shared_ptr<Session>& session, const Error& error);
  void close_session(const std::shared_ptr<Session>& session, const std::string& why);
  // After the refusal has had its time to arrive: whoever reads it may end this rank.
  void note_misfit(const Error& error);
  void count_cancelled(size_t tiles);
  // Closed sessions go when the compute thread holds none of their tiles: it may be writing into their slots.
  void reap();

  const FfnWorkerOptions options;
  const PeerIdentity self;
  const MoeBlock* block = nullptr;  // behind ordinary.run, for its counts; the compute thread's
  std::unique_ptr<Listener> listener;
  static constexpr uint64_t kListenerKey = 0;
  bool listener_ready = true;  // the I/O thread's, as the next ones
  Instant listener_looked{};
  bool listening = true;     // the poller has the listener
  Instant accept_from{};     // no connection is accepted before
  Duration stranger_debt{};  // time spent on strangers, less their share of the time since
  Instant stranger_debt_at{};
  Poller poller;
  IdleSpin spin{options.may_spin};  // the I/O thread's
  TileQueue queue;
  const HeldExperts held;
  FfnAdmission admission;
  Bench ordinary, urgent;
  PreparedPrograms prepared;              // of replays
  std::vector<uint32_t> words;            // reused: the programs that a group's tiles name
  std::vector<WaitingTile> urgent_group;  // reused
  std::function<void()> between = [this] { preempt(); };
  bool cut = false;                          // the group in work runs in pieces
  Instant prefill_began;                     // of the group that is cut
  Duration preempted{}, preempted_region{};  // of it, what went between, and the computing in that
  const MoeBlock* urgent_block = nullptr;    // behind urgent.run, for its counts
  std::unique_ptr<ExchangeLinks> exchange;   // null: this rank computes what it is asked for, and asks nobody
  std::unique_ptr<HomeGroups> homes;         // with `exchange`; goes before it

  mutable std::mutex sessions_mutex;  // the I/O thread changes the list under it, others read
  std::vector<std::shared_ptr<Session>> sessions;
  uint32_t next_session = 1;
  std::string last_refusal;  // for the log
  RefusalLog refusals;       // the I/O thread's

  std::atomic<bool> stopping{false};
  std::atomic<bool> abandoning{false};  // clients are gone: groups that wait for other ranks end
  Instant drain_until{};                // set before `stopping`
  bool drain_told = false;

  mutable std::mutex stats_mutex;
  FfnStats stats;
  FfnStats counted_before;               // of the blocks, when this rank began
  std::optional<Instant> waiting_since;  // the compute thread waits for tiles; under stats_mutex as well
  bool attention_served = false;         // under stats_mutex as well
  std::optional<Error> misfit;           // under stats_mutex as well

  std::thread io, computing;
};

}  // namespace tandem
