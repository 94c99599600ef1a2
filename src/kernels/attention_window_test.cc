// gqa with windows and sinks on every table: against float64, with equal bits for every chunking of a prompt,
// and whatever lies outside a row's window.
#include <algorithm>

#include "kernels/attention_testing.h"
#include "kernels/testing.h"

namespace tandem::kernel_testing {
namespace {

class AttentionWindowTest : public EveryTable {};

// Far from each other, so that each head's counts: of no weight, of some, and of nearly all.
std::vector<float> sinks_of(uint32_t heads) {
  std::vector<float> sinks;
  for (uint32_t h = 0; h < heads; ++h) sinks.push_back(-20.0f + 7.25f * static_cast<float>(h % 6));
  return sinks;
}

struct Bounds {
  uint32_t window;
  bool has_sinks;
};

TEST_P(AttentionWindowTest, AgreesWithFloat64) {
  const GqaShape shapes[] = {{4, 4, 24, 5}, {6, 2, 40, 16}, {16, 2, 64, 16}, {5, 1, 128, 32}, {40, 2, 17, 7}};
  for (const GqaShape shape : shapes) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f8_e4m3}) {
      // Blocks of 5 fill a tile with 160 keys, whole panels with 512.
      const uint32_t tokens = shape.head_dim == 40 ? 530 : 170;
      GqaCase test(table(), shape, dtype, 2, tokens);
      for (const auto& [window, has_sinks] :
           {Bounds{0, true}, Bounds{1, false}, Bounds{16, true}, Bounds{37, false}, Bounds{128, true}}) {
        SCOPED_TRACE(::testing::Message() << shape.heads << "/" << shape.kv_heads << " heads of "
                                          << shape.head_dim << ", window " << window);
        test.window = window;
        test.sinks = has_sinks ? sinks_of(shape.heads) : std::vector<float>();
        test.expect_float64({0u, 1u, 15u, 16u, 36u, 37u, 127u, 128u, 159u, 160u, tokens - 1, tokens,
                             tokens + 64, 2 * tokens - 1},
                            2);
      }
    }
  }
}

// Token by token, in chunks, and at once, on one thread and on two, which spread the tiles of what has few
// rows.
TEST_P(AttentionWindowTest, ChunkingKeepsBits) {
  struct Case {
    GqaShape shape;
    DType dtype;
  };
  for (const Case& c : {Case{{6, 2, 40, 16}, DType::bf16}, Case{{6, 2, 40, 16}, DType::f32},
                        Case{{6, 2, 40, 16}, DType::f8_e4m3}, Case{{3, 1, 17, 5}, DType::bf16},
                        Case{{3, 1, 17, 5}, DType::f8_e4m3}, Case{{16, 2, 16, 128}, DType::bf16}}) {
    const uint32_t tokens = 800;
    GqaCase test(table(), c.shape, c.dtype, 2, tokens);
    // One that ends inside panels, one of whole panels, and one that takes several tiles.
    for (const uint32_t window : {19u, 128u, 700u}) {
      SCOPED_TRACE(::testing::Message() << c.shape.heads << " heads, window " << window);
      test.window = window;
      test.sinks = window == 19 ? std::vector<float>() : sinks_of(c.shape.heads);
      Tensor once(DType::f32, test.query.size());
      test.attend(once, 0, test.rows.size(), 1);
      // On either side of a tile's first key, of a window that leaves it, and of the sequence's first.
      for (const auto& [first, last] :
           {std::pair{500u, 540u}, std::pair{625u, 650u}, std::pair{790u, 830u}}) {
        for (const size_t chunk : {1, 7, 16, 257}) {
          for (const int threads : {1, 2}) {
            Tensor out(DType::f32, test.query.size());
            for (size_t begin = first; begin < last; begin += chunk) {
              test.attend(out, begin, std::min<size_t>(begin + chunk, last), threads);
            }
            const size_t width = size_t{c.shape.heads} * c.shape.head_dim;
            EXPECT_TRUE(same_bits(once, first * width, out, first * width, (last - first) * width))
                << "rows from " << first << ", chunks of " << chunk << ", " << threads << " threads";
          }
        }
      }
    }
  }
}

// A window that no row fills is none.
TEST_P(AttentionWindowTest, LongWindowHasTheBitsOfNone) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f8_e4m3}) {
    GqaCase test(table(), {6, 2, 40, 16}, dtype, 1, 600);
    Tensor none(DType::f32, test.query.size()), all(DType::f32, test.query.size());
    test.attend(none, 0, 600, 2);
    test.window = 600;
    test.attend(all, 0, 600, 2);
    EXPECT_TRUE(same_bits(none, 0, all, 0, all.size()));
  }
}

// What a token before the window holds makes no difference, in its panel or elsewhere.
TEST_P(AttentionWindowTest, IgnoresEarlierKeys) {
  constexpr uint32_t kTokens = 600, kWindow = 21;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f8_e4m3}) {
    // The rows that see `earlier` end with earlier + kWindow - 1: at a tile's first key, and inside panels.
    for (const uint32_t earlier : {512u, 530u, 570u}) {
      GqaCase test(table(), {4, 1, 32, 16}, dtype, 1, kTokens);
      test.window = kWindow;
      Tensor before(DType::f32, test.query.size());
      test.attend(before, 0, kTokens, 1);
      // The largest score that a key could have, and a value far from all others.
      Tensor value(DType::f32, 32, 3e4f), key(DType::f32, 32, 3e4f);
      KvWriteArgs write;
      const std::vector<AttentionRow> at = {test.rows[earlier]};
      write.rows = at;
      write.cache = test.cache.view();
      write.first = key.f32();
      write.second = value.f32();
      write.first_stride = write.second_stride = write.first_width = write.second_width = 32;
      write.num_kv_heads = 1;
      run(table(), table().kv_write, write);
      Tensor after(DType::f32, test.query.size());
      test.attend(after, 0, kTokens, 2);
      const size_t width = 4 * 32, last = earlier + kWindow - 1;
      EXPECT_TRUE(same_bits(before, 0, after, 0, earlier * width));
      EXPECT_FALSE(same_bits(before, last * width, after, last * width, width));
      EXPECT_TRUE(
          same_bits(before, (last + 1) * width, after, (last + 1) * width, (kTokens - last - 1) * width))
          << "earlier " << earlier;
    }
  }
}

// Codes have the bits of a bf16 cache of the same numbers here too.
TEST_P(AttentionWindowTest, CodesHaveTheBitsOfABf16Cache) {
  const GqaShape shape{6, 2, 40, 16};
  constexpr uint32_t kTokens = 600;
  GqaCase coded(table(), shape, DType::f8_e4m3, 1, kTokens), narrow(table(), shape, DType::bf16, 1, kTokens);
  const uint32_t width = shape.kv_heads * shape.head_dim;
  std::vector<float> keys, values;
  for (uint32_t t = 0; t < kTokens; ++t) {
    for (uint32_t i = 0; i < width; ++i) {
      keys.push_back(coded.cache.key(0, i / shape.head_dim, t, i % shape.head_dim));
      values.push_back(coded.cache.value(0, i / shape.head_dim, t, i % shape.head_dim));
    }
  }
  KvWriteArgs write;
  write.rows = narrow.rows;
  write.cache = narrow.cache.view();
  write.first = keys.data();
  write.second = values.data();
  write.first_stride = write.second_stride = write.first_width = write.second_width = width;
  write.num_kv_heads = shape.kv_heads;
  run(table(), table().kv_write, write);
  for (GqaCase* test : {&coded, &narrow}) {
    test->window = 130;
    test->sinks = sinks_of(shape.heads);
  }
  Tensor of_codes(DType::f32, coded.query.size()), of_bf16(DType::f32, coded.query.size());
  coded.attend(of_codes, 0, kTokens, 2);
  narrow.attend(of_bf16, 0, kTokens, 2);
  EXPECT_TRUE(same_bits(of_codes, 0, of_bf16, 0, of_codes.size()));
}

TANDEM_EVERY_TABLE(AttentionWindowTest);

}  // namespace
}  // namespace tandem::kernel_testing
