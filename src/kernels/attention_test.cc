// gqa, mla and kv_write on every table: against float64, with garbage where no key is, and with equal bits
// for every chunking of a prompt.
#include <algorithm>

#include "kernels/attention_testing.h"
#include "kernels/testing.h"

namespace tandem::kernel_testing {
namespace {

class AttentionTest : public EveryTable {};

TEST_P(AttentionTest, GqaAgreesWithFloat64) {
  const GqaShape shapes[] = {{4, 4, 24, 5}, {6, 2, 40, 16}, {16, 2, 64, 16}, {5, 1, 128, 32}, {40, 2, 17, 7}};
  for (const GqaShape shape : shapes) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f8_e4m3}) {
      SCOPED_TRACE(::testing::Message()
                   << shape.heads << "/" << shape.kv_heads << " heads of " << shape.head_dim);
      // Blocks of 5 fill a tile with 160 keys, whole panels with 512.
      const uint32_t tokens = shape.head_dim == 40 ? 530 : 170;
      GqaCase test(table(), shape, dtype, 2, tokens);
      test.expect_float64(
          {0u, 1u, 15u, 16u, 63u, 64u, 159u, 160u, tokens - 1, tokens, tokens + 64, 2 * tokens - 1}, 2);
    }
  }
}

// Token by token, in chunks, and at once, on one thread and on two, which spread the tiles of what has few
// rows; the other sequence comes along. The cache is the same each time.
TEST_P(AttentionTest, GqaChunkingKeepsBits) {
  struct Case {
    GqaShape shape;
    DType dtype;
  };
  // Two tiles of whole panels; six of blocks that leave most of a panel empty; heads that share nothing.
  for (const Case& c : {Case{{6, 2, 40, 16}, DType::bf16}, Case{{6, 2, 40, 16}, DType::f32},
                        Case{{6, 2, 40, 16}, DType::f8_e4m3}, Case{{3, 1, 17, 5}, DType::bf16},
                        Case{{3, 1, 17, 5}, DType::f8_e4m3}, Case{{2, 2, 16, 128}, DType::bf16},
                        Case{{2, 2, 16, 128}, DType::f8_e4m3}}) {
    SCOPED_TRACE(::testing::Message() << c.shape.heads << " heads of " << c.shape.head_dim);
    const uint32_t tokens = 800;
    GqaCase test(table(), c.shape, c.dtype, 2, tokens);
    Tensor once(DType::f32, test.query.size());
    test.attend(once, 0, test.rows.size(), 1);
    // Rows on either side of a tile's first key, and of the sequence's.
    for (const auto& [first, last] : {std::pair{500u, 530u}, std::pair{790u, 830u}}) {
      for (const size_t chunk : {1, 7, 16, 257}) {
        for (const int threads : {1, 2}) {
          Tensor out(DType::f32, test.query.size());
          for (size_t begin = first; begin < last; begin += chunk) {
            test.attend(out, begin, std::min<size_t>(begin + chunk, last), threads);
          }
          const size_t width = size_t{c.shape.heads} * c.shape.head_dim;
          EXPECT_TRUE(same_bits(once, first * width, out, first * width, (last - first) * width))
              << "chunks of " << chunk << ", " << threads << " threads";
        }
      }
    }
  }
}

// A row must not see what a later row of the same call has put beside its last key.
// Whatever a later position holds, and wherever it lies beside the last key: values are multiplied in pairs.
TEST_P(AttentionTest, GqaIgnoresLaterKeys) {
  for (const auto& [later, dtype] :
       {std::pair{15u, DType::bf16}, std::pair{16u, DType::bf16}, std::pair{20u, DType::bf16},
        std::pair{21u, DType::bf16}, std::pair{15u, DType::f8_e4m3}, std::pair{18u, DType::f8_e4m3}}) {
    SCOPED_TRACE(later);
    GqaCase test(table(), {4, 1, 32, 16}, dtype, 1, 22);
    Tensor before(DType::f32, test.query.size());
    test.attend(before, 0, later, 1);
    Tensor value(DType::f32, 32, kInfinity), key(DType::f32, 32, kNan);
    KvWriteArgs write;
    const std::vector<AttentionRow> last = {test.rows[later]};
    write.rows = last;
    write.cache = test.cache.view();
    write.first = key.f32();
    write.second = value.f32();
    write.first_stride = write.second_stride = write.first_width = write.second_width = 32;
    write.num_kv_heads = 1;
    run(table(), table().kv_write, write);
    Tensor after(DType::f32, test.query.size());
    test.attend(after, 0, later + 1, 2);
    EXPECT_TRUE(same_bits(before, 0, after, 0, size_t{later} * 4 * 32));
    EXPECT_TRUE(std::isnan(after.get(size_t{later} * 4 * 32)));
  }
}

struct MlaShape {
  uint32_t heads, latent_dim, rope_dim, tokens_per_block;
};

TEST_P(AttentionTest, MlaAgreesWithFloat64AndChunkingKeepsBits) {
  const MlaShape shapes[] = {{4, 32, 8, 16}, {3, 50, 6, 5}, {20, 512, 64, 16}, {1, 7, 2, 3}};
  for (const MlaShape shape : shapes) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f8_e4m3}) {
      SCOPED_TRACE(::testing::Message() << shape.heads << " heads, latent " << shape.latent_dim);
      const uint32_t tokens = shape.latent_dim > 100 ? 290 : 530;  // two and three tiles
      const uint32_t width = shape.latent_dim + shape.rope_dim;
      TestCache cache({dtype, shape.tokens_per_block, 0, width, shape.rope_dim}, 1, tokens + 3);
      const Tensor latent = Tensor::random(DType::f32, size_t{tokens} * shape.latent_dim, 31);
      const Tensor rope = Tensor::random(DType::f32, size_t{tokens} * shape.rope_dim, 32);
      std::vector<AttentionRow> rows;
      for (uint32_t t = 0; t < tokens; ++t) rows.push_back(cache.row(0, t));
      KvWriteArgs write;
      write.rows = rows;
      write.cache = cache.view();
      write.first = reinterpret_cast<const float*>(latent.data());
      write.second = reinterpret_cast<const float*>(rope.data());
      write.first_stride = write.first_width = shape.latent_dim;
      write.second_stride = write.second_width = shape.rope_dim;
      run(table(), table().kv_write, write);
      EXPECT_TRUE(std::isnan(cache.latent(0, tokens, 0)));

      Tensor query_latent = Tensor::random(DType::f32, size_t{tokens} * shape.heads * shape.latent_dim, 33);
      Tensor query_rope = Tensor::random(DType::f32, size_t{tokens} * shape.heads * width, 34);
      Tensor out(output_dtype(dtype), query_latent.size());
      const auto attend = [&](Tensor& to, size_t begin, size_t end, int threads) {
        const size_t out_width = size_t{shape.heads} * shape.latent_dim;
        MlaArgs args;
        args.rows = std::span(rows).subspan(begin, end - begin);
        args.cache = cache.view();
        args.query_latent = query_latent.f32() + begin * out_width;
        args.query_latent_stride = out_width;
        // The rotated part stands inside a wider query, as a projection leaves it.
        args.query_rope = query_rope.f32() + begin * shape.heads * width + shape.latent_dim;
        args.query_rope_stride = size_t{shape.heads} * width;
        args.query_rope_head_stride = width;
        args.out = to.out(out_width);
        args.out.data = static_cast<std::byte*>(to.data()) + begin * out_width * dtype_bytes(to.dtype(), 1);
        args.num_heads = shape.heads;
        args.latent_dim = shape.latent_dim;
        args.rope_dim = shape.rope_dim;
        args.scale = 0.2f;
        run(table(), table().mla, args, threads);
      };
      attend(out, 0, tokens, 2);
      for (const uint32_t position : {0u, 1u, 16u, 64u, 255u, 256u, tokens - 1}) {
        for (uint32_t h = 0; h < shape.heads; ++h) {
          std::vector<double> scores;
          double magnitude = 0;
          const size_t at = (size_t{position} * shape.heads + h) * shape.latent_dim;
          const size_t rope_at = (size_t{position} * shape.heads + h) * width + shape.latent_dim;
          for (uint32_t t = 0; t <= position; ++t) {
            double score = 0, sum = 0;
            for (uint32_t d = 0; d < width; ++d) {
              const float q = d < shape.latent_dim ? query_latent.get(at + d)
                                                   : query_rope.get(rope_at + d - shape.latent_dim);
              const double product = rounded_query(dtype, q) * static_cast<double>(cache.latent(0, t, d));
              score += product;
              sum += std::fabs(product);
            }
            scores.push_back(score * static_cast<double>(0.2f));
            magnitude = std::max(magnitude, sum * static_cast<double>(0.2f));
          }
          for (uint32_t d = 0; d < shape.latent_dim; ++d) {
            const Reference expected = softmax_sum(scores, [&](size_t t) {
              return static_cast<double>(cache.latent(0, static_cast<uint32_t>(t), d));
            });
            ASSERT_NEAR(out.get(at + d), expected.value,
                        softmax_bound(magnitude, width, position + 1, expected, out.dtype()))
                << "position " << position << " head " << h << " dim " << d;
          }
        }
      }
      // Rows on either side of a tile's first key; two threads spread the tiles of a row that is alone.
      const size_t first = 240, last = 275, out_width = size_t{shape.heads} * shape.latent_dim;
      for (const size_t chunk : {1, 9, 64}) {
        for (const int threads : {1, 2}) {
          Tensor chunked(out.dtype(), out.size());
          for (size_t begin = first; begin < last; begin += chunk) {
            attend(chunked, begin, std::min<size_t>(begin + chunk, last), threads);
          }
          EXPECT_TRUE(
              same_bits(out, first * out_width, chunked, first * out_width, (last - first) * out_width))
              << "chunks of " << chunk << ", " << threads << " threads";
        }
      }
    }
  }
}

// A negative or zero scale must not give weight to keys that do not exist; large scores must not overflow.
TEST_P(AttentionTest, ScalesAndLargeScores) {
  for (const float scale : {-1.0f, 0.0f, 300.0f}) {
    GqaCase test(table(), {2, 1, 16, 16}, DType::f32, 1, 20);
    GqaArgs args;
    args.rows = test.rows;
    args.cache = test.cache.view();
    args.query = test.query.f32();
    args.query_stride = 32;
    Tensor out(DType::f32, 20 * 32, kNan);
    args.out = out.out(32);
    args.num_heads = 2;
    args.num_kv_heads = 1;
    args.head_dim = 16;
    args.scale = scale;
    run(table(), table().gqa, args);
    for (size_t i = 0; i < out.size(); ++i) ASSERT_TRUE(std::isfinite(out.get(i))) << scale << " " << i;
    if (scale != 0.0f) continue;
    double mean = 0;  // all keys weigh the same
    for (uint32_t t = 0; t < 20; ++t) mean += static_cast<double>(test.cache.value(0, 0, t, 3)) / 20;
    EXPECT_NEAR(out.get(19 * 32 + 3), mean, 1e-6);
  }
}

TANDEM_EVERY_TABLE(AttentionTest);

}  // namespace
}  // namespace tandem::kernel_testing
