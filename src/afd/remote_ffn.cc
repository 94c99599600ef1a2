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
constexpr uint32_t kMaxRows = uint32_t{UINT16_MAX} * kMaxTileRows;  // tiles are numbered in 16 bits

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
  header.map_epoch = epoch;
  header.rows = entry.tile_rows(tile);
  header.capacity = std::min(kMaxTileRows, request.capacity - entry.tile_begin(tile));
  header.attempt = entry.attempt;
  header.row_class = static_cast<uint8_t>(request.row_class);
  return header;
}

Status RemoteFfn::Impl::send_tile(InFlightRequest& entry) {
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
