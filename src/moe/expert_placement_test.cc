#include "moe/expert_placement.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

namespace tandem {
namespace {

using Kind = PlacementKind;

TEST(SliceGranule, IsAFunctionOfTheShapeThatLeavesFourGranulesWhereItCan) {
  const std::pair<uint32_t, uint32_t> table[] = {{14336, 128}, {2048, 128}, {1408, 128}, {768, 128},
                                                 {512, 128},   {511, 64},   {64, 16},    {40, 8},
                                                 {24, 4},      {16, 4},     {9, 2},      {1, 2}};
  for (const auto& [size, granule] : table) EXPECT_EQ(slice_granule(size), granule) << size;
  EXPECT_EQ(num_granules(1408), 11u);
  EXPECT_EQ(num_granules(511), 8u);  // the last one is shorter
  EXPECT_EQ(slice_rows(40, 0, 3), (RowRange{0, 8}));
  EXPECT_EQ(slice_rows(40, 1, 3), (RowRange{8, 24}));
  EXPECT_EQ(slice_rows(40, 2, 3), (RowRange{24, 40}));
  EXPECT_EQ(slice_rows(511, 7, 8), (RowRange{448, 511}));
  EXPECT_TRUE(is_slice(511, {448, 511}));
  for (const RowRange rows : {RowRange{0, 8}, RowRange{64, 64}, RowRange{448, 512}, RowRange{32, 128}})
    EXPECT_FALSE(is_slice(511, rows)) << rows.begin << ".." << rows.end;
}

// Which rank holds what, written down.
TEST(HeldShare, Table) {
  const ExpertMapShape shape{{0}, 10, 64};  // granules of 16
  struct Row {
    ExpertPlacement placement;
    uint32_t rank, ranks;
    ExpertShare want;
  };
  const Row table[] = {
      {{}, 0, 1, {{{0, 10}}, {0, 64}}},
      {{}, 1, 3, {{{3, 6}}, {0, 64}}},
      {{Kind::expert, 2, 2}, 0, 3, {{{0, 3}, {6, 10}}, {0, 64}}},  // its own and the last one's
      {{Kind::expert, 2, 2}, 2, 3, {{{3, 6}, {6, 10}}, {0, 64}}},
      {{Kind::slice}, 0, 3, {{{0, 10}}, {0, 16}}},
      {{Kind::slice}, 1, 3, {{{0, 10}}, {16, 32}}},
      {{Kind::slice}, 2, 3, {{{0, 10}}, {32, 64}}},
      {{Kind::hybrid, 2}, 1, 4, {{{0, 5}}, {32, 64}}},
      {{Kind::hybrid, 2}, 2, 4, {{{5, 10}}, {0, 32}}},
      {{Kind::hybrid, 2, 2}, 2, 4, {{{0, 5}, {5, 10}}, {0, 32}}},
      {{Kind::hybrid, 2}, 1, 5, {{{0, 5}}, {32, 64}}},  // groups of two and of three
      {{Kind::hybrid, 2}, 2, 5, {{{5, 10}}, {0, 16}}},
      {{Kind::hybrid, 2}, 4, 5, {{{5, 10}}, {32, 64}}},
      {{Kind::hybrid, 1}, 4, 5, {{{8, 10}}, {0, 64}}},   // as expert
      {{Kind::hybrid, 3}, 1, 3, {{{0, 10}}, {16, 32}}},  // as slice
  };
  for (const Row& row : table) {
    const auto share = held_share(shape, row.placement, row.rank, row.ranks);
    ASSERT_TRUE(share.has_value()) << share.error().message;
    EXPECT_EQ(*share, row.want) << static_cast<int>(row.placement.kind) << " rank " << row.rank << " of "
                                << row.ranks;
  }
}

// Every combination of ranks and experts is either refused or covers every row of every expert exactly
// `replicas` times, in pieces from which a map can be made; and no rank holds two pieces of one expert.
TEST(HeldShare, EveryRowIsHeldExactlyAsOftenAsThereAreReplicas) {
  std::map<Kind, int> accepted;
  for (uint32_t ranks = 1; ranks <= 5; ++ranks) {
    for (const uint32_t experts : {7u, 10u, 16u, 64u}) {
      for (const Kind kind : {Kind::expert, Kind::slice, Kind::hybrid}) {
        for (uint32_t slices = 1; slices <= (kind == Kind::hybrid ? 5u : 1u); ++slices) {
          for (uint32_t replicas = 1; replicas <= 3; ++replicas) {
            const ExpertMapShape shape{{1, 4}, experts, 40};
            const ExpertPlacement placement{kind, slices, replicas};
            std::vector<Piece> pieces;
            bool refused = false;
            for (uint32_t rank = 0; rank < ranks; ++rank) {
              const auto share = held_share(shape, placement, rank, ranks);
              ASSERT_EQ(share.has_value(), rank == 0 ? share.has_value() : !refused) << "ranks disagree";
              refused = !share.has_value();
              if (refused) continue;
              for (const Piece& piece : share_pieces(shape, *share, {static_cast<uint16_t>(rank), 0}))
                pieces.push_back(piece);
            }
            if (refused) continue;
            ++accepted[kind];
            const auto map = ExpertMap::assemble(shape, pieces, 1);
            ASSERT_TRUE(map.has_value()) << map.error().message;
            for (const uint16_t layer : shape.moe_layers) {
              for (uint16_t expert = 0; expert < experts; ++expert) {
                std::vector<uint32_t> held(shape.intermediate_size, 0);
                std::map<uint16_t, int> by_rank;
                for (const Piece& piece : map->pieces(layer, expert)) {
                  ASSERT_EQ(++by_rank[piece.owner.rank], 1);
                  for (uint32_t row = piece.row_begin; row < piece.row_end; ++row) ++held[row];
                }
                ASSERT_EQ(held, std::vector<uint32_t>(held.size(), replicas)) << expert;
              }
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(accepted[Kind::expert], 4 * (1 + 2 + 3 + 3 + 3));
  EXPECT_EQ(accepted[Kind::slice], 4 * 5);
  EXPECT_GT(accepted[Kind::hybrid], 4 * 15);
}

TEST(HeldShare, WhatCannotBeIsRefusedByName) {
  const auto message = [](const ExpertPlacement& placement, uint32_t ranks) {
    const auto share = held_share({{0}, 10, 64}, placement, 0, ranks);
    EXPECT_FALSE(share.has_value());
    return share ? std::string() : share.error().message;
  };
  const auto expect = [&](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect(message({}, 11),
         "afd.num_ffn_ranks: 11 FFN ranks, and the model has 10 experts a layer: a rank needs");
  expect(message({Kind::hybrid, 2}, 24),
         "24 FFN ranks in 12 groups, and the model has 10 experts a layer: a group");
  expect(message({Kind::slice}, 5),
         "afd.placement: slices of an expert on 5 of 5 FFN ranks, and its 64 intermediate rows are 4 "
         "granules of "
         "16; use hybrid with afd.expert_slices up to 4");
  expect(message({Kind::hybrid, 3}, 2), "afd.expert_slices: 3 with 2 FFN ranks");
  expect(message({Kind::hybrid, 2, 3}, 4), "afd.expert_replicas: 3 with 4 FFN ranks in 2 groups");
  expect(message({Kind::slice, 2, 2}, 4), "afd.expert_replicas: 2 with 4 FFN ranks in 1 group:");
  expect(message({Kind::hybrid, 2, 2}, 5), "groups of different sizes");
  expect(message({Kind::expert, 2, 0}, 2), "afd.expert_replicas: 0;");
}

}  // namespace
}  // namespace tandem
