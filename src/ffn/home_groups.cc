#include "ffn/home_groups.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>

#include "base/region_time.h"

namespace tandem {
namespace {

constexpr size_t kPollBatch = 16;
constexpr uint32_t kMinRows = kMaxTileRows;  // buffers of small groups are not resized

Status make_room(OwnedBuffer& buffer, uint32_t rows, size_t row_bytes) {
  if (buffer.size() >= rows * row_bytes) return {};
  TANDEM_ASSIGN(buffer, OwnedBuffer::allocate(std::bit_ceil(std::max(rows, kMinRows)) * row_bytes));
  return {};
}

}  // namespace

struct HomeGroups::Group {
  struct Part {
    bool asked = false;
    Ticket ticket = 0;
    OwnedBuffer sums;  // [rows of the part, hidden] of the reply dtype; all rows with allgather
  };

  std::vector<WaitingTile> tiles;
  LayerIndex layer = 0;
  RowClass row_class = RowClass::decode;
  uint32_t rows = 0;
  uint32_t serial = 0;
  OwnedBuffer values, scales;  // [rows, hidden]: as they came, tile after tile
  ActivationView in;
  std::vector<int32_t> ids;    // [rows, top_k]
  std::vector<float> weights;  // [rows, top_k]
  Prepared prepared;
  std::vector<uint8_t> shared_rows;  // [rows]: 1; the home adds the shared experts of all its rows
  ExchangeKind kind = ExchangeKind::alltoall;
  std::vector<Part> parts;  // as prepared.parts
  TileView own;             // what this rank computes
  uint32_t unanswered = 0;
  OwnedBuffer out;  // [rows, hidden] of the reply dtype
  Instant started, own_done;

  RoutingView routing(uint32_t top_k) const { return {ids, weights, top_k}; }
};

HomeGroups::HomeGroups(const SplitSettings& settings, ExchangeKind kind, ExchangeLinks& exchange,
                       std::function<void(WaitingTile&)> done)
    : settings_(settings), kind_(kind), exchange_(exchange), done_(std::move(done)) {}

HomeGroups::~HomeGroups() {
  fail_all({ErrorCode::unavailable, "this rank stops"});
}

HomeGroups::Group* HomeGroups::acquire() {
  if (free_.empty()) {
    groups_.push_back(std::make_unique<Group>());
    free_.push_back(groups_.back().get());
  }
  Group* group = free_.back();
  free_.pop_back();
  return group;
}

HomeGroups::Group* HomeGroups::begin(std::span<WaitingTile> tiles, Instant start, const MoeRoute& route) {
  Group* group = acquire();
  group->started = group->own_done = start;
  group->serial = next_serial_++;
  group->unanswered = 0;
  group->tiles.clear();
  Status sent = gather(*group, tiles);
  for (WaitingTile& tile : tiles) group->tiles.push_back(std::move(tile));
  if (sent) sent = dispatch(*group, route);
  if (sent) sent = send_parts(*group);
  if (sent) return group;
  fail(group, sent.error());
  return nullptr;
}

Status HomeGroups::gather(Group& group, std::span<WaitingTile> tiles) {
  const FrameHeader& first = tiles.front().tile.header;
  group.layer = first.layer;
  group.row_class = static_cast<RowClass>(first.row_class);
  group.rows = 0;
  for (const WaitingTile& tile : tiles) group.rows += tile.tile.header.rows;
  const size_t row_bytes = dtype_bytes(settings_.activation_dtype, settings_.hidden_size);
  const size_t scale_bytes = scale_row_bytes(settings_.activation_format, settings_.hidden_size);
  TANDEM_TRY(make_room(group.values, group.rows, row_bytes));
  if (scale_bytes > 0) TANDEM_TRY(make_room(group.scales, group.rows, scale_bytes));
  group.ids.clear();
  group.weights.clear();
  size_t done = 0;
  for (const WaitingTile& waiting : tiles) {
    const TileView& tile = waiting.tile;
    gather_rows(tile.in, {}, tile.header.rows, settings_.hidden_size, group.values.data() + done * row_bytes,
                scale_bytes > 0 ? group.scales.data() + done * scale_bytes : nullptr);
    done += tile.header.rows;
    if (const auto* routing = std::get_if<RoutingView>(&tile.routing)) {
      group.ids.insert(group.ids.end(), routing->ids.begin(), routing->ids.end());
      group.weights.insert(group.weights.end(), routing->weights.begin(), routing->weights.end());
    }
  }
  group.in = {settings_.activation_dtype, group.values.data(), settings_.hidden_size};
  if (scale_bytes > 0) {
    group.in.format = settings_.activation_format;
    group.in.scales = group.scales.data();
    group.in.scale_stride = scale_cols(settings_.activation_format, settings_.hidden_size);
  }
  return {};
}

Status HomeGroups::dispatch(Group& group, const MoeRoute& route) {
  const uint32_t top_k = settings_.top_k;
  if (settings_.gate_on_attention) {
    // Again, on the copy: the peer may still write the memory that its tile lies in.
    TANDEM_TRY(check_routing_values(group.routing(top_k), group.rows, settings_));
  } else {
    group.ids.resize(size_t{group.rows} * top_k);
    group.weights.resize(group.ids.size());
    TANDEM_TRY(route(group.layer, group.rows, group.in, group.ids, group.weights));
  }
  TANDEM_TRY(exchange_.dispatcher().prepare(group.layer, group.rows, group.routing(top_k), group.prepared));
  group.kind = choose_exchange(kind_, group.prepared, exchange_.own_part());
  group.parts.resize(group.prepared.parts.size());
  return {};
}

Status HomeGroups::send_parts(Group& group) {
  const size_t own = exchange_.own_part();
  const bool allgather = group.kind == ExchangeKind::allgather;
  for (size_t i = 0; i < group.prepared.parts.size(); ++i) {
    if (i != own && (allgather || !group.prepared.parts[i].rows.empty())) TANDEM_TRY(ask(group, i));
  }
  if (group.unanswered > 0) {
    ++stats_.groups;
    ++(allgather ? stats_.allgather : stats_.alltoall);
  }
  DispatchPart& mine = group.prepared.parts[own];
  if (settings_.shared_experts_on_ffn()) {
    // All rows: some without a slot here, for their shared experts.
    mine.weights.resize(group.weights.size());
    TANDEM_TRY(exchange_.take_own(group.layer, group.rows, group.routing(settings_.top_k), mine.weights));
    mine.rows.resize(group.rows);
    std::iota(mine.rows.begin(), mine.rows.end(), 0u);
    mine.ids = group.ids;
    group.shared_rows.assign(group.rows, 1);
  } else {
    group.shared_rows.clear();
  }
  group.own = {};
  group.own.header.layer = group.layer;
  group.own.header.rows = static_cast<uint32_t>(mine.rows.size());
  group.own.in = group.in;
  group.own.routing = mine.routing(settings_.top_k);
  group.own.part = {.row_index = mine.rows, .flags = kFramePartial, .shared_rows = group.shared_rows};
  return {};
}

Status HomeGroups::ask(Group& group, size_t index) {
  const DispatchPart& part = group.prepared.parts[index];
  Group::Part& pending = group.parts[index];
  const bool allgather = group.kind == ExchangeKind::allgather;
  FfnRequest request;
  request.layer = group.layer;
  request.step = group.serial;
  request.row_class = group.row_class;
  request.rows = request.capacity = allgather ? group.rows : static_cast<uint32_t>(part.rows.size());
  request.in = group.in;
  request.routing = allgather ? group.routing(settings_.top_k) : part.routing(settings_.top_k);
  const size_t row_bytes = dtype_bytes(settings_.reply_dtype, settings_.hidden_size);
  TANDEM_TRY(make_room(pending.sums, request.rows, row_bytes));
  request.out = {pending.sums.data(), request.rows * row_bytes, MemorySpace::host};
  RequestPart how{.flags = kFramePartial, .map_epoch = exchange_.map_epoch()};
  if (allgather) {
    how.flags |= kFrameByMap;
  } else {
    how.row_index = part.rows;
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

void HomeGroups::own_done(Group* group, std::span<const std::byte> sums) {
  group->own_done = now();
  if (!sums.empty()) {
    Group::Part& mine = group->parts[exchange_.own_part()];
    const size_t row_bytes = dtype_bytes(settings_.reply_dtype, settings_.hidden_size);
    if (Status room = make_room(mine.sums, group->own.header.rows, row_bytes); !room)
      return fail(group, room.error());
    std::memcpy(mine.sums.data(), sums.data(), sums.size());
  }
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
      Group::Part& part = group->parts[i];
      if (group->prepared.parts[i].rank != rank || !part.asked || part.ticket != answer.ticket) continue;
      part.asked = false;
      std::erase(parked_, group);
      if (!answer.status) return fail(group, answer.status.error());
      if (--group->unanswered == 0) return finish(group);
      return parked_.push_back(group);
    }
  }
}

void HomeGroups::finish(Group* group) {
  const size_t row_bytes = dtype_bytes(settings_.reply_dtype, settings_.hidden_size);
  if (Status room = make_room(group->out, group->rows, row_bytes); !room) return fail(group, room.error());
  partials_.clear();
  for (size_t i = 0; i < group->parts.size(); ++i) {
    const std::vector<uint32_t>& rows = group->prepared.parts[i].rows;
    std::byte* sums = group->parts[i].sums.data();
    if (group->kind == ExchangeKind::allgather && i != exchange_.own_part()) {
      // All rows were answered; those without a slot there are nobody's sum.
      for (size_t row = 0; row < rows.size(); ++row) {
        if (rows[row] != row) std::memcpy(sums + row * row_bytes, sums + rows[row] * row_bytes, row_bytes);
      }
    }
    partials_.push_back(rows.empty() ? nullptr : sums);
  }
  const RegionTimer timer;
  add_partials(group->prepared, partials_, settings_.hidden_size, settings_.reply_dtype, group->out.data());
  const Instant end = now();
  stats_.exchange_us += microseconds_since(group->own_done, end);
  size_t done = 0;
  for (WaitingTile& tile : group->tiles) {
    const size_t bytes = tile.tile.header.rows * row_bytes;
    const FfnTimes times{.queue_us = microseconds_since(tile.arrived, group->started),
                         .compute_us = microseconds_since(group->started, group->own_done),
                         .exchange_us = microseconds_since(group->own_done, end),
                         .residence_us = microseconds_since(tile.arrived, end)};
    tile.session->reply(tile.tile.header, times, {group->out.data() + done, bytes}, std::move(tile.lease));
    done += bytes;
  }
  release(group);
}

void HomeGroups::fail(Group* group, const Error& error) {
  for (size_t i = 0; i < group->parts.size(); ++i) {
    Group::Part& part = group->parts[i];
    if (part.asked) exchange_.links()[group->prepared.parts[i].rank].cancel(part.ticket);
    part.asked = false;
  }
  const Instant end = now();
  for (WaitingTile& tile : group->tiles) {
    const FfnTimes times{.queue_us = microseconds_since(tile.arrived, group->started),
                         .residence_us = microseconds_since(tile.arrived, end)};
    tile.session->reply_error(tile.tile.header, times, error, std::move(tile.lease));
    ++stats_.failed_tiles;
  }
  release(group);
}

void HomeGroups::release(Group* group) {
  for (WaitingTile& tile : group->tiles) done_(tile);
  group->tiles.clear();
  free_.push_back(group);
}

void HomeGroups::fail_all(const Error& error) {
  std::vector<Group*> parked;
  parked.swap(parked_);
  for (Group* group : parked) fail(group, error);
}

}  // namespace tandem
