#include "ffn/home_groups.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "base/region_time.h"
#include "moe/router.h"

namespace tandem {
namespace {

constexpr size_t kPollBatch = 16;

// Which rows of the group a part has; none for all of them, which travel as they lie.
std::span<const uint32_t> some_rows(const HomeGroup& group, const DispatchPart& part) {
  return part.rows.size() == group.rows ? std::span<const uint32_t>() : std::span(part.rows);
}

// Makes a part of some rows one of all rows, those that it lacks with weights of 0.
void widen(DispatchPart& part, const HomeGroup& group, uint32_t top_k) {
  part.weights.resize(size_t{group.rows} * top_k);
  size_t left = part.rows.size();
  for (uint32_t row = group.rows; row-- > 0;) {  // backwards: no row lies behind its place
    const auto to = part.weights.begin() + static_cast<std::ptrdiff_t>(size_t{row} * top_k);
    if (left > 0 && part.rows[left - 1] == row) {
      --left;
      if (left != row)
        std::copy_n(part.weights.begin() + static_cast<std::ptrdiff_t>(left * top_k), top_k, to);
    } else {
      std::fill_n(to, top_k, 0.0f);
    }
  }
  part.rows.resize(group.rows);
  std::iota(part.rows.begin(), part.rows.end(), 0u);
  part.ids = group.ids;
}

}  // namespace

HomeGroups::HomeGroups(const SplitSettings& settings, ExchangeKind kind, ReplicaChoice choice,
                       ExchangeLinks& exchange, std::function<void(WaitingTile&)> done)
    : settings_(settings),
      kind_(kind),
      choice_(kind == ExchangeKind::allgather ? ReplicaChoice::by_row : choice),
      exchange_(exchange),
      done_(std::move(done)) {}

HomeGroups::~HomeGroups() {
  fail_all({ErrorCode::unavailable, "this rank stops"});
}

Result<std::unique_ptr<HomeGroups>> HomeGroups::create(const SplitSettings& settings, ExchangeKind kind,
                                                       ReplicaChoice choice, ExchangeLinks& exchange,
                                                       std::function<void(WaitingTile&)> done) {
  std::unique_ptr<HomeGroups> created(new HomeGroups(settings, kind, choice, exchange, std::move(done)));
  TANDEM_TRY(created->prepare());
  return created;
}

Status HomeGroups::prepare() {
  groups_.reserve(kMostHomeGroups);
  free_.reserve(kMostHomeGroups);
  free_prepared_.reserve(kMostHomeGroups);
  parked_.reserve(kMostHomeGroups);
  partials_.reserve(settings_.num_ffn_ranks);
  if (!settings_.graph) return {};
  for (uint32_t i = 0; i < kPreparedHomeGroups; ++i) {
    groups_.push_back(std::make_unique<Group>());
    TANDEM_TRY(groups_.back()->prepare(settings_, settings_.capture_sizes.back(), settings_.num_ffn_ranks));
    free_prepared_.push_back(groups_.back().get());
  }
  return {};
}

HomeGroups::Group* HomeGroups::acquire(bool prepared) {
  std::vector<Group*>& from = prepared ? free_prepared_ : free_;
  if (from.empty()) {  // never of the prepared ones: has_prepared was asked
    groups_.push_back(std::make_unique<Group>());
    from.push_back(groups_.back().get());
  }
  Group* group = from.back();
  from.pop_back();
  return group;
}

HomeGroups::Group* HomeGroups::begin(std::span<WaitingTile> tiles, Instant start, const MoeRoute& route,
                                     bool replay) {
  Group* group = acquire(replay);
  group->started = group->own_done = start;
  group->serial = next_serial_++;
  group->unanswered = 0;
  Status sent = group->take(tiles, settings_);
  if (sent) sent = settle_routing(*group, route);
  if (sent && group->tiles.empty()) {
    release(group);
    return nullptr;
  }
  if (sent) sent = dispatch(*group);
  if (sent) sent = send_parts(*group);
  if (sent) return group;
  fail(group, sent.error());
  return nullptr;
}

Status HomeGroups::settle_routing(Group& group, const MoeRoute& route) {
  for (bool again = true; again && !group.tiles.empty();) {
    if (settings_.token_ids) {
      TANDEM_ASSIGN(again, drop_wrong_tiles(group, TokenIds{group.tokens}));
      if (again) continue;
    }
    if (!settings_.gate_on_attention) {
      group.ids.resize(size_t{group.rows} * settings_.top_k);
      group.weights.resize(group.ids.size());
      TANDEM_TRY(route(group.layer, group.rows, group.in, group.ids, group.weights, group.tokens));
    }
    TANDEM_ASSIGN(again, drop_wrong_tiles(group, group.routing(settings_.top_k)));
  }
  return {};
}

Result<bool> HomeGroups::drop_wrong_tiles(Group& group, const RoutingRef& routing) {
  // What came along passed a check on arrival, but its peer may still write the memory that it lies in; this
  // is the copy that is used.
  uint32_t first = 0;
  bool dropped = false;
  for (WaitingTile& tile : group.tiles) {
    const uint32_t rows = tile.tile.header.rows;
    const RoutingRef mine = slice_routing(routing, first, rows);
    first += rows;
    const auto* view = std::get_if<RoutingView>(&mine);
    const Status fits = view == nullptr
                            ? check_routing_values(mine, rows, settings_)
                            : validate_routing(settings_.num_experts, view->top_k, view->ids, view->weights);
    if (fits) continue;
    answer_error(group, tile, fits.error(), now());
    done_(tile);
    dropped = true;
  }
  if (!dropped) return false;
  std::erase_if(group.tiles, [](const WaitingTile& tile) { return tile.session == nullptr; });
  if (!group.tiles.empty()) TANDEM_TRY(group.gather(settings_));
  return true;
}

Status HomeGroups::dispatch(Group& group) {
  const uint32_t top_k = settings_.top_k;
  TANDEM_TRY(exchange_.dispatcher().prepare(group.layer, group.rows, group.routing(top_k), group.dispatched,
                                            choice_));
  // By map a receiver finds its rows from each row alone: that is not how these were shared out.
  group.kind = group.dispatched.by_experts ? ExchangeKind::alltoall
                                           : choose_exchange(kind_, group.dispatched, exchange_.own_part());
  group.parts.resize(group.dispatched.parts.size());
  return {};
}

Status HomeGroups::send_parts(Group& group) {
  const size_t own = exchange_.own_part();
  const bool allgather = group.kind == ExchangeKind::allgather;
  for (size_t i = 0; i < group.dispatched.parts.size(); ++i) {
    if (i != own && (allgather || !group.dispatched.parts[i].rows.empty())) TANDEM_TRY(ask(group, i));
  }
  if (group.unanswered > 0) {
    ++stats_.groups;
    ++(allgather ? stats_.allgather : stats_.alltoall);
  }
  DispatchPart& mine = group.dispatched.parts[own];
  group.shared_rows.clear();
  if (settings_.shared_experts_on_ffn()) {
    widen(mine, group, settings_.top_k);  // some rows without a slot here, for their shared experts
    group.shared_rows.assign(group.rows, 1);
  }
  group.own = {};
  group.own.header.layer = group.layer;
  group.own.header.rows = static_cast<uint32_t>(mine.rows.size());
  group.own.in = group.in;
  group.own.routing = mine.routing(settings_.top_k);
  group.own.part = {
      .row_index = some_rows(group, mine), .flags = kFramePartial, .shared_rows = group.shared_rows};
  return {};
}

uint32_t HomeGroups::word_of(const Group& group, uint32_t rows) const {
  if (!group.replays) return 0;
  const auto holds = std::ranges::lower_bound(settings_.capture_sizes, rows);
  return holds == settings_.capture_sizes.end() ? 0 : *holds;
}

Status HomeGroups::ask(Group& group, size_t index) {
  const DispatchPart& part = group.dispatched.parts[index];
  Group::Part& pending = group.parts[index];
  const bool allgather = group.kind == ExchangeKind::allgather;
  FfnRequest request;
  request.layer = group.layer;
  request.step = group.serial;
  request.row_class = group.row_class;
  request.rows = request.capacity = allgather ? group.rows : static_cast<uint32_t>(part.rows.size());
  request.in = group.in;
  request.program = word_of(group, request.rows);
  request.routing = allgather ? group.routing(settings_.top_k) : part.routing(settings_.top_k);
  const size_t row_bytes = dtype_bytes(settings_.reply_dtype, settings_.hidden_size);
  TANDEM_TRY(Group::make_room(pending.sums, request.rows, row_bytes));
  request.out = {pending.sums.data(), request.rows * row_bytes, MemorySpace::host};
  RequestPart how{.flags = kFramePartial, .map_epoch = exchange_.map_epoch()};
  if (allgather) {
    how.flags |= kFrameByMap;
  } else {
    how.row_index = some_rows(group, part);
  }
  TANDEM_ASSIGN(pending.ticket, exchange_.links()[part.rank].submit(request, how));
  pending.asked = true;
  ++group.unanswered;
  stats_.rows_sent += request.rows;
  return {};
}

const TileView* HomeGroups::own_part(const Group& group) const {
  return group.own.header.rows > 0 ? &group.own : nullptr;
}

Result<Buffer> HomeGroups::own_sums(Group& group) {
  const size_t row_bytes = dtype_bytes(settings_.reply_dtype, settings_.hidden_size);
  OwnedBuffer& sums = group.parts[exchange_.own_part()].sums;
  TANDEM_TRY(Group::make_room(sums, group.own.header.rows, row_bytes));
  return Buffer{sums.data(), group.own.header.rows * row_bytes, MemorySpace::host};
}

void HomeGroups::own_done(Group* group) {
  group->own_done = now();
  if (group->unanswered == 0) return finish(group);
  parked_.push_back(group);
}

void HomeGroups::collect() {
  std::array<Completion, kPollBatch> answers;
  RankLinks& links = exchange_.links();
  for (uint32_t rank = 0; rank < links.size(); ++rank) {
    if (!links.has(rank)) continue;
    for (size_t count = kPollBatch; count == kPollBatch;) {
      count = links[rank].poll(answers);
      for (size_t i = 0; i < count; ++i) on_answer(rank, answers[i]);
    }
  }
}

void HomeGroups::on_answer(uint32_t rank, const Completion& answer) {
  for (Group* group : parked_) {
    for (size_t i = 0; i < group->parts.size(); ++i) {
      const Group::Part& part = group->parts[i];
      if (group->dispatched.parts[i].rank != rank || !part.asked || part.ticket != answer.ticket) continue;
      const Instant start = now();
      const Duration computed = region_time_of_this_thread();
      uint64_t& spent = group->prepared ? host_ns_replay_ : host_ns_eager_;
      settle(group, i, answer.status);
      const Duration host = now() - start - (region_time_of_this_thread() - computed);
      spent += static_cast<uint64_t>(std::max<int64_t>(std::chrono::nanoseconds(host).count(), 0));
      return;
    }
  }
}

void HomeGroups::settle(Group* group, size_t part, const Status& answer) {
  group->parts[part].asked = false;
  if (answer && --group->unanswered > 0) return;
  stats_.exchange_us += microseconds_since(group->own_done);
  std::erase(parked_, group);
  answer ? finish(group) : fail(group, answer.error());
}

void HomeGroups::finish(Group* group) {
  if (!finish_in_place(*group)) {
    const size_t row_bytes = dtype_bytes(settings_.reply_dtype, settings_.hidden_size);
    if (Status room = Group::make_room(group->out, group->rows, row_bytes); !room)
      return fail(group, room.error());
    add_up(*group, group->out.data());
    const Instant end = now();
    size_t done = 0;
    for (WaitingTile& tile : group->tiles) {
      const size_t bytes = tile.tile.header.rows * row_bytes;
      tile.session->reply(tile.tile.header, times_of(*group, tile, end), {group->out.data() + done, bytes},
                          std::move(tile.lease));
      done += bytes;
    }
  }
  release(group);
}

bool HomeGroups::finish_in_place(Group& group) {
  if (group.tiles.size() != 1) return false;
  WaitingTile& tile = group.tiles.front();
  const auto layout = reply_layout(tile.tile.header, settings_);
  const auto slot = layout ? tile.session->acquire_reply(*layout) : std::unexpected(layout.error());
  if (!slot) return false;
  add_up(group, layout->payload(slot->bytes, PayloadRole::output).data());
  write_reply(*layout, times_of(group, tile, now()), slot->bytes);
  tile.lease = Lease();  // before the reply: whoever sees the reply sees the credit
  tile.session->commit_reply(*slot, layout->total_bytes());
  return true;
}

void HomeGroups::add_up(Group& group, std::byte* out) {
  const size_t row_bytes = dtype_bytes(settings_.reply_dtype, settings_.hidden_size);
  partials_.clear();
  for (size_t i = 0; i < group.parts.size(); ++i) {
    const std::vector<uint32_t>& rows = group.dispatched.parts[i].rows;
    std::byte* sums = group.parts[i].sums.data();
    if (group.kind == ExchangeKind::allgather && i != exchange_.own_part()) {
      // All rows were answered; those without a slot there are nobody's sum.
      for (size_t row = 0; row < rows.size(); ++row) {
        if (rows[row] != row) std::memcpy(sums + row * row_bytes, sums + rows[row] * row_bytes, row_bytes);
      }
    }
    partials_.push_back(rows.empty() ? nullptr : sums);
  }
  const RegionTimer timer;
  add_partials(group.dispatched, partials_, settings_.hidden_size, settings_.reply_dtype, out);
}

FfnTimes HomeGroups::times_of(const Group& group, const WaitingTile& tile, Instant end) const {
  return {.queue_us = microseconds_since(tile.arrived, group.started),
          .compute_us = microseconds_since(group.started, group.own_done),
          .exchange_us = microseconds_since(group.own_done, end),
          .residence_us = microseconds_since(tile.arrived, end)};
}

void HomeGroups::fail(Group* group, const Error& error) {
  for (size_t i = 0; i < group->parts.size(); ++i) {
    Group::Part& part = group->parts[i];
    if (part.asked) exchange_.links()[group->dispatched.parts[i].rank].cancel(part.ticket);
    part.asked = false;
  }
  const Instant end = now();
  for (WaitingTile& tile : group->tiles) answer_error(*group, tile, error, end);
  release(group);
}

void HomeGroups::answer_error(const Group& group, WaitingTile& tile, const Error& error, Instant end) {
  const FfnTimes times{.queue_us = microseconds_since(tile.arrived, group.started),
                       .residence_us = microseconds_since(tile.arrived, end)};
  tile.session->reply_error(tile.tile.header, times, error, std::move(tile.lease));
  ++stats_.failed_tiles;
}

void HomeGroups::release(Group* group) {
  for (WaitingTile& tile : group->tiles) done_(tile);
  group->tiles.clear();
  (group->prepared ? free_prepared_ : free_).push_back(group);
}

void HomeGroups::fail_all(const Error& error) {
  std::vector<Group*> parked;
  parked.swap(parked_);
  for (Group* group : parked) fail(group, error);
}

}  // namespace tandem
