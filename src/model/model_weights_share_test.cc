// What a rank reads of the experts: whole ones or slices, and nothing else.
#include "kernels/packed_layout.h"
#include "model/model_weights_testing.h"

namespace tandem {
namespace {

using namespace weights_testing;

// Shares of the experts: a rank has its own with the bits of the whole, nothing of the others, and the bytes
// of all shares are those of all experts. One family with a tensor for each expert, one with all experts in a
// tensor.
TEST_F(ModelWeightsTest, RankHoldsOnlyItsExperts) {
  for (const char* family : {kV3, kGranite}) {
    tensors_.clear();
    make(family);
    write();
    HeldParts parts{.attention = false, .experts = true, .router = false, .shared_experts = false};
    const auto whole = load(DType::f32, parts);
    ASSERT_TRUE(whole.has_value()) << whole.error().message;
    const auto num_experts = config_.router.num_experts;
    size_t bytes = 0;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      parts.share.experts = {expert_share(num_experts, rank, 2)};
      const auto share = load(DType::f32, parts);
      ASSERT_TRUE(share.has_value()) << share.error().message;
      bytes += share->resident_bytes;
      for (size_t layer = 0; layer < share->layers.size(); ++layer) {
        if (!config_.is_moe(static_cast<uint32_t>(layer))) continue;
        const auto& mine = share->layers[layer].moe.experts;
        const auto& all = whole->layers[layer].moe.experts;
        ASSERT_EQ(mine.size(), num_experts);
        for (uint32_t e = 0; e < num_experts; ++e) {
          ASSERT_EQ(mine[e].empty(), !parts.share.contains(e)) << e;
          ASSERT_EQ(mine[e].down.empty(), mine[e].empty());
          if (mine[e].empty()) continue;
          EXPECT_EQ(std::memcmp(mine[e].gate_up.data, all[e].gate_up.data, all[e].gate_up.bytes), 0);
          EXPECT_EQ(std::memcmp(mine[e].down.data, all[e].down.data, all[e].down.bytes), 0);
        }
      }
    }
    EXPECT_EQ(bytes, whole->resident_bytes);
  }
}

// Element [row, col] of a weight packed in float32.
float element(const PackedWeight& weight, uint32_t row, uint32_t col) {
  const PackedLayout layout{weight.format, weight.arrangement, weight.rows, weight.cols};
  const std::byte* line = weight.data + layout.line(layout.panel_of(row), col);
  return reinterpret_cast<const float*>(line)[layout.lane_of(row)];
}

// Slices of the experts: a rank has its rows of gate and up and its columns of down, and nothing else.
TEST_F(ModelWeightsTest, RankHoldsOnlyItsSlices) {
  for (const char* family : {kV3, kGranite}) {
    tensors_.clear();
    make(family);
    write();
    HeldParts parts{.attention = false, .experts = true, .router = false, .shared_experts = false};
    const auto whole = load(DType::f32, parts);
    ASSERT_TRUE(whole.has_value()) << whole.error().message;
    const uint32_t size = config_.moe_intermediate_size;
    for (uint32_t rank = 0; rank < 3; ++rank) {
      const RowRange rows = parts.share.rows = slice_rows(size, rank, 3);
      const auto share = load(DType::f32, parts);
      ASSERT_TRUE(share.has_value()) << share.error().message;
      size_t held = 0;
      for (uint32_t i = 0; i < config_.num_layers * config_.router.num_experts; ++i) {
        const uint32_t layer = i / config_.router.num_experts, e = i % config_.router.num_experts;
        if (!config_.is_moe(layer)) continue;
        const MlpWeights& mine = share->layers[layer].moe.experts[e];
        const MlpWeights& all = whole->layers[layer].moe.experts[e];
        held += mine.gate_up.bytes + mine.down.bytes;
        ASSERT_EQ((RowRange{mine.row_begin, mine.row_end()}), rows);
        for (uint32_t at = 0; at < rows.size() * config_.hidden_size; ++at) {
          const uint32_t r = at % rows.size(), h = at / rows.size(), from = rows.begin + r;
          ASSERT_EQ(element(mine.gate_up, r, h), element(all.gate_up, from, h));
          ASSERT_EQ(element(mine.gate_up, rows.size() + r, h), element(all.gate_up, size + from, h));
          ASSERT_EQ(element(mine.down, h, r), element(all.down, h, from));
        }
      }
      EXPECT_EQ(held, share->resident_bytes);
      EXPECT_LT(held, whole->resident_bytes);
    }
  }
}

}  // namespace
}  // namespace tandem
