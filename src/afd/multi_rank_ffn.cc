#include "afd/multi_rank_ffn.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <optional>
#include <utility>

#include "afd/rank_links.h"
#include "afd/tile_frame.h"
#include "base/region_time.h"
#include "base/trace_ring.h"
#include "kernels/activation_format.h"
#include "transport/unique_fd.h"

namespace tandem {
namespace {

constexpr size_t kPollBatch = 16;
// With buffers made at start in graph mode: of eight decode lanes and as many of prefill, which each have one
// request under way. The first free one is taken, so that others are rarely used.
constexpr size_t kPreparedRequests = 16;
constexpr uint32_t kMinPartialRows = 64;  // a decode step's worth: buffers of small requests are not resized

// What one rank owes to a request.
struct PendingPart {
  bool asked = false;
  Ticket ticket = 0;  // at the rank's connection
  OwnedBuffer sums;   // [rows, hidden] of the reply dtype; kept from request to request
};

struct PendingRequest {
  bool used = false;
  Ticket ticket = 0;
  FfnRequest request;
  Prepared prepared;               // of a request that went to owners
  std::vector<PendingPart> parts;  // by rank
  uint32_t unanswered = 0;
  bool adds_up = false;  // the answers are sums to be added; otherwise they are rows of request.out, in place
  FfnTimes times;        // of the slowest part, each on its own
  LastAnswer last;
};

Status check_placement(const SplitSettings& settings) {
  if (settings.connector != "m2n" || settings.gate_on_attention) return {};
  return make_error(
      ErrorCode::unsupported,
      "connector m2n with the gate on FFN: attention must know the experts of a row to send it to "
      "them; set compute_gate_on_attention, or use connector p2p");
}

}  // namespace

struct MultiRankFfn::Impl {
  explicit Impl(const RemoteFfnOptions& given) : options(given), traits(given.settings.traits()) {
    pending.resize(options.max_in_flight);
    completions.reserve(options.max_in_flight);
  }

  // ---- start ----

  Status open_descriptors() {
    event = UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    waitable = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
    TANDEM_TRY(watch(event.get()));
    return {};
  }
  Status watch(int fd) {
    epoll_event interest{.events = EPOLLIN, .data = {.fd = fd}};
    if (fd >= 0 && waitable.get() >= 0 && epoll_ctl(waitable.get(), EPOLL_CTL_ADD, fd, &interest) == 0)
      return {};
    return make_error(ErrorCode::resource_exhausted, "FFN connections: no file descriptors left");
  }

  Status start() {
    TANDEM_TRY(links.start(options));
    for (size_t rank = 0; rank < links.size(); ++rank) TANDEM_TRY(watch(links[rank].wait_fd()));
    TANDEM_TRY(links.wait(options));
    TANDEM_ASSIGN(ExpertDispatcher created, links.assemble(options.settings));
    dispatcher = std::make_unique<ExpertDispatcher>(std::move(created));
    for (PendingRequest& entry : pending) entry.parts.resize(links.size());
    homes.reserve(links.size());
    sums.reserve(links.size());
    return options.settings.graph ? prepare() : Status{};
  }

  // Graph mode: what a replayed step dispatches to owners finds its buffers.
  Status prepare() {
    if (!to_owners(RowClass::decode)) return {};
    const uint32_t rows = options.settings.capture_sizes.back();
    for (size_t i = 0; i < std::min(pending.size(), kPreparedRequests); ++i) {
      pending[i].prepared.reserve(links.size(), rows, options.settings.top_k, options.settings.num_experts);
      for (PendingPart& part : pending[i].parts) TANDEM_TRY(make_room(part.sums, rows));
    }
    return {};
  }

  Status make_room(OwnedBuffer& part_sums, uint32_t rows) const {
    const size_t row_bytes = dtype_bytes(traits.reply_dtype, options.settings.hidden_size);
    if (part_sums.size() >= rows * row_bytes) return {};
    TANDEM_ASSIGN(part_sums,
                  OwnedBuffer::allocate(std::bit_ceil(std::max(rows, kMinPartialRows)) * row_bytes));
    return {};
  }

  // ---- the lane executor's thread ----

  PendingRequest* find(Ticket ticket) {
    if (pending.empty()) return nullptr;
    PendingRequest& entry = pending[ticket % pending.size()];
    return entry.used && entry.ticket == ticket ? &entry : nullptr;
  }

  void signal() {
    if (event_set) return;
    const uint64_t one = 1;
    event_set = write(event.get(), &one, sizeof one) == sizeof one;
  }
  void unsignal() {
    if (!event_set) return;
    uint64_t drained = 0;
    [[maybe_unused]] const ssize_t got = read(event.get(), &drained, sizeof drained);
    event_set = false;
  }

  // After it nobody writes for this request any more.
  void withdraw(PendingRequest& entry) {
    for (size_t rank = 0; rank < entry.parts.size(); ++rank) {
      PendingPart& part = entry.parts[rank];
      if (part.asked) links[rank].cancel(part.ticket);
      part.asked = false;
    }
  }

  void close(PendingRequest& entry) {
    withdraw(entry);
    entry.used = false;
    entry.request = {};
    --in_flight;
  }

  void complete(PendingRequest& entry, Status status) {
    if (!status) ++failures;
    completions.push_back({entry.ticket, std::move(status), entry.times, entry.last});
    close(entry);
  }

  Status ask(PendingRequest& entry, uint32_t rank, const FfnRequest& request, const RequestPart& how) {
    PendingPart& part = entry.parts[rank];
    TANDEM_ASSIGN(part.ticket, links[rank].submit(request, how));
    part.asked = true;
    ++entry.unanswered;
    return {};
  }

  // ---- to owners: m2n ----

  Status ask_owner(PendingRequest& entry, const DispatchPart& mine) {
    FfnRequest request = entry.request;
    request.rows = request.capacity = static_cast<uint32_t>(mine.rows.size());
    request.routing = mine.routing(dispatcher->top_k());
    if (entry.adds_up) {
      const size_t row_bytes = dtype_bytes(traits.reply_dtype, options.settings.hidden_size);
      OwnedBuffer& part_sums = entry.parts[mine.rank].sums;
      TANDEM_TRY(make_room(part_sums, request.rows));
      request.out = {part_sums.data(), request.rows * row_bytes, MemorySpace::host};
    }
    RequestPart how{.row_index = mine.rows, .flags = kFramePartial, .map_epoch = map_epoch()};
    if (options.settings.shared_experts_on_ffn()) how.shared_rows = mine.shared_rows;
    return ask(entry, mine.rank, request, how);
  }

  Status send_to_owners(PendingRequest& entry) {
    const auto& routing = std::get<RoutingView>(entry.request.routing);
    TANDEM_TRY(dispatcher->prepare(entry.request.layer, entry.request.rows, routing, entry.prepared,
                                   options.replica_choice));
    const auto has_rows = [](const DispatchPart& part) { return !part.rows.empty(); };
    // One rank has all rows: its answer is the result.
    entry.adds_up = std::ranges::count_if(entry.prepared.parts, has_rows) != 1;
    for (const DispatchPart& part : entry.prepared.parts) {
      if (has_rows(part)) TANDEM_TRY(ask_owner(entry, part));
    }
    return {};
  }

  void add_up(PendingRequest& entry) {
    sums.clear();
    for (const DispatchPart& part : entry.prepared.parts) {
      sums.push_back(part.rows.empty() ? nullptr : entry.parts[part.rank].sums.data());
    }
    const RegionTimer timer;
    add_partials(entry.prepared, sums, options.settings.hidden_size, traits.reply_dtype,
                 entry.request.out.data);
  }

  // ---- to homes: p2p ----

  // Rows [first, first + rows) of the request, answered into their place.
  Status ask_home(PendingRequest& entry, uint32_t rank, uint32_t first, uint32_t rows) {
    FfnRequest request = entry.request;
    request.rows = request.capacity = rows;
    request.in = rows_from(request.in, first);
    request.routing = slice_routing(entry.request.routing, first, rows);
    const size_t row_bytes = dtype_bytes(traits.reply_dtype, options.settings.hidden_size);
    request.out.data += first * row_bytes;
    request.out.bytes = rows * row_bytes;
    return ask(entry, rank, request, {.map_epoch = map_epoch()});
  }

  // Homes take turns, tile by tile over all requests; the tiles of one home lie side by side, so that they
  // are one request of its connection and nothing is gathered or scattered.
  Status send_to_homes(PendingRequest& entry) {
    entry.adds_up = false;
    homes.clear();
    for (uint32_t rank = 0; rank < links.size(); ++rank) {
      if (links[rank].up()) homes.push_back(rank);
    }
    if (homes.empty()) {
      TANDEM_TRY(links.health());
      return make_error(ErrorCode::unavailable, "no FFN rank was up a moment ago");
    }
    const uint32_t rows = entry.request.rows;
    const uint32_t tiles = (rows + kMaxTileRows - 1) / kMaxTileRows;
    const auto count = static_cast<uint32_t>(homes.size());
    const uint64_t first_home = options.attention_rank + tiles_sent_home;
    tiles_sent_home += tiles;
    uint32_t tile = 0;
    for (uint32_t i = 0; i < count && tile < tiles; ++i) {
      const uint32_t first = tile;
      tile += tiles / count + (i < tiles % count ? 1 : 0);
      TANDEM_TRY(ask_home(entry, homes[(first_home + i) % count], first * kMaxTileRows,
                          std::min(rows, tile * kMaxTileRows) - first * kMaxTileRows));
    }
    return {};
  }

  bool to_owners(RowClass row_class) const {
    if (options.settings.connector == "m2n") return true;
    return options.settings.connector == "auto" && options.settings.gate_on_attention &&
           (row_class == RowClass::decode || row_class == RowClass::draft);
  }
  Status dispatch(PendingRequest& entry) {
    return to_owners(entry.request.row_class) ? send_to_owners(entry) : send_to_homes(entry);
  }

  uint32_t map_epoch() const { return dispatcher->map().epoch(); }

  // ---- answers ----

  void on_answer(uint32_t rank, const Completion& answer) {
    for (PendingRequest& entry : pending) {
      if (!entry.used || !entry.parts[rank].asked || entry.parts[rank].ticket != answer.ticket) continue;
      entry.parts[rank].asked = false;
      --entry.unanswered;
      entry.times.queue_us = std::max(entry.times.queue_us, answer.times.queue_us);
      entry.times.compute_us = std::max(entry.times.compute_us, answer.times.compute_us);
      entry.times.exchange_us = std::max(entry.times.exchange_us, answer.times.exchange_us);
      entry.times.residence_us = std::max(entry.times.residence_us, answer.times.residence_us);
      entry.times.reply_ns += answer.times.reply_ns;
      if (answer.last.arrived >= entry.last.arrived) entry.last = answer.last;
      if (tracing() && answer.status) record(entry, answer.last);
      if (!answer.status) return complete(entry, answer.status);  // the other parts are not wanted any more
      if (entry.unanswered > 0) return;
      if (entry.adds_up) add_up(entry);
      return complete(entry, {});
    }
  }

  bool tracing() const { return ring != nullptr && ring->on(); }
  void record(const PendingRequest& entry, const LastAnswer& answer) {
    const int64_t arrived = trace_time(answer.arrived);
    ring->add({.begin_ns = arrived,
               .end_ns = trace_time(now()),
               .arrived_ns = arrived,
               .queue_us = answer.times.queue_us,
               .compute_us = answer.times.compute_us,
               .exchange_us = answer.times.exchange_us,
               .residence_us = answer.times.residence_us,
               .step = entry.request.step,
               .rows = entry.request.rows,
               .layer = entry.request.layer,
               .lane = entry.request.lane,
               .rank = answer.rank,
               .kind = TraceKind::reply});
  }

  void collect() {
    std::array<Completion, kPollBatch> answers;
    for (uint32_t rank = 0; rank < links.size(); ++rank) {
      for (size_t count = kPollBatch; count == kPollBatch;) {
        count = links[rank].poll(answers);
        for (size_t i = 0; i < count; ++i) on_answer(rank, answers[i]);
      }
    }
  }

  const RemoteFfnOptions options;
  const FfnTraits traits;
  TraceRing* ring = nullptr;
  UniqueFd event, waitable;  // of completions that are here already; of those and all connections
  bool event_set = false;    // `event` is readable
  std::unique_ptr<ExpertDispatcher> dispatcher;
  std::vector<PendingRequest> pending;
  size_t in_flight = 0;
  uint64_t next_serial = 1;
  uint64_t next_empty_ticket = UINT64_MAX;  // requests without rows: counted down, never meets another ticket
  std::vector<Completion> completions;
  std::vector<const std::byte*> sums;  // scratch
  std::atomic<uint64_t> requests{0}, failures{0};
  std::vector<uint32_t> homes;  // scratch: ranks that can be home now
  uint64_t tiles_sent_home = 0;
  RankLinks links;  // last: they stop before the buffers they write into go
};

MultiRankFfn::MultiRankFfn(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MultiRankFfn::~MultiRankFfn() = default;

Result<std::unique_ptr<MultiRankFfn>> MultiRankFfn::create(const RemoteFfnOptions& options) {
  TANDEM_TRY(options.settings.validate());
  TANDEM_TRY(check_placement(options.settings));
  auto impl = std::make_unique<Impl>(options);
  TANDEM_TRY(impl->open_descriptors());
  TANDEM_TRY(impl->start());
  return std::unique_ptr<MultiRankFfn>(new MultiRankFfn(std::move(impl)));
}

const FfnTraits& MultiRankFfn::traits() const {
  return impl_->traits;
}
int MultiRankFfn::wait_fd() const {
  return impl_->waitable.get();
}
const ExpertMap& MultiRankFfn::map() const {
  return impl_->dispatcher->map();
}

Result<Ticket> MultiRankFfn::submit(const FfnRequest& request) {
  Impl& state = *impl_;
  TANDEM_TRY(check_request(request, state.options.settings));
  // One completion a request: no list outgrows its reservation, here or at the connections.
  if (state.in_flight + state.completions.size() >= state.options.max_in_flight) {
    return make_error(ErrorCode::would_block, "in flight: full");
  }
  if (request.rows == 0) {
    ++state.requests;
    state.completions.push_back({state.next_empty_ticket--, {}, {}});
    state.signal();
    return state.completions.back().ticket;
  }
  // The first free entry: its buffers are the ones that were used most.
  const auto free =
      std::ranges::find_if(state.pending, [](const PendingRequest& entry) { return !entry.used; });
  PendingRequest& entry = *free;
  entry.used = true;
  ++state.in_flight;
  entry.ticket =
      state.next_serial++ * state.pending.size() + static_cast<uint64_t>(free - state.pending.begin());
  entry.request = request;
  entry.unanswered = 0;
  entry.times = {};
  entry.last = {};
  if (Status sent = state.dispatch(entry); !sent) {
    state.close(entry);
    return std::unexpected(std::move(sent.error()));
  }
  ++state.requests;
  return entry.ticket;
}

size_t MultiRankFfn::poll(std::span<Completion> out) {
  Impl& state = *impl_;
  state.collect();
  const size_t count = std::min(out.size(), state.completions.size());
  const auto end = state.completions.begin() + static_cast<std::ptrdiff_t>(count);
  std::move(state.completions.begin(), end, out.begin());
  state.completions.erase(state.completions.begin(), end);
  state.completions.empty() ? state.unsignal() : state.signal();
  return count;
}

void MultiRankFfn::cancel(Ticket ticket) {
  Impl& state = *impl_;
  if (PendingRequest* entry = state.find(ticket); entry != nullptr) return state.close(*entry);
  std::erase_if(state.completions,
                [ticket](const Completion& completion) { return completion.ticket == ticket; });
}

void MultiRankFfn::trace_to(TraceRing* ring) {
  impl_->ring = ring;
}

Status MultiRankFfn::health() const {
  return impl_->links.health();
}

RemoteFfnStats MultiRankFfn::stats() const {
  RemoteFfnStats sum = impl_->links.stats();
  sum.requests = impl_->requests.load();
  sum.failures = impl_->failures.load();
  return sum;
}

RankState MultiRankFfn::rank_state(uint32_t rank) const {
  return std::as_const(impl_->links)[rank].rank_state();
}

std::vector<FfnRankFacts> MultiRankFfn::peers() const {
  return impl_->links.peers();
}

}  // namespace tandem
