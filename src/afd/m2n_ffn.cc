#include "afd/m2n_ffn.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <thread>

#include "afd/tile_frame.h"
#include "transport/unique_fd.h"

namespace tandem {
namespace {

constexpr Duration kStartPollInterval = std::chrono::milliseconds(50);  // loading weights takes seconds
constexpr size_t kPollBatch = 16;
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
  Prepared prepared;
  std::vector<PendingPart> parts;  // as prepared.parts
  uint32_t unanswered = 0;
  bool direct = false;  // one rank has all rows: it answers into request.out
  FfnTimes times;       // of the slowest part, each on its own
};

Status check_placement(const SplitSettings& settings) {
  if (!settings.gate_on_attention) {
    return make_error(
        ErrorCode::unsupported,
        "connector m2n with the gate on FFN: attention must know the experts of a row to send it to "
        "them; set compute_gate_on_attention");
  }
  if (!settings.shared_experts_on_attention && settings.shared_intermediate_size > 0) {
    return make_error(ErrorCode::unsupported,
                      "connector m2n with the shared experts on FFN: every rank would add them; leave "
                      "compute_shared_experts_on_attention at auto");
  }
  return {};
}

}  // namespace

struct M2nFfn::Impl {
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
    return make_error(ErrorCode::resource_exhausted, "connector m2n: no file descriptors left");
  }

  Status start_links() {
    for (uint32_t rank = 0; rank < options.addresses.size(); ++rank) {
      RemoteFfnOptions one = options;
      one.addresses = {options.addresses[rank]};
      one.ffn_rank = rank;
      one.holds_part = true;
      TANDEM_ASSIGN(std::unique_ptr<RemoteFfn> link, RemoteFfn::start(one));
      TANDEM_TRY(watch(link->wait_fd()));
      links.push_back(std::move(link));
    }
    return {};
  }

  // Until every rank is there: they load their weights side by side, in any order.
  Status wait_for_links() {
    const Instant limit = now() + options.start_limit;
    while (true) {
      std::string missing;
      for (const auto& link : links) {
        const std::optional<Status> result = link->start_result();
        if (result && !*result) return *result;
        if (!result) missing += (missing.empty() ? "" : "; ") + link->waiting_for();
      }
      if (missing.empty()) return {};
      if (options.give_up != nullptr && options.give_up->load()) {
        return make_error(ErrorCode::cancelled, "stopped while waiting for " + missing);
      }
      if (now() >= limit) {
        return make_error(
            ErrorCode::deadline_exceeded,
            fmt::format("not all FFN ranks within {} s: {}",
                        std::chrono::duration_cast<std::chrono::seconds>(options.start_limit).count(),
                        missing));
      }
      std::this_thread::sleep_for(kStartPollInterval);
    }
  }

  std::vector<FfnRankFacts> peers() const {
    std::vector<FfnRankFacts> facts;
    facts.reserve(links.size());
    for (const auto& link : links) facts.push_back(link->peer());
    return facts;
  }

  Status assemble() {
    const std::vector<FfnRankFacts> facts = peers();
    auto assembled = assemble_topology(options.settings, facts, 1);
    if (!assembled) {
      return make_error(ErrorCode::invalid_argument,
                        fmt::format("{} (of {} FFN ranks)", assembled.error().message, links.size()));
    }
    TANDEM_ASSIGN(ExpertDispatcher created,
                  ExpertDispatcher::create(std::make_shared<const ExpertMap>(std::move(*assembled)),
                                           options.settings.top_k));
    dispatcher = std::make_unique<ExpertDispatcher>(std::move(created));
    for (PendingRequest& entry : pending) entry.parts.resize(dispatcher->ranks().size());
    return {};
  }

  // ---- the lane executor's thread ----

  RemoteFfn& link_of(const DispatchPart& part) { return *links[part.rank]; }

  PendingRequest* find(Ticket ticket) {
    if (pending.empty()) return nullptr;
    PendingRequest& entry = pending[ticket % pending.size()];
    return entry.used && entry.ticket == ticket ? &entry : nullptr;
  }

  void signal() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t put =
        write(event.get(), &one, sizeof one);  // full: it is readable already
  }

  // After it nobody writes for this request any more.
  void withdraw(PendingRequest& entry) {
    for (size_t i = 0; i < entry.parts.size(); ++i) {
      PendingPart& part = entry.parts[i];
      if (part.asked) link_of(entry.prepared.parts[i]).cancel(part.ticket);
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
    completions.push_back({entry.ticket, std::move(status), entry.times});
    close(entry);
  }

  Status ask(PendingRequest& entry, size_t index) {
    const DispatchPart& mine = entry.prepared.parts[index];
    PendingPart& part = entry.parts[index];
    FfnRequest request = entry.request;
    request.rows = request.capacity = static_cast<uint32_t>(mine.rows.size());
    request.routing = mine.routing(dispatcher->top_k());
    if (!entry.direct) {
      const size_t row_bytes = dtype_bytes(traits.reply_dtype, options.settings.hidden_size);
      const size_t bytes = mine.rows.size() * row_bytes;
      if (part.sums.size() < bytes) {
        const uint32_t room = std::bit_ceil(std::max(request.rows, kMinPartialRows));
        TANDEM_ASSIGN(part.sums, OwnedBuffer::allocate(room * row_bytes));
      }
      request.out = {part.sums.data(), bytes, MemorySpace::host};
    }
    TANDEM_ASSIGN(part.ticket, link_of(mine).submit(request, mine.rows));
    part.asked = true;
    ++entry.unanswered;
    return {};
  }

  Status dispatch(PendingRequest& entry) {
    const auto& routing = std::get<RoutingView>(entry.request.routing);
    TANDEM_TRY(dispatcher->prepare(entry.request.layer, entry.request.rows, routing, entry.prepared));
    const auto has_rows = [](const DispatchPart& part) { return !part.rows.empty(); };
    entry.direct = std::ranges::count_if(entry.prepared.parts, has_rows) == 1;
    for (size_t i = 0; i < entry.prepared.parts.size(); ++i) {
      if (has_rows(entry.prepared.parts[i])) TANDEM_TRY(ask(entry, i));
    }
    return {};
  }

  void add_up(PendingRequest& entry) {
    sums.clear();
    for (size_t i = 0; i < entry.parts.size(); ++i) {
      sums.push_back(entry.prepared.parts[i].rows.empty() ? nullptr : entry.parts[i].sums.data());
    }
    add_partials(entry.prepared, sums, options.settings.hidden_size, traits.reply_dtype,
                 entry.request.out.data);
  }

  void on_part(size_t index, const Completion& answer) {
    for (PendingRequest& entry : pending) {
      if (!entry.used || !entry.parts[index].asked || entry.parts[index].ticket != answer.ticket) continue;
      entry.parts[index].asked = false;
      --entry.unanswered;
      entry.times.queue_us = std::max(entry.times.queue_us, answer.times.queue_us);
      entry.times.compute_us = std::max(entry.times.compute_us, answer.times.compute_us);
      entry.times.exchange_us = std::max(entry.times.exchange_us, answer.times.exchange_us);
      entry.times.residence_us = std::max(entry.times.residence_us, answer.times.residence_us);
      if (!answer.status) return complete(entry, answer.status);  // the other parts are not wanted any more
      if (entry.unanswered > 0) return;
      if (!entry.direct) add_up(entry);
      return complete(entry, {});
    }
  }

  void collect() {
    std::array<Completion, kPollBatch> answers;
    for (size_t index = 0; index < dispatcher->ranks().size(); ++index) {
      RemoteFfn& link = *links[dispatcher->ranks()[index]];
      for (size_t count = kPollBatch; count == kPollBatch;) {
        count = link.poll(answers);
        for (size_t i = 0; i < count; ++i) on_part(index, answers[i]);
      }
    }
  }

  const RemoteFfnOptions options;
  const FfnTraits traits;
  UniqueFd event, waitable;  // of completions that are here already; of those and all connections
  std::unique_ptr<ExpertDispatcher> dispatcher;
  std::vector<PendingRequest> pending;
  size_t in_flight = 0;
  uint64_t next_serial = 1;
  uint64_t next_empty_ticket = UINT64_MAX;  // requests without rows: counted down, never meets another ticket
  std::vector<Completion> completions;
  std::vector<const std::byte*> sums;  // scratch
  std::atomic<uint64_t> requests{0}, failures{0};
  std::vector<std::unique_ptr<RemoteFfn>>
      links;  // by rank; last: they stop before the buffers they write into go
};

M2nFfn::M2nFfn(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
M2nFfn::~M2nFfn() = default;

Result<std::unique_ptr<M2nFfn>> M2nFfn::create(const RemoteFfnOptions& options) {
  TANDEM_TRY(options.settings.validate());
  TANDEM_TRY(check_placement(options.settings));
  if (options.addresses.empty() || options.addresses.size() > UINT16_MAX) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("connector m2n: {} FFN addresses", options.addresses.size()));
  }
  auto impl = std::make_unique<Impl>(options);
  TANDEM_TRY(impl->open_descriptors());
  TANDEM_TRY(impl->start_links());
  TANDEM_TRY(impl->wait_for_links());
  TANDEM_TRY(impl->assemble());
  return std::unique_ptr<M2nFfn>(new M2nFfn(std::move(impl)));
}

const FfnTraits& M2nFfn::traits() const {
  return impl_->traits;
}
int M2nFfn::wait_fd() const {
  return impl_->waitable.get();
}
const ExpertMap& M2nFfn::map() const {
  return impl_->dispatcher->map();
}

Result<Ticket> M2nFfn::submit(const FfnRequest& request) {
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
  if (Status sent = state.dispatch(entry); !sent) {
    state.close(entry);
    return std::unexpected(std::move(sent.error()));
  }
  ++state.requests;
  return entry.ticket;
}

size_t M2nFfn::poll(std::span<Completion> out) {
  Impl& state = *impl_;
  state.collect();
  const size_t count = std::min(out.size(), state.completions.size());
  const auto end = state.completions.begin() + static_cast<std::ptrdiff_t>(count);
  std::move(state.completions.begin(), end, out.begin());
  state.completions.erase(state.completions.begin(), end);
  if (state.completions.empty()) {
    uint64_t drained = 0;
    [[maybe_unused]] const ssize_t got = read(state.event.get(), &drained, sizeof drained);
  } else {
    state.signal();
  }
  return count;
}

void M2nFfn::cancel(Ticket ticket) {
  Impl& state = *impl_;
  if (PendingRequest* entry = state.find(ticket); entry != nullptr) return state.close(*entry);
  std::erase_if(state.completions,
                [ticket](const Completion& completion) { return completion.ticket == ticket; });
}

Status M2nFfn::health() const {
  for (const auto& link : impl_->links) TANDEM_TRY(link->health());
  return {};
}

RemoteFfnStats M2nFfn::stats() const {
  RemoteFfnStats sum{.requests = impl_->requests.load(), .failures = impl_->failures.load()};
  for (const auto& link : impl_->links) {
    const RemoteFfnStats one = link->stats();
    sum.tiles_sent += one.tiles_sent;
    sum.replies += one.replies;
    sum.replies_dropped += one.replies_dropped;
    sum.connections += one.connections;
  }
  return sum;
}

std::vector<FfnRankFacts> M2nFfn::peers() const {
  return impl_->peers();
}

}  // namespace tandem
