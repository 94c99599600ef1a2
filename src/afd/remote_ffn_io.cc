// The I/O thread of RemoteFfn: connecting, receiving, deadlines, loss.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "afd/remote_ffn_impl.h"
#include "afd/tile_frame.h"
#include "base/log.h"
#include "transport/connecting.h"

namespace tandem {
namespace {

constexpr Duration kWaitingLogInterval = std::chrono::seconds(10);
constexpr Duration kRefusedRetryInterval =
    std::chrono::seconds(1);  // a peer that does not fit: its operator acts, not we
// A peer that answered and cannot take us yet: it waits for other ranks, which load their weights.
constexpr Duration kNotYetRetryInterval = std::chrono::milliseconds(250);
constexpr size_t kReceiveBatch = 16;

}  // namespace

Status RemoteFfn::Impl::connect_once() {
  const std::string& address = options.addresses.front();
  peer_answers = false;
  auto connected = connect(address, endpoint_options, stop);
  if (!connected) {
    return make_error(connected.error().code, peer_text(connected.error().message));
  }
  peer_answers = true;
  auto opened = open_session(**connected, address, options.settings, self, now() + options.handshake_limit,
                             stop, session_kind);
  if (!opened) return make_error(opened.error().code, peer_text(opened.error().message));
  FfnRankFacts rank = std::move(*opened);
  if (rank.rank != options.ffn_rank) {
    return make_error(ErrorCode::invalid_argument,
                      peer_text(fmt::format(
                          "says that it is FFN rank {}: list FFN addresses in order of rank", rank.rank)));
  }
  TANDEM_ASSIGN(std::shared_ptr<const ExpertMap> assembled, map_of(rank));
  if (!poller.add((*connected)->fd(), 0))
    return make_error(ErrorCode::resource_exhausted, "no file descriptors left");
  const std::lock_guard lock(mutex);
  owned = std::move(*connected);
  endpoint = owned.get();
  transport = owned->caps().transport;
  facts = std::move(rank);
  expert_map = std::move(assembled);
  epoch = options.holds_part ? 1 : epoch + 1;  // a part comes back as it was, and so does the map
  ++stats.connections;
  link = Link::up;
  changed.notify_all();
  log_info(
      fmt::format("{} ({}): connected over {}, session {:#x}", label, facts.name, transport, facts.session));
  return {};
}

Result<std::shared_ptr<const ExpertMap>> RemoteFfn::Impl::map_of(const FfnRankFacts& rank) const {
  if (!options.holds_part) {
    auto assembled = assemble_topology(options.settings, {&rank, 1}, epoch + 1);
    if (!assembled) {  // the only rank does not have them: waiting would not help
      return make_error(ErrorCode::invalid_argument, peer_text(assembled.error().message));
    }
    return std::make_shared<const ExpertMap>(std::move(*assembled));
  }
  // Somebody else's map has what this rank held when it came first.
  if (stats.connections > 0 && rank.pieces != facts.pieces) {
    return make_error(ErrorCode::invalid_argument,
                      peer_text("came back with other experts than before; start it with the same share, or "
                                "start attention again"));
  }
  return std::shared_ptr<const ExpertMap>();
}

void RemoteFfn::Impl::lose(const Error& error) {
  const std::string text = fmt::format("{}; reconnecting", error.message);
  said_goodbye ? log_info(text) : log_warning(text);
  said_goodbye = false;
  poller.remove(owned->fd());
  {
    const Hold hold(*this);
    link = Link::down;
    endpoint = nullptr;
    reason = error;
    fail_all(error);
    changed.notify_all();
  }
  owned->fence();
  owned.reset();
}

void RemoteFfn::Impl::run() {
  while (!stop.load()) {
    if (owned == nullptr) {
      reconnect();
    } else {
      serve();
    }
  }
  if (owned == nullptr) return;
  (void)send_plain(*owned, FrameKind::goodbye, facts.session, facts.incarnation);
  owned->poll({});
  poller.remove(owned->fd());
  const std::lock_guard lock(mutex);
  endpoint = nullptr;
  link = Link::down;
  owned.reset();
}

void RemoteFfn::Impl::reconnect() {
  const Instant began = now();
  const Status connected = connect_once();
  if (connected || stop.load()) return;
  std::unique_lock lock(mutex);
  const bool news = reason.message != connected.error().message;
  reason = connected.error();
  if (news || now() - last_waiting_log >= kWaitingLogInterval) {
    last_waiting_log = now();
    log_info(never_fits(reason.code) ? reason.message : "waiting for " + reason.message);
  }
  failed_attempts++;
  changed.notify_all();
  const Duration least = never_fits(reason.code) ? kRefusedRetryInterval
                         : peer_answers          ? kNotYetRetryInterval
                                                 : Duration::zero();
  // As long again as the attempt took: a peer that is too busy to answer in time is not kept busy by us.
  const Duration pause = std::max({least, options.reconnect_interval, Duration(now() - began)});
  changed.wait_for(lock, pause, [this] { return stop.load(); });
}

void RemoteFfn::Impl::serve() {
  std::array<Incoming, kReceiveBatch> incoming;
  const size_t count = owned->poll(incoming);
  if (count != 0) spin.found();
  for (size_t i = 0; i < count; ++i) {
    const Status handled = on_message(incoming[i].lease.bytes());
    incoming[i].lease = Lease();  // gives the credit back before the next copy
    if (!handled) return lose(handled.error());
  }
  if (count == 0 && owned->peer() != PeerState::alive) {
    return lose(
        {ErrorCode::unavailable, peer_text(fmt::format("connection {}", peer_state_name(owned->peer())))});
  }
  Duration wait = options.heartbeat_interval / 2;
  bool drained = false;
  {
    const Hold hold(*this);
    pump();
    wait = std::min(wait, check_deadlines());
    drained = link == Link::draining && table.in_flight() == 0;
  }
  if (drained) {  // the peer waits for us to leave
    (void)send_plain(*owned, FrameKind::goodbye, facts.session, facts.incarnation);
    owned->poll({});
    return lose({ErrorCode::unavailable, peer_text("stopped")});
  }
  if (count != 0 || spin.again() || !owned->arm()) return;
  std::array<uint64_t, 2> ready;
  poller.wait(wait, ready);
}

Duration RemoteFfn::Impl::check_deadlines() {
  const Instant at = now();
  Duration next = std::chrono::hours(1);
  for (InFlightRequest& entry : table.entries()) {
    if (!entry.used) continue;
    const bool own = entry.request.deadline != Instant::max();
    const Instant deadline =
        own ? entry.request.deadline : std::max(entry.submitted, last_reply) + options.reply_limit;
    if (at < deadline) {
      next = std::min<Duration>(next, deadline - at);
      continue;
    }
    send_cancel(entry);
    complete(
        entry,
        make_error(ErrorCode::deadline_exceeded,
                   peer_text(fmt::format("layer {}, step {}, lane {}: {} of {} tiles unanswered after {} ms",
                                         entry.request.layer, entry.request.step, entry.request.lane,
                                         entry.tiles - entry.answered, entry.tiles,
                                         microseconds_since(entry.submitted, at) / 1000))));
  }
  return next;
}

Status RemoteFfn::Impl::on_message(std::span<const std::byte> message) {
  const auto frame = parse_frame(message);
  if (!frame) return make_error(ErrorCode::unavailable, peer_text("sent a bad " + frame.error().message));
  const FrameHeader& header = frame->header;
  switch (header.kind) {
    case FrameKind::ffn_reply:
      return on_reply(*frame);
    case FrameKind::refuse:
      return make_error(ErrorCode::unavailable,
                        peer_text("closed the session: " + read_error(*frame).message));
    case FrameKind::goodbye:
      said_goodbye = true;
      return make_error(ErrorCode::unavailable, peer_text("stopped"));
    case FrameKind::drain: {
      const std::lock_guard lock(mutex);
      link = Link::draining;
      reason = {ErrorCode::unavailable, peer_text("is stopping and takes no new work")};
      return {};
    }
    default:
      return make_error(ErrorCode::unavailable, peer_text(fmt::format("sent {}, which no session expects",
                                                                      frame_kind_name(header.kind))));
  }
}

Status RemoteFfn::Impl::on_reply(const FrameView& frame) {
  const Instant began = now();
  const auto reply = read_reply(frame, options.settings);
  if (!reply)
    return make_error(ErrorCode::unavailable, peer_text("sent a bad reply: " + reply.error().message));
  Hold hold(*this);
  const FrameHeader& header = reply->header;
  InFlightRequest* entry = header.session == facts.session && header.incarnation == facts.incarnation
                               ? table.match(header)
                               : nullptr;
  last_reply = now();
  if (entry == nullptr) {
    ++stats.replies_dropped;
    return {};
  }
  ++stats.replies;
  if (!reply->status) {
    table.mark_answered(*entry, header.tile, reply->times);
    send_cancel(*entry);
    complete(*entry,
             make_error(reply->status.error().code,
                        peer_text(fmt::format("layer {}: {}", header.layer, reply->status.error().message))));
    return {};
  }
  std::byte* to = entry->request.out.data + entry->tile_begin(header.tile) *
                                                dtype_bytes(traits.reply_dtype, options.settings.hidden_size);
  entry->writing = true;  // `cancel` waits; deadlines and losses are handled on this thread
  hold.unlock();
  if (!reply->output.empty()) std::memcpy(to, reply->output.data(), reply->output.size());
  hold.lock();
  entry->writing = false;
  changed.notify_all();
  entry->times.reply_ns += static_cast<uint64_t>(std::chrono::nanoseconds(now() - began).count());
  if (table.mark_answered(*entry, header.tile, reply->times)) complete(*entry, {});
  return {};
}

}  // namespace tandem
