#include "afd/remote_ffn.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "afd/handshake.h"
#include "afd/in_flight.h"
#include "afd/tile_frame.h"
#include "base/log.h"
#include "transport/poller.h"

namespace tandem {
namespace {

using std::chrono::milliseconds;

constexpr Duration kLongestConnect = std::chrono::seconds(1);  // stopping waits for a connect under way
constexpr Duration kWaitingLogInterval = std::chrono::seconds(10);
constexpr Duration kRefusedRetryInterval =
    std::chrono::seconds(1);  // a peer that does not fit: its operator acts, not we
constexpr Duration kGiveUpInterval =
    milliseconds(50);  // how soon a start notices that it is not wanted any more
constexpr size_t kReceiveBatch = 16;
constexpr uint32_t kMaxRows = uint32_t{UINT16_MAX} * kMaxTileRows;  // tiles are numbered in 16 bits

// Errors that another try cannot mend.
bool is_final(ErrorCode code) {
  return code == ErrorCode::invalid_argument || code == ErrorCode::unsupported ||
         code == ErrorCode::data_loss;
}

}  // namespace

struct RemoteFfn::Impl {
  enum class Link : uint8_t { down, up, draining };

  Impl(const RemoteFfnOptions& given, Poller io_poller, int completion_fd)
      : options(given),
        traits(given.settings.traits()),
        self(make_identity("attention", given.attention_rank)),
        label(fmt::format("FFN rank 0 at {}", given.addresses.front())),
        poller(std::move(io_poller)),
        event_fd(completion_fd),
        table(given.max_in_flight) {
    endpoint_options = options.settings.endpoint_options(options.slots_per_channel);
    endpoint_options.heartbeat_interval = options.heartbeat_interval;
    endpoint_options.silence_limit = options.silence_limit;
    endpoint_options.connect_limit = std::min(kLongestConnect, options.handshake_limit);
    completions.reserve(options.max_in_flight);
  }
  ~Impl() {
    stop.store(true);
    poller.wake();
    {
      const std::lock_guard lock(mutex);
      changed.notify_all();
    }
    if (io.joinable()) io.join();
    close(event_fd);
  }

  // ---- any thread, mutex held ----

  std::string peer_text(const std::string& what) const { return label + ": " + what; }

  void complete(InFlightRequest& entry, Status status) {
    if (!status) ++stats.failures;
    completions.push_back({entry.ticket, std::move(status), entry.times});
    table.close(entry);
    signal();
  }
  void signal() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t put = write(event_fd, &one, sizeof one);  // full: it is readable already
  }

  FrameHeader tile_header(const InFlightRequest& entry, uint32_t tile) const {
    const FfnRequest& request = entry.request;
    FrameHeader header;
    header.kind = FrameKind::ffn_request;
    header.session = facts.session;
    header.incarnation = facts.incarnation;
    header.step = request.step;
    header.layer = request.layer;
    header.lane = request.lane;
    header.tile = static_cast<uint16_t>(tile);
    header.tiles = static_cast<uint16_t>(entry.tiles);
    header.map_epoch = epoch;
    header.rows = entry.tile_rows(tile);
    header.capacity = std::min(kMaxTileRows, request.capacity - entry.tile_begin(tile));
    header.attempt = entry.attempt;
    header.row_class = static_cast<uint8_t>(request.row_class);
    return header;
  }

  // Sends one tile: would_block when there is no credit.
  Status send_tile(InFlightRequest& entry) {
    const uint32_t tile = entry.sent;
    const FfnRequest& request = entry.request;
    const size_t row_bytes = dtype_bytes(request.in.dtype, request.in.row_stride);
    TileView view{.header = tile_header(entry, tile), .in = request.in, .routing = {}};
    view.in.data = static_cast<const std::byte*>(request.in.data) + entry.tile_begin(tile) * row_bytes;
    view.routing = slice_routing(request.routing, entry.tile_begin(tile), view.header.rows);
    TANDEM_ASSIGN(const FrameLayout layout, request_layout(view.header, options.settings));
    TANDEM_ASSIGN(const SendSlot slot, endpoint->acquire(Channel::request, layout.total_bytes()));
    write_request(view, layout, options.settings, slot.bytes);
    return endpoint->commit(slot, layout.total_bytes());
  }

  // Sends what waits until there is nothing, or no credit. The last credit is kept for decode.
  void pump() {
    if (link == Link::down) return;
    const uint32_t max_prefill = std::max(1u, options.slots_per_channel - 1);
    while (InFlightRequest* entry = table.next_to_send(max_prefill)) {
      const Status sent = send_tile(*entry);
      if (!sent) {
        const ErrorCode code = sent.error().code;
        if (code == ErrorCode::would_block || code == ErrorCode::unavailable)
          return;  // the I/O thread sees a loss
        complete(*entry, std::unexpected(sent.error()));
        continue;
      }
      table.mark_sent(*entry);
      ++stats.tiles_sent;
    }
  }

  // Tells the FFN rank that the rest of a request is not wanted. Only saves work there: losing it costs
  // nothing.
  void send_cancel(const InFlightRequest& entry) {
    if (link == Link::down || entry.sent == entry.answered) return;
    FrameHeader header = tile_header(entry, 0);
    header.kind = FrameKind::cancel;
    header.rows = header.capacity = 0;
    const auto layout = FrameLayout::create(header, {});
    if (!layout) return;
    const auto slot = endpoint->acquire(Channel::control, layout->total_bytes());
    if (!slot) return;
    layout->encode(slot->bytes);
    (void)endpoint->commit(*slot, layout->total_bytes());
  }

  void fail_all(const Error& error) {
    for (InFlightRequest& entry : table.entries()) {
      if (entry.used) complete(entry, std::unexpected(error));
    }
  }

  // ---- the I/O thread ----

  Status connect_once() {
    const std::string& address = options.addresses.front();
    auto connected = connect(address, endpoint_options);
    if (!connected) {
      return make_error(connected.error().code, peer_text(connected.error().message));
    }
    TANDEM_ASSIGN(FfnRankFacts rank, open_session(**connected, address, options.settings, self,
                                                  now() + options.handshake_limit, stop));
    if (rank.rank != 0) {
      return make_error(ErrorCode::invalid_argument,
                        peer_text(fmt::format(
                            "says that it is FFN rank {}: list FFN addresses in order of rank", rank.rank)));
    }
    auto assembled = assemble_topology(options.settings, {&rank, 1}, epoch + 1);
    if (!assembled) {  // the only rank does not have them: waiting would not help
      return make_error(ErrorCode::invalid_argument, peer_text(assembled.error().message));
    }
    if (!poller.add((*connected)->fd(), 0))
      return make_error(ErrorCode::resource_exhausted, "no file descriptors left");
    const std::lock_guard lock(mutex);
    owned = std::move(*connected);
    endpoint = owned.get();
    transport = owned->caps().transport;
    facts = std::move(rank);
    expert_map = std::make_shared<const ExpertMap>(std::move(*assembled));
    ++epoch;
    ++stats.connections;
    link = Link::up;
    changed.notify_all();
    log_info(fmt::format("{} ({}): connected over {}, session {:#x}", label, facts.name, transport,
                         facts.session));
    return {};
  }

  void lose(const Error& error) {
    log_warning(fmt::format("{}; reconnecting", error.message));
    poller.remove(owned->fd());
    {
      const std::lock_guard lock(mutex);
      link = Link::down;
      endpoint = nullptr;
      reason = error;
      fail_all(error);
      changed.notify_all();
    }
    owned->fence();
    owned.reset();
  }

  void run() {
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

  void reconnect() {
    const Status connected = connect_once();
    if (connected || stop.load()) return;
    std::unique_lock lock(mutex);
    const bool news = reason.message != connected.error().message;
    reason = connected.error();
    if (news || now() - last_waiting_log >= kWaitingLogInterval) {
      last_waiting_log = now();
      log_info(is_final(reason.code) ? reason.message : "waiting for " + reason.message);
    }
    failed_attempts++;
    changed.notify_all();
    const Duration pause = is_final(reason.code) ? std::max(kRefusedRetryInterval, options.reconnect_interval)
                                                 : options.reconnect_interval;
    changed.wait_for(lock, pause, [this] { return stop.load(); });
  }

  void serve() {
    std::array<Incoming, kReceiveBatch> incoming;
    const size_t count = owned->poll(incoming);
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
      const std::lock_guard lock(mutex);
      pump();
      wait = std::min(wait, check_deadlines());
      drained = link == Link::draining && table.in_flight() == 0;
    }
    if (drained) {  // the peer waits for us to leave
      (void)send_plain(*owned, FrameKind::goodbye, facts.session, facts.incarnation);
      owned->poll({});
      return lose({ErrorCode::unavailable, peer_text("stopped")});
    }
    if (count != 0 || !owned->arm()) return;
    std::array<uint64_t, 2> ready;
    poller.wait(wait, ready);
  }

  // Completes what is late; returns how long until the next deadline.
  Duration check_deadlines() {
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
      complete(entry, make_error(ErrorCode::deadline_exceeded,
                                 peer_text(fmt::format(
                                     "layer {}, step {}, lane {}: {} of {} tiles unanswered after {} ms",
                                     entry.request.layer, entry.request.step, entry.request.lane,
                                     entry.tiles - entry.answered, entry.tiles,
                                     microseconds_since(entry.submitted, at) / 1000))));
    }
    return next;
  }

  // An error ends the connection.
  Status on_message(std::span<const std::byte> message) {
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

  Status on_reply(const FrameView& frame) {
    const auto reply = read_reply(frame, options.settings);
    if (!reply)
      return make_error(ErrorCode::unavailable, peer_text("sent a bad reply: " + reply.error().message));
    std::unique_lock lock(mutex);
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
               make_error(reply->status.error().code, peer_text(fmt::format("layer {}: {}", header.layer,
                                                                            reply->status.error().message))));
      return {};
    }
    std::byte* to =
        entry->request.out.data +
        entry->tile_begin(header.tile) * dtype_bytes(traits.reply_dtype, options.settings.hidden_size);
    entry->writing = true;  // `cancel` waits; deadlines and losses are handled on this thread
    lock.unlock();
    if (!reply->output.empty()) std::memcpy(to, reply->output.data(), reply->output.size());
    lock.lock();
    entry->writing = false;
    changed.notify_all();
    if (table.mark_answered(*entry, header.tile, reply->times)) complete(*entry, {});
    return {};
  }

  const RemoteFfnOptions options;
  const FfnTraits traits;
  const PeerIdentity self;
  const std::string label;  // "FFN rank 0 at tcp://host:7000"
  EndpointOptions endpoint_options;
  Poller poller;
  const int event_fd;
  std::atomic<bool> stop{false};
  std::thread io;
  std::unique_ptr<Endpoint> owned;  // the I/O thread's; others use `endpoint` under the mutex
  Instant last_waiting_log{};

  mutable std::mutex mutex;
  std::condition_variable changed;
  Link link = Link::down;
  Endpoint* endpoint = nullptr;
  Error reason{ErrorCode::unavailable, "not connected yet"};  // why the link is not up
  uint64_t failed_attempts = 0;
  FfnRankFacts facts;
  uint32_t epoch = 0;
  std::string transport;
  std::shared_ptr<const ExpertMap> expert_map;
  InFlightTable table;
  std::vector<Completion> completions;
  uint64_t next_empty_ticket = UINT64_MAX;  // requests without rows: counted down, never meets a table ticket
  Instant last_reply{};
  RemoteFfnStats stats;
};

RemoteFfn::RemoteFfn(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RemoteFfn::~RemoteFfn() = default;

Result<std::unique_ptr<RemoteFfn>> RemoteFfn::create(const RemoteFfnOptions& options) {
  TANDEM_TRY(options.settings.validate());
  if (options.addresses.size() != 1) {
    return make_error(
        ErrorCode::unsupported,
        fmt::format("{} FFN addresses: connector p2p takes one, several come with the multi-rank connector",
                    options.addresses.size()));
  }
  if (options.max_in_flight == 0 || options.slots_per_channel == 0) {
    return make_error(ErrorCode::invalid_argument, "max_in_flight and slots_per_channel are at least 1");
  }
  TANDEM_ASSIGN(Poller poller, Poller::create());
  const int event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (event_fd < 0) return make_error(ErrorCode::resource_exhausted, "eventfd: no file descriptors left");
  auto impl = std::make_unique<Impl>(options, std::move(poller), event_fd);
  Impl& state = *impl;
  state.io = std::thread([&state] { state.run(); });

  const Instant limit = now() + options.start_limit;
  std::unique_lock lock(state.mutex);
  const auto settled = [&] {
    return state.link != Impl::Link::down || (state.failed_attempts > 0 && is_final(state.reason.code));
  };
  while (!state.changed.wait_for(lock, kGiveUpInterval, settled)) {
    if (options.give_up != nullptr && options.give_up->load()) {
      return make_error(ErrorCode::cancelled,
                        fmt::format("stopped while waiting for {}", state.reason.message));
    }
    if (now() < limit) continue;
    return make_error(
        ErrorCode::deadline_exceeded,
        fmt::format("no FFN rank within {} s: {}",
                    std::chrono::duration_cast<std::chrono::seconds>(options.start_limit).count(),
                    state.reason.message));
  }
  if (state.link == Impl::Link::down) {
    Error error = state.reason;
    lock.unlock();
    return std::unexpected(std::move(error));
  }
  lock.unlock();
  return std::unique_ptr<RemoteFfn>(new RemoteFfn(std::move(impl)));
}

const FfnTraits& RemoteFfn::traits() const {
  return impl_->traits;
}
int RemoteFfn::wait_fd() const {
  return impl_->event_fd;
}

Result<Ticket> RemoteFfn::submit(const FfnRequest& request) {
  Impl& state = *impl_;
  const SplitSettings& settings = state.options.settings;
  const auto invalid = [](std::string message) {
    return make_error(ErrorCode::invalid_argument, std::move(message));
  };
  if (!settings.is_moe_layer(request.layer))
    return invalid(fmt::format("layer {} has no experts", request.layer));
  if (request.rows > request.capacity || request.rows > kMaxRows) {
    return invalid(
        fmt::format("{} rows with capacity {}, at most {}", request.rows, request.capacity, kMaxRows));
  }
  if (request.rows > 0) {
    if (request.in.dtype != settings.activation_dtype || request.in.row_stride < settings.hidden_size) {
      return invalid(fmt::format("activation of {} rows of {}, the session agreed on {} rows of {}",
                                 dtype_name(request.in.dtype), request.in.row_stride,
                                 dtype_name(settings.activation_dtype), settings.hidden_size));
    }
    if (request.out.space == MemorySpace::device || !request.ready.is_set) {
      return make_error(ErrorCode::unsupported,
                        "a device buffer or event: this connector sends from host memory");
    }
    if (request.out.bytes < dtype_bytes(settings.reply_dtype, size_t{request.rows} * settings.hidden_size)) {
      return invalid(fmt::format("{} bytes for a reply of {} rows", request.out.bytes, request.rows));
    }
    TANDEM_TRY(check_routing_values(request.routing, request.rows, settings));
  }
  const std::lock_guard lock(state.mutex);
  if (state.link != Impl::Link::up) return std::unexpected(state.reason);
  // One completion a request: the list never outgrows its reservation.
  if (state.table.in_flight() + state.completions.size() >= state.options.max_in_flight) {
    return make_error(ErrorCode::would_block, "in flight: full");
  }
  ++state.stats.requests;
  if (request.rows == 0) {
    state.completions.push_back({state.next_empty_ticket--, {}, {}});
    state.signal();
    return state.completions.back().ticket;
  }
  const InFlightRequest* entry = state.table.open(request, now());
  const Ticket ticket = entry->ticket;
  state.pump();
  return ticket;
}

size_t RemoteFfn::poll(std::span<Completion> out) {
  Impl& state = *impl_;
  const std::lock_guard lock(state.mutex);
  const size_t count = std::min(out.size(), state.completions.size());
  const auto end = state.completions.begin() + static_cast<std::ptrdiff_t>(count);
  std::move(state.completions.begin(), end, out.begin());
  state.completions.erase(state.completions.begin(), end);
  if (state.completions.empty()) {
    uint64_t drained = 0;
    [[maybe_unused]] const ssize_t got = read(state.event_fd, &drained, sizeof drained);
  }
  return count;
}

void RemoteFfn::cancel(Ticket ticket) {
  Impl& state = *impl_;
  std::unique_lock lock(state.mutex);
  state.changed.wait(lock, [&] {  // for the length of one copy of a tile
    const InFlightRequest* entry = state.table.find(ticket);
    return entry == nullptr || !entry->writing;
  });
  if (InFlightRequest* entry = state.table.find(ticket); entry != nullptr) {
    state.send_cancel(*entry);
    state.table.close(*entry);
    return;
  }
  std::erase_if(state.completions,
                [ticket](const Completion& completion) { return completion.ticket == ticket; });
}

Status RemoteFfn::health() const {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->link == Impl::Link::up) return {};
  return make_error(ErrorCode::unavailable, impl_->reason.message);
}

RemoteFfnStats RemoteFfn::stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}
FfnRankFacts RemoteFfn::peer() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->facts;
}
std::string RemoteFfn::transport() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->transport;
}
std::shared_ptr<const ExpertMap> RemoteFfn::map() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->expert_map;
}

}  // namespace tandem
