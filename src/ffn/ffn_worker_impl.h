// FfnWorker::Impl: what the files of FfnWorker share. Not for anybody else.
//
// The I/O thread owns the list of sessions and their connections (ffn_worker_io.cc); the compute thread owns
// the benches, `homes` and what it took from `queue` (ffn_worker_compute.cc).
#pragma once

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

namespace tandem {

struct FfnWorker::Impl {
  Impl(const FfnWorkerOptions& given, MoeRun compute_rows, const MoeBlock* counted,
       std::unique_ptr<Listener> socket, Poller io_poller)
      : options(given),
        self(make_identity("ffn", given.rank)),
        block(counted),
        listener(std::move(socket)),
        poller(std::move(io_poller)),
        queue(given.policy),
        held(options.settings, options.pieces) {
    ordinary.run = [this, whole = std::move(compute_rows)](const MoeRequest& request) {
      if (!cut) return whole(request);
      MoeRequest pieces = request;
      pieces.between = &between;
      return whole(pieces);
    };
  }

  // Connects to the other FFN ranks, if the options name them.
  Status start_exchange();
  bool exchanges() const { return exchange != nullptr; }

  // ---- compute thread: ffn_worker_compute.cc ----

  // What a group is computed with. A group that goes between the pieces of another one has its own.
  struct Bench {
    MoeRun run;
    MoeRoute route;                      // of home rows, where the gate is here
    Bench ordinary, urgent;
  PreparedPrograms prepared;              // of replays
  std::vector<uint32_t> words;            // reused: the programs that a group's tiles name
  std::vector<WaitingTile> urgent_group;  // reused
  std::function<void()> between = [this] { preempt(); };
  bool cut = false;                          // the group in work runs in pieces
  Instant prefill_began;                     // of the group that is cut
  Duration preempted{}, preempted_region{};  // of it, what went between, and the computing in that
  const MoeBlock* urgent_block = nullptr;    // behind urgent.run, for its counts
  std::unique_ptr<ExchangeLinks> exchange;  // null: this rank computes what it is asked for, and asks nobody
  std::unique_ptr<HomeGroups> homes;        // with `exchange`; goes before it

  mutable std::mutex sessions_mutex;  // the I/O thread changes the list under it, others read
  std::vector<std::shared_ptr<Session>> sessions;
  uint32_t next_session = 1;
  std::string last_refusal;  // for the log

  std::atomic<bool> stopping{false};
  std::atomic<bool> abandoning{false};  // clients are gone: groups that wait for other ranks end
  Instant drain_until{};                // set before `stopping`
  bool drain_told = false;

  mutable std::mutex stats_mutex;
  FfnStats stats;
  std::optional<Error> misfit;  // under stats_mutex as well

  std::thread io, computing;
};

}  // namespace tandem
