// MoeBlock on a rank that has a part of the experts, or is asked for a part of what rows need.
#include "moe/moe_block_testing.h"

namespace tandem {
namespace {

using namespace moe_testing;

TEST(MoeBlock, ExpertsHeldElsewhereWeighNothing) {
  BlockUnderTest all(false, false, SumMode::deterministic);
  all.route();
  const auto want = all.run<double>(0, kRows, all.routing());
  BlockUnderTest even(false, false, SumMode::deterministic);
  BlockUnderTest odd(false, false, SumMode::deterministic);
  for (uint32_t e = 0; e < kExperts; ++e) (e % 2 == 0 ? odd : even).layer.weights.experts[e] = {};
  // Rows whose experts are all held fill every slot: what is not computed next finds their values there.
  static_assert(kExperts / 2 >= kTopK);
  std::vector<int32_t> held_ids(size_t{kRows} * kTopK);
  for (size_t i = 0; i < held_ids.size(); ++i) held_ids[i] = static_cast<int32_t>(2 * (i % kTopK));
  even.run<double>(0, kRows, RoutingView{held_ids, all.weights, kTopK});
  auto sum = even.run<double>(0, kRows, all.routing());
  const auto rest = odd.run<double>(0, kRows, all.routing());
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += rest[i];
  EXPECT_EQ(sum, want);
}

// Rows whose shared experts are added here without a slot, and the reverse; the block routes by itself
// otherwise.
TEST(MoeBlock, PartsWithTheirSharedRowsAddUpToTheWhole) {
  BlockUnderTest whole(true, true, SumMode::deterministic);
  const auto want = whole.run<double>(0, kRows, NoRouting{});
  whole.route();
  std::vector<double> sum(size_t{kRows} * kHidden), part(sum.size());
  for (const uint32_t parity : {0u, 1u}) {
    auto weights = whole.weights;
    std::vector<uint8_t> shared_rows(kRows);
    for (size_t i = 0; i < weights.size(); ++i) {
      // Rows below 5 have all their slots in the first part and their shared experts in the second.
      const bool mine = i / kTopK < 5 ? parity == 0 : i % 2 == parity;
      if (!mine) weights[i] = 0.0f;
    }
    for (uint32_t row = 0; row < kRows; ++row) {
      const bool mine = row < 5 ? parity == 1 : row % 2 == parity;
      shared_rows[row] = mine ? 1 : 0;
    }
    MoeRequest request;
    request.layer = 1;
    request.rows = kRows;
    request.in = whole.in();
    request.routing = RoutingView{whole.ids, weights, kTopK};
    request.out = {reinterpret_cast<std::byte*>(part.data()), part.size() * sizeof(double),
                   MemorySpace::host};
    request.partial = true;
    request.shared_rows = shared_rows;
    const Status status = whole.block->run(request);
    ASSERT_TRUE(status.has_value()) << status.error().message;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    request.routing = NoRouting{};
    EXPECT_NE(whole.block->run(request).error().message.find("a part of rows without a routing"),
              std::string::npos);
    request.routing = RoutingView{whole.ids, weights, kTopK};
    request.shared_rows = std::span(shared_rows).first(3);
    EXPECT_NE(whole.block->run(request).error().message.find("shared_rows of 3"), std::string::npos);
  }
  EXPECT_EQ(sum, want);
}

}  // namespace
}  // namespace tandem
