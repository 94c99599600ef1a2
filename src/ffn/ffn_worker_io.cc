// The I/O thread of FfnWorker: accepts, receives, keeps sessions and their handshakes, never computes.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/log.h"
#include "ffn/ffn_worker_impl.h"

namespace tandem {
namespace {

constexpr size_t kReceiveBatch = 16;

// How long a refusal may take to reach the peer before the connection is dropped.
constexpr Duration kLinger = std::chrono::milliseconds(200);

// Connections that are no clients (yet, or any more) at once: a whole deployment's ranks that come back
// together find room, and what they hold (slots for the largest messages) stays small beside the clients'.
constexpr size_t kMostUnopened = 16;

// While there are clients, the I/O thread spends no more than one part of its time in so many on connections
// that are none: requests wait for a hello now and then, not for a flood of them.
constexpr int kStrangerShare = 10;
// What it may spend on them at once before that counts. A handshake takes a millisecond or two, so the ranks
// of a deployment that come together notice nothing.
constexpr Duration kStrangerBurst = std::chrono::milliseconds(50);
// One costly connection (shm maps its memory in tens of milliseconds) keeps the next one out no longer than
// this.
constexpr Duration kLongestPause = std::chrono::milliseconds(200);

}  // namespace

void FfnWorker::Impl::serve() {
  while (!done()) {
    bool busy = look_at_listener() && accept_all();
    for (const auto& session : sessions) busy = service(session) || busy;
    reap();
    if (stopping.load()) drain_step();
    if (exchanges() && !exchange->is_ready()) {
      const Status ready = exchange->ready();
      if (!ready && ready.error().code != ErrorCode::unavailable) note_misfit(ready.error());
    }
    if (busy) spin.found();
    if (busy || spin.again()) continue;
    for (const auto& session : sessions) {
      if (session->phase() != Session::Phase::closed && !session->endpoint().arm()) busy = true;
    }
    if (busy) continue;
    std::array<uint64_t, 8> ready;
    const size_t count = poller.wait(time_to_sleep(), ready);
    listener_ready = std::ranges::count(std::span(ready).first(count), kListenerKey) != 0;
  }
  close_all();
}

Duration FfnWorker::Impl::time_to_sleep() const {
  const Duration most = options.heartbeat_interval / 2;
  return listening ? most : std::clamp<Duration>(accept_from - now(), Duration::zero(), most);
}

void FfnWorker::Impl::charge_strangers(Instant began) {
  if (count(Session::Phase::serving) == 0) return;
  const Instant at = now();
  stranger_debt =
      std::max<Duration>(stranger_debt - (at - stranger_debt_at) / kStrangerShare, Duration::zero());
  stranger_debt_at = at;
  stranger_debt += at - began;
  if (stranger_debt <= kStrangerBurst) return;
  accept_from = at + std::min<Duration>(kStrangerShare * (stranger_debt - kStrangerBurst), kLongestPause);
  // One that is paused must not wake the thread for connections that wait: they wait in the system's queue.
  if (std::exchange(listening, false)) poller.remove(listener->fd());
}

bool FfnWorker::Impl::look_at_listener() {
  const Instant at = now();
  if (!listening) {
    if (at < accept_from) return false;
    listening = poller.add(listener->fd(), kListenerKey).has_value();
    listener_ready = true;
  }
  if (!std::exchange(listener_ready, false) && at - listener_looked < options.heartbeat_interval / 2)
    return false;
  listener_looked = at;
  return true;
}

void FfnWorker::Impl::close_all() {
  for (const auto& session : sessions) {
    if (session->phase() == Session::Phase::closed) continue;
    (void)send_plain(session->endpoint(), FrameKind::goodbye, session->id(), self.incarnation);
    session->endpoint().poll({});
    close_session(session, "this rank stops");
  }
  abandoning.store(true);
  queue.wake();
  while (!sessions.empty()) {  // the compute thread may hold tiles of them for one more group
    reap();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool FfnWorker::Impl::done() {
  if (!stopping.load()) return false;
  const auto serving = [](const auto& session) { return session->phase() == Session::Phase::serving; };
  return now() >= drain_until || std::ranges::none_of(sessions, serving);
}

void FfnWorker::Impl::drain_step() {
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

bool FfnWorker::Impl::accept_all() {
  bool any = false;
  while (listening) {
    const Instant began = now();
    auto accepted = listener->accept();
    if (!accepted) {
      log_warning("accept: " + accepted.error().message);
      return any;
    }
    if (*accepted == nullptr) {
      if (const auto mismatch = listener->take_mismatch()) note_misfit(*mismatch);
      charge_strangers(began);
      return any;
    }
    any = true;
    admit(std::move(*accepted));
    charge_strangers(began);
  }
  return any;
}

void FfnWorker::Impl::admit(std::unique_ptr<Endpoint> endpoint) {
  const uint64_t id = uint64_t{self.incarnation} << 32 | next_session++;
  auto session =
      std::make_shared<Session>(id, std::move(endpoint), options.settings, self, options.pieces, admission);
  session->phase_limit = now() + options.hello_limit;
  if (!poller.add(session->endpoint().fd(), id)) {
    log_warning(session->peer_text() + ": no file descriptors left, connection dropped");
    return;
  }
  make_room();
  {
    const std::lock_guard lock(sessions_mutex);
    sessions.push_back(session);
  }
  if (stopping.load()) {
    refuse(session, {ErrorCode::unavailable, "this rank is stopping"});
  } else {
    refuse_beyond_limit(session);
  }
}

size_t FfnWorker::Impl::count(Session::Phase phase) const {
  return static_cast<size_t>(
      std::ranges::count_if(sessions, [&](const auto& session) { return session->phase() == phase; }));
}

size_t FfnWorker::Impl::count_served(Channel channel) const {
  return static_cast<size_t>(std::ranges::count_if(sessions, [&](const auto& session) {
    return session->phase() == Session::Phase::serving && session->channel() == channel;
  }));
}

Status FfnWorker::Impl::admit_ffn_rank(uint32_t rank) const {
  for (const auto& session : sessions) {
    if (session->phase() != Session::Phase::serving || session->channel() != Channel::exchange ||
        session->handshake().peer().rank != rank)
      continue;
    return make_error(
        ErrorCode::unavailable,
        fmt::format("{} is connected already: one connection for each FFN rank", session->peer_text()));
  }
  return {};
}

void FfnWorker::Impl::join_account(const Session& session) {
  for (const auto& other : sessions) {
    if (other.get() == &session || other->phase() != Session::Phase::serving ||
        other->channel() != session.channel() || other->host() != session.host())
      continue;
    queue.locked([&] { session.load().account = other->load().account; });
    return;
  }
}

bool FfnWorker::Impl::refuse_beyond_limit(const std::shared_ptr<Session>& session) {
  // Other FFN ranks have places of their own, one each: clients cannot keep one out that comes back. Who it
  // is shows in the hello.
  const bool greeted = session->handshake().greeted();
  if (greeted && session->channel() == Channel::exchange) {
    const Status alone = admit_ffn_rank(session->handshake().peer().rank);
    if (!alone) refuse(session, alone.error());
    return !alone;
  }
  const bool may_be_rank =
      !greeted && exchanges() && count_served(Channel::exchange) + 1 < options.settings.num_ffn_ranks;
  const size_t clients = count_served(Channel::request);
  if (clients < options.max_sessions || may_be_rank) return false;
  refuse(session, {ErrorCode::resource_exhausted,
                   fmt::format("{} clients are connected, max_sessions is {} (afd.max_clients)", clients,
                               options.max_sessions)});
  return true;
}

void FfnWorker::Impl::make_room() {
  if (count(Session::Phase::handshake) + count(Session::Phase::closing) < kMostUnopened) return;
  // Who was refused has had its answer; who said nothing goes before who said a hello that fits; oldest
  // first.
  const auto rank = [](const std::shared_ptr<Session>& session) {
    if (session->phase() == Session::Phase::closing) return 0;
    if (session->phase() == Session::Phase::handshake) return session->handshake().greeted() ? 2 : 1;
    return 3;
  };
  const auto goes = std::ranges::min_element(sessions, {}, rank);
  close_session(*goes, "it made room for later connections");
  const std::lock_guard lock(stats_mutex);
  ++stats.connections_dropped;
}

bool FfnWorker::Impl::service(const std::shared_ptr<Session>& session) {
  if (session->phase() == Session::Phase::closed) return false;
  if (session->phase() == Session::Phase::serving) return receive(session);
  const Instant began = now();
  const bool came = receive(session);
  if (came) charge_strangers(began);
  return came;
}

bool FfnWorker::Impl::receive(const std::shared_ptr<Session>& session) {
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

void FfnWorker::Impl::open_session(const std::shared_ptr<Session>& session) {
  if (refuse_beyond_limit(session)) return;  // others were faster since it was let in
  if (session->channel() == Channel::exchange) queue.locked([&] { session->load().exempt = true; });
  if (options.client_unit == ClientUnit::host) join_account(*session);
  session->set_phase(Session::Phase::serving);
  log_info(fmt::format("{} connected over {}, session {:#x}", session->peer_text(),
                       session->endpoint().caps().transport, session->id()));
  const std::lock_guard lock(stats_mutex);
  ++stats.sessions_opened;
  attention_served = attention_served || session->channel() == Channel::request;
}

void FfnWorker::Impl::on_message(const std::shared_ptr<Session>& session, Incoming& incoming) {
  if (session->phase() == Session::Phase::closing || session->phase() == Session::Phase::closed) return;
  const auto frame = parse_frame(incoming.lease.bytes());
  if (!frame) {
    // What this release does not know, before anything was agreed: the peer is of another one.
    if (frame.error().code == ErrorCode::unsupported && !session->handshake().greeted()) {
      session->misfit = {
          ErrorCode::invalid_argument,
          fmt::format("{} (there: {}, here: {})", frame.error().message, session->peer_text(), self.text())};
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
    if (handled.error().code == ErrorCode::cancelled) return close_session(session, handled.error().message);
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

void FfnWorker::Impl::on_request(const std::shared_ptr<Session>& session, const FrameView& frame,
                                 Incoming& incoming) {
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
  const Status queued = queue.push(waiting, options.quota);
  if (queued) return;
  incoming.lease = std::move(waiting.lease);
  {
    const std::lock_guard lock(stats_mutex);
    ++stats.tiles_over_quota;
  }
  reject(session, frame.header, queued.error(), incoming);
}

Status FfnWorker::Impl::check_work(const Session& session, const TileView& tile) const {
  const auto refusal = [](std::string message) {
    return make_error(ErrorCode::invalid_argument, std::move(message));
  };
  const bool from_ffn = session.channel() == Channel::exchange;
  const auto* routing = std::get_if<RoutingView>(&tile.routing);
  if (!tile.part.is_partial()) {
    if (from_ffn) return refusal("whole rows from an FFN rank: FFN ranks send parts (flag partial)");
    if (exchanges()) return exchange->ready();
    if (options.settings.num_ffn_ranks > 1) {
      return refusal("whole rows, and this rank does not exchange: connector m2n sends parts (flag partial)");
    }
    return routing == nullptr ? Status{} : held.check(tile.header.layer, *routing);
  }
  if (!from_ffn && !options.settings.gate_on_attention) {
    return refusal("a part (flag partial) from attention, and the gate is on FFN: send whole rows");
  }
  if (!tile.part.by_map()) return held.check(tile.header.layer, *routing);
  if (!from_ffn) return refusal("flag by_map from attention: only FFN ranks share a map");
  TANDEM_TRY(exchange->ready());
  if (tile.header.map_epoch == exchange->map_epoch()) return {};
  return refusal(fmt::format("expert map {:#x} there, {:#x} here: the ranks state other experts than before",
                             tile.header.map_epoch, exchange->map_epoch()));
}

void FfnWorker::Impl::reject(const std::shared_ptr<Session>& session, const FrameHeader& header,
                             const Error& error, Incoming& incoming) {
  {
    const std::lock_guard lock(stats_mutex);
    ++stats.tiles_refused;
  }
  session->reply_error(header, {}, error, std::move(incoming.lease));
}

void FfnWorker::Impl::refuse(const std::shared_ptr<Session>& session, const Error& error) {
  // A rank that waits for others refuses every attempt of everybody: said once for each reason.
  const std::string text = fmt::format("{}: refused: {}", session->peer_text(), error.message);
  if (error.code != ErrorCode::unavailable) {
    refusals.add(text);
  } else if (error.message != last_refusal) {
    last_refusal = error.message;
    log_info(text);
  }
  count_cancelled(queue.drop_session(*session));
  (void)send_refuse(session->endpoint(), session->id(), self.incarnation, error);
  const bool served = session->phase() == Session::Phase::serving;
  session->set_phase(Session::Phase::closing);
  session->phase_limit = now() + kLinger;
  const std::lock_guard lock(stats_mutex);
  ++stats.sessions_refused;
  if (served) ++stats.sessions_closed;
}

void FfnWorker::Impl::close_session(const std::shared_ptr<Session>& session, const std::string& why) {
  const size_t dropped = queue.drop_session(*session);
  count_cancelled(dropped);
  if (session->phase() == Session::Phase::serving) {
    log_info(fmt::format("{} left ({}), {} waiting tiles dropped", session->peer_text(), why, dropped));
    const std::lock_guard lock(stats_mutex);
    ++stats.sessions_closed;
  } else {
    log_debug(fmt::format("{}: connection ended: {}", session->peer_text(), why));
  }
  poller.remove(session->endpoint().fd());
  session->close();
  if (session->misfit) note_misfit(*session->misfit);
}

void FfnWorker::Impl::note_misfit(const Error& error) {
  const std::lock_guard lock(stats_mutex);
  if (!attention_served && !misfit) misfit = error;
}

void FfnWorker::Impl::count_cancelled(size_t tiles) {
  if (tiles == 0) return;
  const std::lock_guard lock(stats_mutex);
  stats.tiles_cancelled += tiles;
}

void FfnWorker::Impl::reap() {
  const std::lock_guard lock(sessions_mutex);
  std::erase_if(sessions, [](const std::shared_ptr<Session>& session) {
    return session->phase() == Session::Phase::closed && session->pins.load() == 0;
  });
}

}  // namespace tandem
