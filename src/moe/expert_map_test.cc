#include "moe/expert_map.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tandem {
namespace {

const ExpertMapShape kShape{{1, 2}, 4, 256};

TEST(ExpertMap, WholeCoversEverything) {
  const ExpertMap whole = ExpertMap::whole(kShape, {3, 0});
  EXPECT_EQ(whole.pieces().size(), 8u);
  EXPECT_EQ(whole.pieces(2, 3).size(), 1u);
  EXPECT_TRUE(whole.pieces(0, 0).empty());
  EXPECT_EQ(whole.owners(), (std::vector<OwnerId>{{3, 0}}));
  const auto again = ExpertMap::assemble(kShape, {whole.pieces().begin(), whole.pieces().end()}, 5);
  ASSERT_TRUE(again.has_value()) << again.error().message;
  EXPECT_EQ(again->epoch(), 5u);
}

std::vector<Piece> all_but(uint16_t layer, std::vector<uint16_t> experts) {
  std::vector<Piece> pieces;
  const ExpertMap whole = ExpertMap::whole(kShape, {0, 0});
  for (const Piece& piece : whole.pieces()) {
    const bool dropped = piece.layer == layer && std::count(experts.begin(), experts.end(), piece.expert) > 0;
    if (!dropped) pieces.push_back(piece);
  }
  return pieces;
}

TEST(ExpertMap, AMissingPieceNamesLayersAndExperts) {
  const auto map = ExpertMap::assemble(kShape, all_but(2, {0, 1, 3}), 0);
  ASSERT_FALSE(map.has_value());
  EXPECT_NE(map.error().message.find("layer 2: experts 0-1, 3;"), std::string::npos) << map.error().message;
}

TEST(ExpertMap, AMissingSliceNamesItsRowsToo) {
  auto pieces = all_but(1, {2, 3});
  for (const uint16_t expert : {2, 3}) {
    pieces.push_back({1, expert, 0, 64, {1, 0}});
    pieces.push_back({1, expert, 128, 256, {2, 0}});
  }
  const auto map = ExpertMap::assemble(kShape, pieces, 0);
  ASSERT_FALSE(map.has_value());
  EXPECT_EQ(map.error().code, ErrorCode::unavailable);
  EXPECT_NE(map.error().message.find("no FFN rank holds layer 1: experts 2-3, rows 64..128;"),
            std::string::npos)
      << map.error().message;
}

TEST(ExpertMap, SlicesAndReplicasAreAccepted) {
  auto pieces = all_but(1, {2});
  pieces.push_back({1, 2, 128, 256, {1, 0}});
  EXPECT_FALSE(ExpertMap::assemble(kShape, pieces, 0).has_value());  // rows 0..128 are missing
  pieces.push_back({1, 2, 0, 128, {2, 0}});
  pieces.push_back({1, 2, 0, 128, {4, 1}});  // a replica of a slice
  const auto map = ExpertMap::assemble(kShape, pieces, 0);
  ASSERT_TRUE(map.has_value()) << map.error().message;
  EXPECT_EQ(map->pieces(1, 2).size(), 3u);
}

TEST(ExpertMap, OverlapsDuplicatesAndForeignPiecesAreRefused) {
  auto pieces = all_but(1, {2});
  pieces.push_back({1, 2, 0, 192, {1, 0}});
  pieces.push_back({1, 2, 128, 256, {2, 0}});
  EXPECT_NE(ExpertMap::assemble(kShape, pieces, 0).error().message.find("overlaps"), std::string::npos);

  pieces = all_but(9, {});  // whole experts on rank 0, and a slice of one on another rank: not equal
  pieces.push_back({1, 2, 0, 128, {1, 0}});
  EXPECT_NE(ExpertMap::assemble(kShape, pieces, 0).error().message.find("replicas must be copies"),
            std::string::npos);

  pieces = all_but(1, {2});  // deterministic sums add up granules of 64
  pieces.push_back({1, 2, 0, 96, {1, 0}});
  pieces.push_back({1, 2, 96, 256, {2, 0}});
  EXPECT_NE(ExpertMap::assemble(kShape, pieces, 0)
                .error()
                .message.find("layer 1, expert 2, rows 0..96 of rank 1 is not cut on multiples of 64"),
            std::string::npos);

  pieces = all_but(9, {});
  pieces.push_back(pieces.front());
  EXPECT_NE(ExpertMap::assemble(kShape, pieces, 0).error().message.find("stated twice"), std::string::npos);

  for (const Piece& foreign :
       {Piece{0, 0, 0, 256, {}}, Piece{1, 4, 0, 256, {}}, Piece{1, 0, 0, 257, {}}, Piece{1, 0, 5, 5, {}}}) {
    pieces = all_but(9, {});
    pieces.push_back(foreign);
    EXPECT_NE(ExpertMap::assemble(kShape, pieces, 0).error().message.find("does not have"),
              std::string::npos);
  }
}

TEST(ExpertShare, SharesCoverEveryExpertOnceInSizesThatDifferByOne) {
  EXPECT_EQ(expert_share(10, 0, 3), (ExpertRange{0, 3}));
  EXPECT_EQ(expert_share(10, 1, 3), (ExpertRange{3, 6}));
  EXPECT_EQ(expert_share(10, 2, 3), (ExpertRange{6, 10}));
  for (const uint32_t experts : {64u, 10u, 7u, 256u}) {
    for (uint32_t ranks = 1; ranks <= 7; ++ranks) {
      uint32_t next = 0;
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        const ExpertRange share = expert_share(experts, rank, ranks);
        EXPECT_EQ(share.begin, next);
        EXPECT_GE(share.end - share.begin, experts / ranks);
        EXPECT_LE(share.end - share.begin, experts / ranks + 1);
        next = share.end;
      }
      EXPECT_EQ(next, experts);
    }
  }
}

}  // namespace
}  // namespace tandem
