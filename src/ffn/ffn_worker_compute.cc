// The compute thread of FfnWorker: picks groups, runs the block, replies.
#include <algorithm>

#include "base/log.h"
#include "base/region_time.h"
#include "ffn/ffn_worker_impl.h"

namespace tandem {

void FfnWorker::Impl::compute() {
  if (options.on_start) options.on_start();
  std::vector<WaitingTile> group;
  group.reserve(most_tiles(options));
  while (wait_for_group(group)) {
    if (homes != nullptr) collect_answers();
    if (!group.empty()) run_group(group, ordinary);
    let_go(group);
    queue.group_done();
    if (homes != nullptr) {
      const std::lock_guard lock(stats_mutex);
      stats.exchange = homes->stats();
    }
    if (stopping.load()) poller.wake();  // somebody waits for the queue to run dry
  }
}

void FfnWorker::Impl::collect_answers() {
  const uint64_t replay = homes->host_ns_replay(), eager = homes->host_ns_eager();
  homes->collect();
  if (abandoning.load()) homes->fail_all({ErrorCode::unavailable, "this rank stops"});
  const std::lock_guard lock(stats_mutex);
  stats.host_ns_replay += homes->host_ns_replay() - replay;
  stats.host_ns_eager += homes->host_ns_eager() - eager;
}

bool FfnWorker::Impl::wait_for_group(std::vector<WaitingTile>& group) {
  if (options.trace != nullptr) options.trace->turn();
  const Instant began = now();
  const bool others_owe = homes != nullptr && homes->parked() > 0;
  {
    const std::lock_guard lock(stats_mutex);
    waiting_since = began;
  }
  const bool taken = queue.take_group(group, home_has_room());
  if (traced()) {
    options.trace->add({.begin_ns = trace_time(began),
                        .end_ns = trace_time(now()),
                        .rank = static_cast<uint16_t>(others_owe ? 1 : 0),
                        .kind = TraceKind::wait});
  }
  if (options.trace != nullptr) options.trace->turn();  // it may have been a long wait
  const std::lock_guard lock(stats_mutex);
  count_wait();
  waiting_since.reset();
  return taken;
}

void FfnWorker::Impl::count_wait() {
  if (!waiting_since) return;
  const Instant at = now();
  stats.wait_us += static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(at - *waiting_since).count());
  waiting_since = at;
}

void FfnWorker::Impl::let_go(WaitingTile& tile) {
  tile.lease = Lease();
  Session* session = tile.session.get();
  tile.session.reset();        // the I/O thread's list keeps it alive while it is pinned,
  session->pins.fetch_sub(1);  // and is where a connection must be destroyed
}

void FfnWorker::Impl::let_go(std::vector<WaitingTile>& group) {
  for (WaitingTile& tile : group) {
    if (tile.session != nullptr) let_go(tile);  // the others are parked with their home group
  }
  group.clear();
}

void FfnWorker::Impl::preempt() {
  const Instant start = now();
  const double running_us = microseconds_since(prefill_began, start - preempted);
  if (!queue.take_preempting(running_us, urgent_group, home_has_room())) return;
  const Duration computed = region_time_of_this_thread();
  run_group(urgent_group, urgent);
  let_go(urgent_group);
  preempted += now() - start;
  preempted_region += region_time_of_this_thread() - computed;
  const std::lock_guard lock(stats_mutex);
  ++stats.preemptions;
}

void FfnWorker::Impl::run_group(std::vector<WaitingTile>& group, Bench& bench) {
  const Instant start = now();
  const Duration computed = region_time_of_this_thread();
  const auto is_part = [](const WaitingTile& waiting) { return waiting.tile.part.is_partial(); };
  const bool home = exchanges() && !std::ranges::all_of(group, is_part);
  PreparedPrograms::Choice choice = choose_program(group);
  if (home && choice.program != nullptr && !homes->has_prepared())
    choice = {PreparedPrograms::Verdict::miss, nullptr};
  const bool prefill = is_prefill(static_cast<RowClass>(group.front().tile.header.row_class));
  // A decode group replays in the same buffers as a profile group does: only eager ones are cut.
  const bool pieces = prefill && choice.program == nullptr && &bench == &ordinary && urgent.run != nullptr;
  if (pieces) {
    cut = true;
    prefill_began = start;
    preempted = preempted_region = Duration::zero();
  }
  const uint64_t clients = count_group(group, choice);  // before the replies: who has one finds it counted
  TraceEvent call{.begin_ns = trace_time(start),
                  .name = choice.program != nullptr ? 1u : 0u,
                  .layer = group.front().tile.header.layer,
                  .lane = static_cast<uint16_t>(group.size()),
                  .rank = static_cast<uint16_t>(clients),
                  .kind = TraceKind::call,
                  .row_class = group.front().tile.header.row_class};
  for (const WaitingTile& waiting : group) call.rows += waiting.tile.header.rows;
  TileBatch& used = choice.program != nullptr ? choice.program->batch : bench.batch;
  if (home) {
    run_homes(group, start, choice.program != nullptr, used, bench);
  } else {
    merge(group, start, used, bench);
  }
  const Instant end = now();
  if (traced()) {
    call.end_ns = trace_time(end);
    options.trace->add(call);
  }
  Duration elapsed = end - start;
  Duration host = elapsed - (region_time_of_this_thread() - computed);
  if (pieces) {  // what went between is counted for itself
    cut = false;
    elapsed -= preempted;
    host -= preempted - preempted_region;
  }
  count_compute(prefill, choice.program != nullptr, microseconds_since(start, start + elapsed), host);
}

void FfnWorker::Impl::count_compute(bool prefill, bool replay, uint32_t spent, Duration host) {
  queue.add_served(prefill, spent);
  const std::lock_guard lock(stats_mutex);
  (prefill ? stats.prefill_us : stats.decode_us) += spent;
  (replay ? stats.host_ns_replay : stats.host_ns_eager) +=
      static_cast<uint64_t>(std::max<int64_t>(std::chrono::nanoseconds(host).count(), 0));
  const FfnStats counted = counts_of_blocks();
  for (const auto field : {&FfnStats::expert_rows, &FfnStats::experts_read, &FfnStats::bytes_read,
                           &FfnStats::router_calls, &FfnStats::router_ns})
    stats.*field = counted.*field - counted_before.*field;
}

FfnStats FfnWorker::Impl::counts_of_blocks() const {
  FfnStats counted;
  for (const MoeBlock* each : {block, urgent_block}) {
    if (each == nullptr) continue;
    counted.expert_rows += each->stats().expert_rows;
    counted.experts_read += each->stats().experts_read;
    counted.bytes_read += each->stats().bytes_read;
    counted.router_calls += each->router_times().calls;
    counted.router_ns += each->router_times().nanoseconds;
  }
  return counted;
}

PreparedPrograms::Choice FfnWorker::Impl::choose_program(const std::vector<WaitingTile>& group) {
  words.clear();
  uint32_t rows = 0;
  for (const WaitingTile& waiting : group) {
    words.push_back(waiting.tile.header.program);
    rows += waiting.tile.header.rows;
  }
  return prepared.choose(words, rows);
}

void FfnWorker::Impl::run_homes(std::vector<WaitingTile>& group, Instant start, bool replay, TileBatch& used,
                                Bench& bench) {
  // Not a stable one, which allocates: no bit depends on the order of rows.
  const auto guests = std::partition(
      group.begin(), group.end(), [](const WaitingTile& waiting) { return !waiting.tile.part.is_partial(); });
  const std::span<WaitingTile> mine(group.begin(), guests);
  const std::span<WaitingTile> parts(guests, group.end());
  HomeGroups::Group* home =
      homes->begin(mine, start, bench.route, replay);  // what others have to do is under way now
  const TileView* own = home != nullptr ? homes->own_part(*home) : nullptr;
  if (own != nullptr) {
    Status done = run_own_part(*home, *own, parts, start, used, bench);
    const bool parts_too = done.has_value();
    // Whose fault it was shows when each is computed without the other.
    if (!done && !parts.empty()) done = run_own_part(*home, *own, {}, start, used, bench);
    done ? homes->own_done(home) : homes->fail(home, done.error());
    if (parts_too) return;
  } else if (home != nullptr) {
    homes->own_done(home);
  }
  if (!parts.empty()) merge(parts, start, used, bench);
}

Status FfnWorker::Impl::run_own_part(HomeGroups::Group& home, const TileView& own,
                                     std::span<WaitingTile> parts, Instant start, TileBatch& used,
                                     Bench& bench) {
  TANDEM_ASSIGN(const Buffer sums, homes->own_sums(home));
  // All rows of the group and nothing else: from where they lie to where their sums go.
  if (parts.empty() && own.part.row_index.empty()) return used.run_in_place(own, sums, bench.run);
  bench.tiles.assign(1, &own);
  for (const WaitingTile& waiting : parts) bench.tiles.push_back(&waiting.tile);
  TANDEM_TRY(used.run(bench.tiles, bench.run));
  const Instant end = now();
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].session->reply(parts[i].tile.header, times_of(parts[i], start, end), used.output(i + 1),
                            std::move(parts[i].lease));
  }
  std::ranges::copy(used.output(0), sums.data);
  return {};
}

void FfnWorker::Impl::merge(std::span<WaitingTile> group, Instant start, TileBatch& used, Bench& bench) {
  if (group.size() == 1) return run_alone(group.front(), start, used, bench);
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

void FfnWorker::Impl::run_alone(WaitingTile& waiting, Instant start, TileBatch& used, Bench& bench) {
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

FfnTimes FfnWorker::Impl::times_of(const WaitingTile& waiting, Instant start, Instant end) {
  return {.queue_us = microseconds_since(waiting.arrived, start),
          .compute_us = microseconds_since(start, end),
          .exchange_us = 0,
          .residence_us = microseconds_since(waiting.arrived, end)};
}

uint64_t FfnWorker::Impl::count_group(const std::vector<WaitingTile>& group,
                                      const PreparedPrograms::Choice& choice) {
  uint64_t clients = 0;
  for (size_t i = 0; i < group.size(); ++i) {
    const auto same = [&](const WaitingTile& tile) { return tile.session == group[i].session; };
    if (std::none_of(group.begin(), group.begin() + static_cast<std::ptrdiff_t>(i), same)) ++clients;
  }
  const std::lock_guard lock(stats_mutex);
  ++stats.groups;
  count_execution(group, choice);
  stats.clients_in_groups += clients;
  const auto bound = std::ranges::lower_bound(FfnStats::kClientBounds, clients);
  ++stats.groups_of_clients[static_cast<size_t>(bound - FfnStats::kClientBounds.begin())];
  stats.max_clients_in_group = std::max(stats.max_clients_in_group, clients);
  stats.tiles += group.size();
  for (const WaitingTile& tile : group) stats.rows += tile.tile.header.rows;
  return clients;
}

// stats_mutex is held.
void FfnWorker::Impl::count_execution(const std::vector<WaitingTile>& group,
                                      const PreparedPrograms::Choice& choice) {
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

}  // namespace tandem
