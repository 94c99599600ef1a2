#include "afd/remote_ffn.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "afd/remote_ffn_impl.h"
#include "afd/tile_frame.h"

namespace tandem {
namespace {

// How soon a start notices that it is not wanted any more.
constexpr Duration kGiveUpInterval = std::chrono::milliseconds(50);

}  // namespace

FrameHeader RemoteFfn::Impl::tile_header(const InFlightRequest& entry, uint32_t tile) const {
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
  header.flags = entry.part.flags;
  header.map_epoch = entry.part.map_epoch != 0 ? entry.part.map_epoch : epoch;
  header.rows = entry.tile_rows(tile);
  header.capacity = std::min(kMaxTileRows, request.capacity - entry.tile_begin(tile));
  header.attempt = entry.attempt;
  header.row_class = static_cast<uint8_t>(request.row_class);
  header.program = request.program;
  return header;
}

Status RemoteFfn::Impl::send_tile(InFlightRequest& entry) {
  const uint32_t tile = entry.sent;
  const FfnRequest& request = entry.request;
  TileView view{.header = tile_header(entry, tile), .in = request.in, .routing = {}};
  const bool shared_rows = !entry.part.shared_rows.empty();
  if (shared_rows)
    view.part.shared_rows = entry.part.shared_rows.subspan(entry.tile_begin(tile), view.header.rows);
  if (entry.part.row_index.empty()) {
    view.in = rows_from(request.in, entry.tile_begin(tile));
  } else {
    view.part.row_index = entry.part.row_index.subspan(entry.tile_begin(tile), view.header.rows);
  }
  view.routing = slice_routing(request.routing, entry.tile_begin(tile), view.header.rows);
  TANDEM_ASSIGN(const FrameLayout layout, request_layout(view.header, options.settings, shared_rows));
  TANDEM_ASSIGN(const SendSlot slot, endpoint->acquire(session_kind.channel, layout.total_bytes()));
  write_request(view, layout, options.settings, slot.bytes);
  return endpoint->commit(slot, layout.total_bytes());
}

void RemoteFfn::Impl::pump() {
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

void RemoteFfn::Impl::send_cancel(const InFlightRequest& entry) {
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

void RemoteFfn::Impl::fail_all(const Error& error) {
  for (InFlightRequest& entry : table.entries()) {
    if (entry.used) complete(entry, std::unexpected(error));
  }
}

RemoteFfn::RemoteFfn(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RemoteFfn::~RemoteFfn() = default;

Result<std::unique_ptr<RemoteFfn>> RemoteFfn::start(const RemoteFfnOptions& options) {
  TANDEM_TRY(options.settings.validate());
  if (options.addresses.size() != 1) {
    return make_error(ErrorCode::unsupported,
                      fmt::format("{} FFN addresses: one connection takes one; make_connector for several",
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
  return std::unique_ptr<RemoteFfn>(new RemoteFfn(std::move(impl)));
}

std::optional<Status> RemoteFfn::Impl::start_result() const {
  if (link != Link::down) return Status{};
  if (failed_attempts > 0 && never_fits(reason.code)) return std::unexpected(reason);
  return std::nullopt;
}

std::optional<Status> RemoteFfn::start_result() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->start_result();
}

Result<std::unique_ptr<RemoteFfn>> RemoteFfn::create(const RemoteFfnOptions& options) {
  TANDEM_ASSIGN(std::unique_ptr<RemoteFfn> started, start(options));
  Impl& state = *started->impl_;
  const Instant limit = now() + options.start_limit;
  std::unique_lock lock(state.mutex);
  while (!state.changed.wait_for(lock, kGiveUpInterval, [&] { return state.start_result().has_value(); })) {
    const bool stopped = options.give_up != nullptr && options.give_up->load();
    if (!stopped && now() < limit) continue;
    std::string waited_for = state.reason.message;
    lock.unlock();  // before the connection goes
    if (stopped) return make_error(ErrorCode::cancelled, "stopped while waiting for " + waited_for);
    return make_error(
        ErrorCode::deadline_exceeded,
        fmt::format("no FFN rank within {} s: {}",
                    std::chrono::duration_cast<std::chrono::seconds>(options.start_limit).count(),
                    waited_for));
  }
  const Status outcome = state.start_result().value_or(Status{});
  lock.unlock();
  if (!outcome) return std::unexpected(outcome.error());
  return started;
}

const FfnTraits& RemoteFfn::traits() const {
  return impl_->traits;
}
int RemoteFfn::wait_fd() const {
  return impl_->event_fd;
}

Result<Ticket> RemoteFfn::submit(const FfnRequest& request) {
  return submit(request, RequestPart{});
}

Result<Ticket> RemoteFfn::submit(const FfnRequest& request, const RequestPart& part) {
  Impl& state = *impl_;
  TANDEM_TRY(check_request(request, state.options.settings, part));
  const Impl::Hold hold(state);
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
  InFlightRequest* entry = state.table.open(request, now());
  entry->part = part;
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
  if (state.completions.empty()) state.unsignal();
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

bool RemoteFfn::up() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->link == Impl::Link::up;
}

RemoteFfnStats RemoteFfn::stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}
RankState RemoteFfn::rank_state() const {
  const std::lock_guard lock(impl_->mutex);
  const bool up = impl_->link == Impl::Link::up;
  return {.rank = impl_->options.ffn_rank,
          .address = impl_->options.addresses.front(),
          .name = impl_->facts.name,
          .transport = impl_->transport,
          .session = impl_->facts.session,
          .num_pieces = impl_->facts.pieces.size(),
          .up = up,
          .reason = up ? std::string() : impl_->reason.message};
}
FfnRankFacts RemoteFfn::peer() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->facts;
}
std::string RemoteFfn::transport() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->transport;
}
std::string RemoteFfn::waiting_for() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->reason.message;
}
std::shared_ptr<const ExpertMap> RemoteFfn::map() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->expert_map;
}

}  // namespace tandem
