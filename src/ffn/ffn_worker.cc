#include "ffn/ffn_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <thread>

#include "afd/handshake.h"
#include "base/log.h"
#include "base/region_time.h"
#include "ffn/block_check.h"
#include "ffn/held_experts.h"
#include "ffn/prepared_programs.h"
#include "ffn/session.h"
#include "ffn/tile_queue.h"
#include "transport/idle_spin.h"
#include "transport/poller.h"

namespace tandem {
namespace {

constexpr size_t kReceiveBatch = 16;
constexpr uint64_t kListenerKey = 0;

// How long a refusal may take to reach the peer before the connection is dropped.
constexpr Duration kLinger = std::chrono::milliseconds(200);

}  // namespace

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

  // ---- compute thread ----

  void compute() {
    std::vector<WaitingTile> group;
    while (queue.take_group(group)) {
      run_group(group, ordinary);
      let_go(group);
      queue.group_done();
      if (stopping.load()) poller.wake();  // somebody waits for the queue to run dry
    }
  }

  static void let_go(std::vector<WaitingTile>& group) {
    for (WaitingTile& tile : group) {
      tile.lease = Lease();
      Session* session = tile.session.get();
      tile.session.reset();        // the I/O thread's list keeps it alive while it is pinned,
      session->pins.fetch_sub(1);  // and is where a connection must be destroyed
    }
    group.clear();
  }

  // Between two pieces of a prefill group: at most one decode group, so that both go on.
  void preempt() {
    const Instant start = now();
    if (!queue.take_preempting(microseconds_since(prefill_began, start - preempted), urgent_group)) return;
    const Duration computed = region_time_of_this_thread();
    run_group(urgent_group, urgent);
    let_go(urgent_group);
    preempted += now() - start;
    preempted_region += region_time_of_this_thread() - computed;
    const std::lock_guard lock(stats_mutex);
    ++stats.preemptions;
  }

  // What a group is computed with. A group that goes between the pieces of another one has its own.
  struct Bench {
    MoeRun run;
    TileBatch batch;                     // of eager groups
    std::vector<const TileView*> tiles;  // reused
  };

  void run_group(std::vector<WaitingTile>& group, Bench& bench) {
    const Instant start = now();
    const Duration computed = region_time_of_this_thread();
    const PreparedPrograms::Choice choice = choose_program(group);
    TileBatch& used = choice.program != nullptr ? choice.program->batch : bench.batch;
    const bool prefill = is_prefill(static_cast<RowClass>(group.front().tile.header.row_class));
    // A decode group replays in the same buffers as a profile group does: only eager ones are cut.
    const bool pieces = prefill && choice.program == nullptr && &bench == &ordinary && urgent.run != nullptr;
    if (pieces) {
      cut = true;
      prefill_began = start;
      preempted = preempted_region = Duration::zero();
    }
    count_group(group, choice);  // before the replies: who has a reply finds it counted
    if (group.size() > 1) {
      merge(group, start, used, bench);
    } else {
      run_alone(group.front(), start, used, bench);
    }
    Duration elapsed = now() - start;
    Duration host = elapsed - (region_time_of_this_thread() - computed);
    if (pieces) {  // what went between is counted for itself
      cut = false;
      elapsed -= preempted;
      host -= preempted - preempted_region;
    }
    const uint32_t spent = microseconds_since(start, start + elapsed);
    queue.add_served(prefill, spent);
    const std::lock_guard lock(stats_mutex);
    (prefill ? stats.prefill_us : stats.decode_us) += spent;
    (choice.program != nullptr ? stats.host_ns_replay : stats.host_ns_eager) +=
        static_cast<uint64_t>(std::max<int64_t>(std::chrono::nanoseconds(host).count(), 0));
    if (block == nullptr) return;
    stats.expert_rows = block->stats().expert_rows;
    stats.experts_read = block->stats().experts_read;
    if (urgent_block == nullptr) return;
    stats.expert_rows += urgent_block->stats().expert_rows;
    stats.experts_read += urgent_block->stats().experts_read;
  }

  PreparedPrograms::Choice choose_program(const std::vector<WaitingTile>& group) {
    words.clear();
    uint32_t rows = 0;
    for (const WaitingTile& waiting : group) {
      words.push_back(waiting.tile.header.program);
      rows += waiting.tile.header.rows;
    }
    return prepared.choose(words, rows);
  }

  void merge(std::vector<WaitingTile>& group, Instant start, TileBatch& used, Bench& bench) {
    bench.tiles.clear();
    for (const WaitingTile& waiting : group) bench.tiles.push_back(&waiting.tile);
    const Status done = used.run(bench.tiles, bench.run);
    if (!done) {
      // The block says what is wrong with the group, not with which tile: each gets its own answer.
      for (WaitingTile& waiting : group) run_alone(waiting, now(), used, bench);
      return;
    }
    const Instant end = now();
    for (size_t i = 0; i < group.size(); ++i) {
      group[i].session->reply(group[i].tile.header, times_of(group[i], start, end), used.output(i),
                              std::move(group[i].lease));
    }
  }

  // Without merging, rows are read from the request's slot and written to the reply's.
  void run_alone(WaitingTile& waiting, Instant start, TileBatch& used, Bench& bench) {
    Session& session = *waiting.session;
    const FrameHeader& header = waiting.tile.header;
    const auto layout = reply_layout(header, options.settings);
    const auto slot = layout ? session.acquire_reply(*layout) : std::unexpected(layout.error());
    Status done;
    if (slot) {
      const std::span<std::byte> out = layout->payload(slot->bytes, PayloadRole::output);
      done = used.run_in_place(waiting.tile, {out.data(), out.size(), MemorySpace::shared}, bench.run);
      if (done) {
        write_reply(*layout, times_of(waiting, start, now()), slot->bytes);
        waiting.lease = Lease();  // before the reply: whoever sees the reply sees the credit
        session.commit_reply(*slot, layout->total_bytes());
        return;
      }
      session.commit_reply(*slot, 0);
    } else {
      const TileView* tile = &waiting.tile;
      done = used.run({&tile, 1}, bench.run);
    }
    const FfnTimes times = times_of(waiting, start, now());
    if (done) {
      session.reply(header, times, used.output(0), std::move(waiting.lease));
      return;
    }
    {
      const std::lock_guard lock(stats_mutex);
      ++stats.tiles_failed;
    }
    session.reply_error(header, times, done.error(), std::move(waiting.lease));
  }

  static FfnTimes times_of(const WaitingTile& waiting, Instant start, Instant end) {
    return {.queue_us = microseconds_since(waiting.arrived, start),
            .compute_us = microseconds_since(start, end),
            .exchange_us = 0,
            .residence_us = microseconds_since(waiting.arrived, end)};
  }

  void count_group(const std::vector<WaitingTile>& group, const PreparedPrograms::Choice& choice) {
    uint64_t clients = 0;
    for (size_t i = 0; i < group.size(); ++i) {
      const auto same = [&](const WaitingTile& tile) { return tile.session == group[i].session; };
      if (std::none_of(group.begin(), group.begin() + static_cast<std::ptrdiff_t>(i), same)) ++clients;
    }
    const std::lock_guard lock(stats_mutex);
    ++stats.groups;
    count_execution(group, choice);
    stats.clients_in_groups += clients;
    stats.max_clients_in_group = std::max(stats.max_clients_in_group, clients);
    stats.tiles += group.size();
    for (const WaitingTile& tile : group) stats.rows += tile.tile.header.rows;
  }

  // stats_mutex is held.
  void count_execution(const std::vector<WaitingTile>& group, const PreparedPrograms::Choice& choice) {
    using Verdict = PreparedPrograms::Verdict;
    if (choice.verdict != Verdict::replay) {
      ++stats.eager_groups;
      stats.graph_misses += choice.verdict == Verdict::miss ? 1 : 0;
      return;
    }
    uint32_t rows = 0;
    bool profile = true;
    for (const WaitingTile& waiting : group) {
      rows += waiting.tile.header.rows;
      profile = profile && static_cast<RowClass>(waiting.tile.header.row_class) == RowClass::profile;
    }
    if (profile) {
      ++stats.graph_warmups;
      return;
    }
    ++stats.graph_replays;
    stats.graph_padded_replays += rows < choice.program->size ? 1 : 0;
  }

  // ---- I/O thread ----

  void serve() {
    while (!done()) {
      bool busy = accept_all();
      for (const auto& session : sessions) busy = service(session) || busy;
      reap();
      if (stopping.load()) drain_step();
      if (busy) spin.found();
      if (busy || spin.again()) continue;
      for (const auto& session : sessions) {
        if (session->phase() != Session::Phase::closed && !session->endpoint().arm()) busy = true;
      }
      if (busy) continue;
      std::array<uint64_t, 8> ready;
      poller.wait(options.heartbeat_interval / 2, ready);
    }
    for (const auto& session : sessions) {
      if (session->phase() == Session::Phase::closed) continue;
      (void)send_plain(session->endpoint(), FrameKind::goodbye, session->id(), self.incarnation);
      session->endpoint().poll({});
      close_session(session, "this rank stops");
    }
    while (!sessions.empty()) {  // the compute thread may hold tiles of them for one more group
      reap();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  bool done() {
    if (!stopping.load()) return false;
    const auto serving = [](const auto& session) { return session->phase() == Session::Phase::serving; };
    return now() >= drain_until || std::ranges::none_of(sessions, serving);
  }

  // Tells every client once; a client leaves when it has nothing in flight.
  void drain_step() {
    if (drain_told) return;
    drain_told = true;
    for (const auto& session : sessions) {
      if (session->phase() == Session::Phase::serving) {
        (void)send_plain(session->endpoint(), FrameKind::drain, session->id(), self.incarnation);
      } else if (session->phase() == Session::Phase::handshake) {
        refuse(session, {ErrorCode::unavailable, "this rank is stopping"});
      }
    }
  }

  bool accept_all() {
    bool any = false;
    while (true) {
      auto accepted = listener->accept();
      if (!accepted) {
        log_warning("accept: " + accepted.error().message);
        return any;
      }
      if (*accepted == nullptr) {
        if (const auto mismatch = listener->take_mismatch()) note_misfit(*mismatch);
        return any;
      }
      any = true;
      const uint64_t id = uint64_t{self.incarnation} << 32 | next_session++;
      auto session = std::make_shared<Session>(id, std::move(*accepted), options.settings, self,
                                               options.pieces, admission);
      session->phase_limit = now() + options.hello_limit;
      if (!poller.add(session->endpoint().fd(), id)) {
        log_warning(session->peer_text() + ": no file descriptors left, connection dropped");
        continue;
      }
      {
        const std::lock_guard lock(sessions_mutex);
        sessions.push_back(session);
      }
      if (stopping.load()) {
        refuse(session, {ErrorCode::unavailable, "this rank is stopping"});
      } else if (sessions.size() > options.max_sessions) {
        refuse(session,
               {ErrorCode::resource_exhausted, fmt::format("{} clients are connected, max_sessions is {}",
                                                           sessions.size() - 1, options.max_sessions)});
      }
    }
  }

  // Returns whether something arrived.
  bool service(const std::shared_ptr<Session>& session) {
    if (session->phase() == Session::Phase::closed) return false;
    std::array<Incoming, kReceiveBatch> incoming;
    const size_t count = session->endpoint().poll(incoming);
    for (size_t i = 0; i < count; ++i) on_message(session, incoming[i]);
    for (size_t i = 0; i < count; ++i) incoming[i].lease = Lease();
    if (session->phase() == Session::Phase::closed) return true;
    if (count == 0 && session->endpoint().peer() != PeerState::alive) {
      close_session(session, fmt::format("connection {}", peer_state_name(session->endpoint().peer())));
      return true;
    }
    if (session->phase() == Session::Phase::handshake) {
      const bool was_done = session->handshake().done();
      const Status pumped = session->handshake().pump(session->endpoint());
      if (!pumped) refuse(session, pumped.error());
      if (!was_done && session->handshake().done()) open_session(session);
    }
    session->pump_replies();
    if (session->phase() != Session::Phase::serving && now() >= session->phase_limit) {
      const bool late = session->phase() == Session::Phase::handshake;
      close_session(session, late ? "no finished handshake in time" : "refused");
    }
    return count != 0;
  }

  void open_session(const std::shared_ptr<Session>& session) {
    session->set_phase(Session::Phase::serving);
    log_info(fmt::format("{} connected over {}, session {:#x}", session->peer_text(),
                         session->endpoint().caps().transport, session->id()));
    const std::lock_guard lock(stats_mutex);
    ++stats.sessions_opened;
  }

  void on_message(const std::shared_ptr<Session>& session, Incoming& incoming) {
    if (session->phase() == Session::Phase::closing || session->phase() == Session::Phase::closed) return;
    const auto frame = parse_frame(incoming.lease.bytes());
    if (!frame) {
      // What this release does not know, before anything was agreed: the peer is of another one.
      if (frame.error().code == ErrorCode::unsupported && !session->handshake().greeted()) {
        session->misfit = {ErrorCode::invalid_argument,
                           fmt::format("{} (there: {}, here: {})", frame.error().message,
                                       session->peer_text(), self.text())};
      }
      return refuse(session, frame.error());
    }
    const FrameKind kind = frame->header.kind;
    const bool bulk = kind == FrameKind::ffn_request || kind == FrameKind::canary;
    if (incoming.channel != (bulk ? session->channel() : Channel::control)) {
      return refuse(session, {ErrorCode::invalid_argument,
                              fmt::format("{} over the wrong channel", frame_kind_name(kind))});
    }
    if (kind == FrameKind::goodbye) return close_session(session, "goodbye");
    if (session->phase() == Session::Phase::handshake) {
      const Status handled = session->handshake().on_frame(*frame, session->endpoint());
      if (handled) return;
      if (handled.error().code == ErrorCode::cancelled)
        return close_session(session, handled.error().message);
      if (session->handshake().misfit()) session->misfit = handled.error();
      return refuse(session, handled.error());
    }
    if (frame->header.session != session->id() || frame->header.incarnation != self.incarnation) {
      return refuse(
          session,
          {ErrorCode::invalid_argument,
           fmt::format("session {:#x} of incarnation {:#x}; this is session {:#x} of {:#x}: say hello again",
                       frame->header.session, frame->header.incarnation, session->id(), self.incarnation)});
    }
    switch (kind) {
      case FrameKind::ffn_request:
        return on_request(session, *frame, incoming);
      case FrameKind::cancel:
        return count_cancelled(queue.drop_request(*session, frame->header));
      case FrameKind::refuse:
        return close_session(session, "refused: " + read_error(*frame).message);
      default:
        return refuse(session, {ErrorCode::invalid_argument,
                                fmt::format("{} in an open session", frame_kind_name(kind))});
    }
  }

  void on_request(const std::shared_ptr<Session>& session, const FrameView& frame, Incoming& incoming) {
    const Instant arrived = now();
    const auto tile = read_request(frame, options.settings);
    if (!tile) return reject(session, frame.header, tile.error(), incoming);
    if (const Status fits = check_work(*session, *tile); !fits)
      return reject(session, frame.header, fits.error(), incoming);
    if (frame.header.rows == 0) {
      {
        const std::lock_guard lock(stats_mutex);
        ++stats.zero_row_tiles;
      }
      return session->reply(frame.header, {}, {}, std::move(incoming.lease));
    }
    {
      const std::lock_guard lock(stats_mutex);
      stats.request_ns += static_cast<uint64_t>(std::chrono::nanoseconds(now() - arrived).count());
    }
    WaitingTile waiting{session, std::move(incoming.lease), *tile, arrived};
    if (queue.push(waiting, options.max_waiting_tiles)) return;
    incoming.lease = std::move(waiting.lease);
    reject(session, frame.header,
           {ErrorCode::resource_exhausted,
            fmt::format("{} tiles of this client wait already, its quota", options.max_waiting_tiles)},
           incoming);
  }

  // Whether what the tile wants is this rank's to do.
  Status check_work(const Session&, const TileView& tile) const {
    const bool partial = tile.part.is_partial();
    if (partial && !options.settings.gate_on_attention) {
      return make_error(ErrorCode::invalid_argument,
                        "a part (flag partial) from attention, and the gate is on FFN: send whole rows");
    }
    const auto* routing = std::get_if<RoutingView>(&tile.routing);
    return routing == nullptr ? Status{} : held.check(tile.header.layer, *routing);
  }

  void reject(const std::shared_ptr<Session>& session, const FrameHeader& header, const Error& error,
              Incoming& incoming) {
    {
      const std::lock_guard lock(stats_mutex);
      ++stats.tiles_refused;
    }
    session->reply_error(header, {}, error, std::move(incoming.lease));
  }

  void refuse(const std::shared_ptr<Session>& session, const Error& error) {
    log_warning(fmt::format("{}: refused: {}", session->peer_text(), error.message));
    count_cancelled(queue.drop_session(*session));
    (void)send_refuse(session->endpoint(), session->id(), self.incarnation, error);
    session->set_phase(Session::Phase::closing);
    session->phase_limit = now() + kLinger;
    const std::lock_guard lock(stats_mutex);
    ++stats.sessions_refused;
  }

  void close_session(const std::shared_ptr<Session>& session, const std::string& why) {
    const size_t dropped = queue.drop_session(*session);
    count_cancelled(dropped);
    if (session->phase() == Session::Phase::serving) {
      log_info(fmt::format("{} left ({}), {} waiting tiles dropped", session->peer_text(), why, dropped));
      const std::lock_guard lock(stats_mutex);
      ++stats.sessions_closed;
    } else {
      log_info(fmt::format("{}: connection ended: {}", session->peer_text(), why));
    }
    poller.remove(session->endpoint().fd());
    session->close();
    if (session->misfit) note_misfit(*session->misfit);
  }

  // After the refusal has had its time to arrive: whoever reads it may end this rank.
  void note_misfit(const Error& error) {
    const std::lock_guard lock(stats_mutex);
    if (stats.sessions_opened == 0 && !misfit) misfit = error;
  }

  void count_cancelled(size_t tiles) {
    if (tiles == 0) return;
    const std::lock_guard lock(stats_mutex);
    stats.tiles_cancelled += tiles;
  }

  // Closed sessions go when the compute thread holds none of their tiles: it may be writing into their slots.
  void reap() {
    const std::lock_guard lock(sessions_mutex);
    std::erase_if(sessions, [](const std::shared_ptr<Session>& session) {
      return session->phase() == Session::Phase::closed && session->pins.load() == 0;
    });
  }

  const FfnWorkerOptions options;
  const PeerIdentity self;
  const MoeBlock* block = nullptr;  // behind `run`, for its counts; the compute thread's
  std::unique_ptr<Listener> listener;
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

  mutable std::mutex sessions_mutex;  // the I/O thread changes the list under it, others read
  std::vector<std::shared_ptr<Session>> sessions;
  uint32_t next_session = 1;

  std::atomic<bool> stopping{false};
  Instant drain_until{};  // set before `stopping`
  bool drain_told = false;

  mutable std::mutex stats_mutex;
  FfnStats stats;
  std::optional<Error> misfit;  // under stats_mutex as well

  std::thread io, computing;
};

FfnWorker::FfnWorker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FfnWorker::~FfnWorker() {
  stop(Duration::zero());
}

Result<std::unique_ptr<FfnWorker>> FfnWorker::create(const FfnWorkerOptions& options, MoeBlock& block,
                                                     MoeBlock* urgent) {
  TANDEM_TRY(check_block(options.settings, block));
  if (urgent != nullptr) TANDEM_TRY(check_block(options.settings, *urgent));
  return create(
      options, [&block](const MoeRequest& request) { return block.run(request); }, &block, urgent);
}

Result<std::unique_ptr<FfnWorker>> FfnWorker::create(const FfnWorkerOptions& options, MoeRun run) {
  return create(options, std::move(run), nullptr, nullptr);
}

Result<std::unique_ptr<FfnWorker>> FfnWorker::create(const FfnWorkerOptions& options, MoeRun run,
                                                     const MoeBlock* counted, MoeBlock* urgent) {
  TANDEM_TRY(options.settings.validate());
  if (options.rank > UINT16_MAX || options.slots_per_channel == 0 || options.max_waiting_tiles == 0) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("FFN worker: rank {}, slots_per_channel {}, max_waiting_tiles {}",
                                  options.rank, options.slots_per_channel, options.max_waiting_tiles));
  }
  EndpointOptions endpoint = options.settings.endpoint_options(options.slots_per_channel);
  endpoint.heartbeat_interval = options.heartbeat_interval;
  endpoint.silence_limit = options.silence_limit;
  TANDEM_ASSIGN(std::unique_ptr<Listener> listener, listen(options.listen_address, endpoint));
  TANDEM_ASSIGN(Poller poller, Poller::create());
  TANDEM_TRY(poller.add(listener->fd(), kListenerKey));
  auto impl =
      std::make_unique<Impl>(options, std::move(run), counted, std::move(listener), std::move(poller));
  const uint32_t max_rows =
      std::max({options.policy.max_decode_rows, options.policy.max_prefill_rows, kMaxTileRows});
  TANDEM_ASSIGN(impl->ordinary.batch, TileBatch::create(impl->options.settings, max_rows));
  if (urgent != nullptr) {
    impl->urgent_block = urgent;
    impl->urgent.run = [urgent](const MoeRequest& request) { return urgent->run(request); };
    TANDEM_ASSIGN(impl->urgent.batch, TileBatch::create(impl->options.settings, max_rows));
  }
  TANDEM_ASSIGN(impl->prepared, PreparedPrograms::create(impl->options.settings));
  const size_t most_tiles = size_t{options.max_sessions} * options.slots_per_channel;
  impl->ordinary.tiles.reserve(most_tiles);
  impl->urgent.tiles.reserve(most_tiles);
  impl->words.reserve(most_tiles);
  Impl& state = *impl;
  state.io = std::thread([&state] { state.serve(); });
  state.computing = std::thread([&state] { state.compute(); });
  return std::unique_ptr<FfnWorker>(new FfnWorker(std::move(impl)));
}

const std::string& FfnWorker::address() const {
  return impl_->listener->address();
}

void FfnWorker::stop(Duration drain_limit) {
  Impl& state = *impl_;
  if (!state.io.joinable()) return;
  state.drain_until = now() + drain_limit;
  state.stopping.store(true);
  state.poller.wake();
  state.io.join();
  state.queue.stop();
  state.computing.join();
}

std::optional<Error> FfnWorker::misfit() const {
  const std::lock_guard lock(impl_->stats_mutex);
  return impl_->misfit;
}

FfnStats FfnWorker::stats() const {
  const std::lock_guard lock(impl_->stats_mutex);
  return impl_->stats;
}

std::vector<FfnClientReport> FfnWorker::clients() const {
  std::vector<FfnClientReport> reports;
  const std::lock_guard lock(impl_->sessions_mutex);
  impl_->queue.locked([&] {
    for (const auto& session : impl_->sessions) {
      if (session->phase() != Session::Phase::serving) continue;
      reports.push_back({session->peer_text(), std::string(session->endpoint().caps().transport),
                         session->id(), session->tiles, session->rows, session->waiting_tiles});
    }
  });
  return reports;
}

}  // namespace tandem
