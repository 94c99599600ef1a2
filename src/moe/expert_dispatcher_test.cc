#include "moe/expert_dispatcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "base/bf16.h"
#include "moe/expert_placement.h"
#include "moe/router.h"

namespace tandem {
namespace {

struct Routing {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  uint32_t top_k = 0;
  RoutingView view() const { return {ids, weights, top_k}; }
};

// Mostly different experts in a row (tables by token id may name one twice), some weights 0, never all of
// them.
Routing random_routing(uint32_t rows, uint32_t experts, uint32_t top_k, std::mt19937& random) {
  Routing routing;
  routing.top_k = top_k;
  std::vector<int32_t> all(experts);
  for (uint32_t i = 0; i < experts; ++i) all[i] = static_cast<int32_t>(i);
  for (uint32_t row = 0; row < rows; ++row) {
    std::shuffle(all.begin(), all.end(), random);
    for (uint32_t k = 0; k < top_k; ++k) {
      routing.ids.push_back(k > 0 && random() % 6 == 0 ? routing.ids.back() : all[k]);
      const bool zero = k > 0 && random() % 8 == 0;
      routing.weights.push_back(zero ? 0.0f : 0.01f + static_cast<float>(random() % 1000) / 1000.0f);
    }
  }
  return routing;
}

// Every expert on one to three of the ranks, of which some may have none.
std::shared_ptr<const ExpertMap> random_map(uint16_t experts, uint16_t ranks, bool replicas,
                                            std::mt19937& random) {
  std::vector<Piece> pieces;
  for (const uint16_t layer : {1, 3}) {
    for (uint16_t expert = 0; expert < experts; ++expert) {
      std::set<uint16_t> owners = {static_cast<uint16_t>(random() % ranks)};
      while (replicas && random() % 2 == 0 && owners.size() < std::min<size_t>(3, ranks)) {
        owners.insert(static_cast<uint16_t>(random() % ranks));
      }
      for (const uint16_t rank : owners) pieces.push_back({layer, expert, 0, 32, {rank, 0}});
    }
  }
  auto map = ExpertMap::assemble({{1, 3}, experts, 32}, std::move(pieces), 1);
  EXPECT_TRUE(map.has_value()) << map.error().message;
  return std::make_shared<const ExpertMap>(std::move(*map));
}

TEST(ExpertDispatcher, EveryRowAndSlotGoesToExactlyOneOwner) {
  std::mt19937 random(5);
  Prepared prepared;  // reused: what an earlier request left behind must not matter
  for (int round = 0; round < 200; ++round) {
    const uint32_t experts = 2 + random() % 30, top_k = 1 + random() % std::min(experts, 8u),
                   rows = random() % 90;
    const auto ranks = static_cast<uint16_t>(1 + random() % 6);
    const auto map = random_map(experts, ranks, round % 2 == 0, random);
    const auto dispatcher = ExpertDispatcher::create(map, top_k);
    ASSERT_TRUE(dispatcher.has_value());
    const Routing routing = random_routing(rows, experts, top_k, random);
    const LayerIndex layer = round % 3 == 0 ? 1 : 3;
    const ReplicaChoice choice = round % 4 < 2 ? ReplicaChoice::by_row : ReplicaChoice::by_experts;
    ASSERT_TRUE(dispatcher->prepare(layer, rows, routing.view(), prepared, choice).has_value());
    ASSERT_FALSE(choice == ReplicaChoice::by_row && prepared.by_experts);

    std::map<std::pair<uint32_t, uint32_t>, int> sent;  // (row, slot) -> how often
    std::vector<int> shared(rows);                      // who adds a row's shared experts
    ASSERT_EQ(prepared.parts.size(), dispatcher->ranks().size());
    for (size_t p = 0; p < prepared.parts.size(); ++p) {
      const DispatchPart& part = prepared.parts[p];
      ASSERT_EQ(part.rank, dispatcher->ranks()[p]);
      ASSERT_EQ(part.ids.size(), part.rows.size() * top_k);
      ASSERT_EQ(part.weights.size(), part.rows.size() * top_k);
      ASSERT_TRUE(std::is_sorted(part.rows.begin(), part.rows.end()));
      ASSERT_EQ(std::set(part.rows.begin(), part.rows.end()).size(), part.rows.size())
          << "a row twice to one rank";
      ASSERT_TRUE(validate_routing(experts, top_k, part.ids, part.weights).has_value());
      ASSERT_EQ(part.shared_rows.size(), part.rows.size());
      for (size_t i = 0; i < part.rows.size(); ++i) {
        shared[part.rows[i]] += part.shared_rows[i];
        for (uint32_t slot = 0; slot < top_k; ++slot) {
          const size_t from = size_t{part.rows[i]} * top_k + slot, at = i * top_k + slot;
          ASSERT_EQ(part.ids[at], routing.ids[from]);
          if (part.weights[at] == 0.0f) continue;
          ASSERT_EQ(part.weights[at], routing.weights[from]);
          ++sent[{part.rows[i], slot}];
          const auto pieces = map->pieces(layer, static_cast<uint16_t>(part.ids[at]));
          ASSERT_TRUE(
              std::ranges::any_of(pieces, [&](const Piece& piece) { return piece.owner.rank == part.rank; }));
        }
      }
    }
    for (uint32_t row = 0; row < rows; ++row) {
      ASSERT_EQ(shared[row], 1) << row;
      for (uint32_t slot = 0; slot < top_k; ++slot) {
        const int wanted = routing.weights[row * top_k + slot] == 0.0f ? 0 : 1;
        ASSERT_EQ((sent[{row, slot}]), wanted) << row << " " << slot;
      }
    }
  }
}

std::shared_ptr<const ExpertMap> replicated_map(uint16_t experts, uint16_t ranks) {
  std::vector<Piece> pieces;
  for (uint16_t expert = 0; expert < experts; ++expert) {
    for (uint16_t rank = 0; rank < ranks; ++rank) pieces.push_back({0, expert, 0, 32, {rank, 0}});
  }
  return std::make_shared<const ExpertMap>(*ExpertMap::assemble({{0}, experts, 32}, std::move(pieces), 1));
}

TEST(ExpertDispatcher, ReplicasShareTheRowsAndARowsChoiceDoesNotDependOnItsNeighbours) {
  std::mt19937 random(9);
  constexpr uint32_t kRows = 4000, kTopK = 4;
  const auto dispatcher = ExpertDispatcher::create(replicated_map(8, 2), kTopK);
  ASSERT_TRUE(dispatcher.has_value());
  const Routing routing = random_routing(kRows, 8, kTopK, random);
  Prepared all, one;
  ASSERT_TRUE(dispatcher->prepare(0, kRows, routing.view(), all).has_value());
  for (const DispatchPart& part : all.parts) {
    EXPECT_GT(part.rows.size(), kRows * 45 / 100);
    EXPECT_LT(part.rows.size(), kRows * 55 / 100);
  }
  for (uint32_t row = 0; row < 200; ++row) {
    const RoutingView alone{routing.view().ids.subspan(row * kTopK, kTopK),
                            routing.view().weights.subspan(row * kTopK, kTopK), kTopK};
    ASSERT_TRUE(dispatcher->prepare(0, 1, alone, one).has_value());
    for (size_t p = 0; p < 2; ++p) {
      const bool here = std::ranges::binary_search(all.parts[p].rows, row);
      ASSERT_EQ(one.parts[p].rows.size(), here ? 1u : 0u);
    }
  }
}

std::shared_ptr<const ExpertMap> placed_map(uint32_t experts, const ExpertPlacement& placement,
                                            uint32_t ranks) {
  const ExpertMapShape shape{{0}, experts, 40};
  std::vector<Piece> pieces;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const auto share = held_share(shape, placement, rank, ranks);
    EXPECT_TRUE(share.has_value()) << share.error().message;
    for (const Piece& piece : share_pieces(shape, *share, {static_cast<uint16_t>(rank), 0}))
      pieces.push_back(piece);
  }
  auto map = ExpertMap::assemble(shape, std::move(pieces), 1);
  EXPECT_TRUE(map.has_value()) << map.error().message;
  return std::make_shared<const ExpertMap>(std::move(*map));
}

// Whole copies of groups that slice their experts: all slices of an expert go to one group, and no rank has
// more than one expert more than another.
TEST(ExpertDispatcher, FewRowsReplicasAreChosenByExperts) {
  std::mt19937 random(2);
  constexpr uint32_t kExperts = 32, kTopK = 4, kRows = 6;
  const auto map = placed_map(kExperts, {PlacementKind::hybrid, 2, 2}, 4);
  const auto dispatcher = ExpertDispatcher::create(map, kTopK);
  ASSERT_TRUE(dispatcher.has_value());
  Prepared prepared;
  const Routing many = random_routing(2000, kExperts, kTopK, random);
  ASSERT_TRUE(dispatcher->prepare(0, 2000, many.view(), prepared, ReplicaChoice::by_experts).has_value());
  EXPECT_FALSE(prepared.by_experts) << "rows are what counts then";
  for (int round = 0; round < 50; ++round) {
    const Routing routing = random_routing(kRows, kExperts, kTopK, random);
    ASSERT_TRUE(
        dispatcher->prepare(0, kRows, routing.view(), prepared, ReplicaChoice::by_experts).has_value());
    ASSERT_TRUE(prepared.by_experts);
    std::vector<std::set<int32_t>> read(4);
    std::set<int32_t> asked;
    for (size_t i = 0; i < routing.ids.size(); ++i) {
      if (routing.weights[i] != 0.0f) asked.insert(routing.ids[i]);
    }
    for (const DispatchPart& part : prepared.parts) {
      for (size_t i = 0; i < part.ids.size(); ++i) {
        if (part.weights[i] != 0.0f) read[part.rank].insert(part.ids[i]);
      }
    }
    EXPECT_EQ(read[0], read[1]);
    EXPECT_EQ(read[2], read[3]);
    EXPECT_EQ(read[0].size() + read[2].size(), asked.size()) << "an expert is read twice";
    EXPECT_LE(std::max(read[0].size(), read[2].size()), (asked.size() + 1) / 2);
  }
}

TEST(ExpertDispatcher, ARankWithoutRowsGetsNone) {
  std::vector<Piece> pieces;
  for (uint16_t expert = 0; expert < 4; ++expert)
    pieces.push_back({0, expert, 0, 32, {uint16_t(expert / 2), 0}});
  const auto map = std::make_shared<const ExpertMap>(*ExpertMap::assemble({{0}, 4, 32}, pieces, 1));
  const auto dispatcher = ExpertDispatcher::create(map, 2);
  ASSERT_TRUE(dispatcher.has_value());
  Prepared prepared;
  const Routing routing{{2, 3, 3, 2}, {0.5f, 0.5f, 1, 0.25f}, 2};
  ASSERT_TRUE(dispatcher->prepare(0, 2, routing.view(), prepared).has_value());
  EXPECT_TRUE(prepared.parts[0].rows.empty());
  EXPECT_EQ(prepared.parts[1].rows, (std::vector<uint32_t>{0, 1}));
  ASSERT_TRUE(dispatcher->prepare(0, 0, RoutingView{{}, {}, 2}, prepared).has_value());
  EXPECT_TRUE(prepared.parts[0].rows.empty() && prepared.parts[1].rows.empty());
  EXPECT_NE(dispatcher->prepare(1, 2, routing.view(), prepared).error().message.find("layer 1"),
            std::string::npos);
  EXPECT_NE(dispatcher->prepare(0, 3, routing.view(), prepared).error().message.find("3 rows"),
            std::string::npos);
}

// Once it has seen its largest request a Prepared stays where it is.
TEST(ExpertDispatcher, NothingIsAllocatedOnceWarm) {
  std::mt19937 random(3);
  const auto dispatcher = ExpertDispatcher::create(random_map(12, 3, true, random), 4);
  ASSERT_TRUE(dispatcher.has_value());
  Prepared prepared;
  const Routing largest = random_routing(300, 12, 4, random);
  std::vector<std::byte> sums(300 * sizeof(float)), out(300 * sizeof(float));
  const std::vector<const std::byte*> partials(dispatcher->ranks().size(), sums.data());
  const auto places = [&] {
    std::vector<const void*> all = {prepared.parts.data(), prepared.cursors.data(),
                                    static_cast<const void*>(prepared.sources.data())};
    for (const DispatchPart& part : prepared.parts) {
      all.insert(all.end(), {part.rows.data(), part.ids.data(), part.weights.data()});
    }
    return all;
  };
  ASSERT_TRUE(dispatcher->prepare(1, 300, largest.view(), prepared).has_value());
  add_partials(prepared, partials, 1, DType::f32, out.data());
  const auto before = places();
  for (int round = 0; round < 20; ++round) {
    const uint32_t rows = 1 + random() % 60;  // of 300: no part can outgrow what the largest took
    ASSERT_TRUE(
        dispatcher
            ->prepare(round % 2 == 0 ? 1 : 3, rows, random_routing(rows, 12, 4, random).view(), prepared)
            .has_value());
    add_partials(prepared, partials, 1, DType::f32, out.data());
    ASSERT_EQ(places(), before);
  }
}

// Whatever the placement: each intermediate row of each live slot is computed exactly once, at its full
// weight, and a row's parts are the same alone and among others.
TEST(ExpertDispatcher, EverySliceOfEverySlotIsComputedExactlyOnce) {
  using Kind = PlacementKind;
  const std::pair<ExpertPlacement, uint32_t> placements[] = {
      {{Kind::slice}, 2},        {{Kind::slice}, 3},        {{Kind::slice}, 5},
      {{Kind::hybrid, 2}, 4},    {{Kind::hybrid, 2}, 5},    {{Kind::hybrid, 2, 2}, 4},
      {{Kind::hybrid, 2, 2}, 6}, {{Kind::hybrid, 3, 3}, 9}, {{Kind::expert, 2, 2}, 3},
      {{Kind::expert, 2, 4}, 4}};
  std::mt19937 random(21);
  constexpr uint32_t kRows = 60, kTopK = 3, kExperts = 11;
  Prepared prepared, one;
  for (const auto& [placement, ranks] : placements) {
    SCOPED_TRACE(testing::Message() << static_cast<int>(placement.kind) << " " << placement.slices << " "
                                    << placement.replicas << " on " << ranks);
    const auto map = placed_map(kExperts, placement, ranks);
    const auto dispatcher = ExpertDispatcher::create(map, kTopK);
    ASSERT_TRUE(dispatcher.has_value()) << dispatcher.error().message;
    const Routing routing = random_routing(kRows, kExperts, kTopK, random);
    ASSERT_TRUE(dispatcher->prepare(0, kRows, routing.view(), prepared).has_value());
    std::vector<std::vector<int>> computed(size_t{kRows} * kTopK, std::vector<int>(40, 0));
    std::vector<int> shared(kRows);
    for (const DispatchPart& part : prepared.parts) {
      EXPECT_GT(std::ranges::count(part.shared_rows, 1), 0)
          << "the shared experts are not spread over all ranks";
      for (size_t i = 0; i < part.rows.size(); ++i) shared[part.rows[i]] += part.shared_rows[i];
      ASSERT_TRUE(validate_routing(kExperts, kTopK, part.ids, part.weights).has_value());
      for (size_t i = 0; i < part.weights.size(); ++i) {
        if (part.weights[i] == 0.0f) continue;
        const size_t slot = size_t{part.rows[i / kTopK]} * kTopK + i % kTopK;
        ASSERT_EQ(part.weights[i], routing.weights[slot]);
        for (const Piece& piece : map->pieces(0, static_cast<uint16_t>(part.ids[i]))) {
          if (piece.owner.rank != part.rank) continue;
          for (uint32_t row = piece.row_begin; row < piece.row_end; ++row) ++computed[slot][row];
        }
      }
    }
    ASSERT_EQ(shared, std::vector<int>(kRows, 1)) << "a row's shared experts are added once";
    for (size_t slot = 0; slot < computed.size(); ++slot) {
      const int wanted = routing.weights[slot] == 0.0f ? 0 : 1;
      ASSERT_EQ(computed[slot], std::vector<int>(40, wanted)) << slot;
    }
    for (uint32_t row = 0; row < kRows; ++row) {
      const RoutingView alone{routing.view().ids.subspan(row * kTopK, kTopK),
                              routing.view().weights.subspan(row * kTopK, kTopK), kTopK};
      ASSERT_TRUE(dispatcher->prepare(0, 1, alone, one).has_value());
      for (size_t p = 0; p < one.parts.size(); ++p) {
        const auto& rows = prepared.parts[p].rows;
        const auto at = std::ranges::lower_bound(rows, row);
        const bool here = at != rows.end() && *at == row;
        ASSERT_EQ(one.parts[p].rows.size(), here ? 1u : 0u);
        if (!here) continue;
        const auto first = prepared.parts[p].weights.begin() + (at - rows.begin()) * kTopK;
        ASSERT_TRUE(std::equal(one.parts[p].weights.begin(), one.parts[p].weights.end(), first));
      }
    }
  }
}

// Two whole groups of two: a row is computed by one group, and both get their half.
TEST(ExpertDispatcher, ARowStaysInOneGroupOfReplicas) {
  std::mt19937 random(4);
  constexpr uint32_t kRows = 2000, kTopK = 4;
  const auto dispatcher = ExpertDispatcher::create(placed_map(8, {PlacementKind::hybrid, 2, 2}, 4), kTopK);
  ASSERT_TRUE(dispatcher.has_value());
  Prepared prepared;
  const Routing routing = random_routing(kRows, 8, kTopK, random);
  ASSERT_TRUE(dispatcher->prepare(0, kRows, routing.view(), prepared).has_value());
  EXPECT_EQ(prepared.parts[0].rows, prepared.parts[1].rows);
  EXPECT_EQ(prepared.parts[2].rows, prepared.parts[3].rows);
  EXPECT_EQ(prepared.parts[0].rows.size() + prepared.parts[2].rows.size(), kRows);
  EXPECT_GT(prepared.parts[0].rows.size(), kRows * 45 / 100);
  EXPECT_LT(prepared.parts[0].rows.size(), kRows * 55 / 100);
}

// The slot's weight says that a rank computes; it could not say which of two slices.
TEST(ExpertDispatcher, TwoSlicesOfAnExpertOnOneRankAreRefusedByName) {
  std::vector<Piece> pieces = {{0, 0, 0, 16, {0, 0}}, {0, 0, 16, 32, {0, 1}}, {0, 1, 0, 32, {1, 0}}};
  const auto map = std::make_shared<const ExpertMap>(*ExpertMap::assemble({{0}, 2, 32}, pieces, 1));
  const auto dispatcher = ExpertDispatcher::create(map, 1);
  ASSERT_FALSE(dispatcher.has_value());
  EXPECT_EQ(dispatcher.error().code, ErrorCode::unsupported);
  EXPECT_NE(dispatcher.error().message.find("rank 0 holds several slices of layer 0: experts 0, rows 16..32"),
            std::string::npos)
      << dispatcher.error().message;
  pieces = {{0, 0, 0, 32, {0, 0}}, {0, 0, 0, 32, {0, 1}}, {0, 1, 0, 32, {1, 0}}};  // two units, one piece
  const auto units = std::make_shared<const ExpertMap>(*ExpertMap::assemble({{0}, 2, 32}, pieces, 1));
  EXPECT_TRUE(ExpertDispatcher::create(units, 1).has_value());
}

template <class T>
void expect_sums(DType dtype, const std::vector<double>& wanted, const std::vector<T>& first,
                 const std::vector<T>& second, uint32_t hidden, auto to_double) {
  Prepared prepared;
  prepared.rows = 4;  // row 3 went nowhere
  prepared.parts.resize(2);
  prepared.parts[0].rows = {0, 2};
  prepared.parts[1].rows = {1, 2};
  const std::byte* partials[2] = {reinterpret_cast<const std::byte*>(first.data()),
                                  reinterpret_cast<const std::byte*>(second.data())};
  std::vector<T> out(4 * hidden);
  add_partials(prepared, partials, hidden, dtype, reinterpret_cast<std::byte*>(out.data()));
  for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(to_double(out[i]), wanted[i]) << i;
}

TEST(AddPartials, AddsInOrderOfRankAndRoundsOnce) {
  constexpr uint32_t kHidden = 70;  // more than a block, and no multiple of it
  std::vector<double> first(2 * kHidden), second(2 * kHidden), wanted(4 * kHidden, 0.0);
  for (size_t i = 0; i < first.size(); ++i) {
    first[i] = std::ldexp(static_cast<double>(i % 61), -4);
    second[i] = -std::ldexp(static_cast<double>(i % 53), -5);
  }
  for (uint32_t i = 0; i < kHidden; ++i) {
    wanted[i] = first[i];
    wanted[kHidden + i] = second[i];
    wanted[2 * kHidden + i] = first[kHidden + i] + second[kHidden + i];
  }
  expect_sums<double>(DType::f64, wanted, first, second, kHidden, [](double v) { return v; });
  const std::vector<float> first_f32(first.begin(), first.end()), second_f32(second.begin(), second.end());
  expect_sums<float>(DType::f32, wanted, first_f32, second_f32, kHidden, [](float v) { return double{v}; });
  std::vector<bf16> first_bf16, second_bf16;
  for (const float v : first_f32) first_bf16.push_back(to_bf16(v));
  for (const float v : second_f32) second_bf16.push_back(to_bf16(v));
  for (double& v : wanted) v = to_float(to_bf16(static_cast<float>(v)));
  expect_sums<bf16>(DType::bf16, wanted, first_bf16, second_bf16, kHidden,
                    [](bf16 v) { return double{to_float(v)}; });
}

}  // namespace
}  // namespace tandem
