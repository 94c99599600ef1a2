#include "afd/in_flight.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

FfnRequest request(uint32_t rows, RowClass row_class = RowClass::decode, StepId step = 1) {
  FfnRequest made;
  made.layer = 3;
  made.step = step;
  made.rows = made.capacity = rows;
  made.row_class = row_class;
  return made;
}

FrameHeader reply_to(const InFlightRequest& entry, uint16_t tile) {
  FrameHeader header;
  header.step = entry.request.step;
  header.layer = entry.request.layer;
  header.lane = entry.request.lane;
  header.attempt = entry.attempt;
  header.tile = tile;
  header.tiles = static_cast<uint16_t>(entry.tiles);
  header.rows = entry.tile_rows(tile);
  return header;
}

TEST(InFlight, CutsRowsIntoTiles) {
  InFlightTable table(4);
  const InFlightRequest* entry = table.open(request(130), {});
  ASSERT_EQ(entry->tiles, 3u);
  EXPECT_EQ(entry->tile_rows(0), 64u);
  EXPECT_EQ(entry->tile_rows(2), 2u);
  EXPECT_EQ(entry->tile_begin(2), 128u);
}

TEST(InFlight, OnlyTheExpectedReplyMatches) {
  InFlightTable table(4);
  InFlightRequest& entry = *table.open(request(130), {});
  EXPECT_EQ(table.match(reply_to(entry, 0)), nullptr);  // not sent yet
  for (int i = 0; i < 3; ++i) table.mark_sent(entry);
  EXPECT_EQ(table.match(reply_to(entry, 2)), &entry);
  const auto changed = [&](auto change) {
    FrameHeader header = reply_to(entry, 2);
    change(header);
    return table.match(header);
  };
  EXPECT_EQ(changed([](auto& h) { h.step++; }), nullptr);
  EXPECT_EQ(changed([](auto& h) { h.layer++; }), nullptr);
  EXPECT_EQ(changed([](auto& h) { h.lane++; }), nullptr);
  EXPECT_EQ(changed([](auto& h) { h.attempt++; }), nullptr);
  EXPECT_EQ(changed([](auto& h) { h.tiles++; }), nullptr);
  EXPECT_EQ(changed([](auto& h) { h.rows++; }), nullptr);
  EXPECT_EQ(changed([](auto& h) { h.tile = 3; }), nullptr);
  EXPECT_FALSE(table.mark_answered(entry, 2, {1, 9, 3, 4}));
  EXPECT_EQ(table.match(reply_to(entry, 2)), nullptr);  // twice
  EXPECT_FALSE(table.mark_answered(entry, 0, {5, 2, 3, 4}));
  EXPECT_TRUE(table.mark_answered(entry, 1, {}));
  EXPECT_EQ(entry.times.queue_us, 5u);
  EXPECT_EQ(entry.times.compute_us, 9u);
}

TEST(InFlight, AClosedTicketIsGoneAndItsEntryIsReused) {
  InFlightTable table(1);
  InFlightRequest* first = table.open(request(1), {});
  const Ticket ticket = first->ticket;
  table.mark_sent(*first);
  const FrameHeader late = reply_to(*first, 0);
  EXPECT_EQ(table.open(request(1), {}), nullptr);  // full
  table.close(*first);
  EXPECT_EQ(table.find(ticket), nullptr);
  InFlightRequest* second = table.open(request(1), {});
  table.mark_sent(*second);
  EXPECT_NE(second->ticket, ticket);
  EXPECT_EQ(table.find(ticket), nullptr);
  EXPECT_EQ(table.match(late), nullptr);  // same step, layer and lane: the attempt tells them apart
}

TEST(InFlight, DecodeLeavesFirstAndPrefillLeavesACredit) {
  InFlightTable table(8);
  InFlightRequest& prompt = *table.open(request(64 * 5, RowClass::prefill), {});
  InFlightRequest& decode = *table.open(request(1), {});
  EXPECT_EQ(table.next_to_send(2), &decode);
  table.mark_sent(decode);
  table.mark_sent(prompt);
  EXPECT_EQ(table.next_to_send(2), &prompt);
  table.mark_sent(prompt);
  EXPECT_EQ(table.next_to_send(2), nullptr);  // two unanswered
  table.mark_answered(prompt, 0, {});
  EXPECT_EQ(table.next_to_send(2), &prompt);
  table.close(prompt);
  InFlightRequest& other = *table.open(request(64 * 2, RowClass::profile), {});
  table.mark_sent(other);
  EXPECT_EQ(table.next_to_send(2), &other);  // closing gave back what was unanswered
  EXPECT_EQ(table.in_flight(), 2u);
}

}  // namespace
}  // namespace tandem
