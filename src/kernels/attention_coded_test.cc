// A cache of e4m3 codes on every table: what is written, and that attention over codes has the bits of
// attention over a bf16 cache of the same numbers.
#include "kernels/attention_testing.h"

namespace tandem::kernel_testing {
namespace {

class AttentionCodedTest : public EveryTable {
 protected:
  // Writes [rows, kv_heads * head_dim] keys and values.
  void write_rows(TestCache& cache, const std::vector<AttentionRow>& rows, const std::vector<float>& keys,
                  const std::vector<float>& values) {
    KvWriteArgs write;
    write.rows = rows;
    write.cache = cache.view();
    write.first = keys.data();
    write.second = values.data();
    const uint32_t width = cache.layout().num_kv_heads * cache.layout().head_dim;
    write.first_stride = write.second_stride = write.first_width = write.second_width = width;
    write.num_kv_heads = cache.layout().num_kv_heads;
    run(table(), table().kv_write, write);
  }
};

TEST_P(AttentionCodedTest, GqaHasTheBitsOfABf16Cache) {
  // More than a tile, heads that fill no column, blocks that fill no panel, many queries of one key.
  for (const GqaShape shape : {GqaShape{8, 1, 128, 16}, {6, 2, 40, 16}, {3, 1, 17, 5}, {2, 2, 64, 128}}) {
    SCOPED_TRACE(::testing::Message() << shape.heads << " heads of " << shape.head_dim);
    const uint32_t tokens = 600, width = shape.kv_heads * shape.head_dim;
    GqaCase test(table(), shape, DType::f8_e4m3, 1, tokens);
    Tensor coded(DType::f32, test.query.size());
    test.attend(coded, 0, tokens, 2);

    std::vector<float> keys, values;
    for (uint32_t t = 0; t < tokens; ++t) {
      for (uint32_t i = 0; i < width; ++i) {
        keys.push_back(test.cache.key(0, i / shape.head_dim, t, i % shape.head_dim));
        values.push_back(test.cache.value(0, i / shape.head_dim, t, i % shape.head_dim));
      }
    }
    test.cache = TestCache({DType::bf16, shape.tokens_per_block, shape.kv_heads, shape.head_dim}, 1, tokens);
    for (uint32_t t = 0; t < tokens; ++t) test.rows[t] = test.cache.row(0, t);
    write_rows(test.cache, test.rows, keys, values);
    Tensor narrow(DType::f32, test.query.size());
    test.attend(narrow, 0, tokens, 2);
    EXPECT_TRUE(same_bits(coded, 0, narrow, 0, coded.size()));
  }
}

// A latent's scale is shared by the rotated part, which keeps the precision of bf16.
TEST_P(AttentionCodedTest, MlaHasTheBitsOfABf16Cache) {
  struct Shape {
    uint32_t heads, latent_dim, rope_dim, tokens_per_block;
  };
  for (const Shape shape : {Shape{16, 512, 64, 16}, Shape{3, 50, 6, 5}, Shape{20, 64, 16, 16}}) {
    SCOPED_TRACE(::testing::Message() << shape.heads << " heads, latent " << shape.latent_dim);
    const uint32_t tokens = shape.latent_dim > 100 ? 270 : 530, width = shape.latent_dim + shape.rope_dim;
    const Tensor latent = Tensor::random(DType::f32, size_t{tokens} * shape.latent_dim, 41, 3.0f);
    const Tensor rope = Tensor::random(DType::f32, size_t{tokens} * shape.rope_dim, 42, 9.0f);
    const Tensor query = Tensor::random(DType::f32, size_t{tokens} * shape.heads * width, 43);
    Tensor out[2] = {Tensor(DType::f32, size_t{tokens} * shape.heads * shape.latent_dim),
                     Tensor(DType::f32, size_t{tokens} * shape.heads * shape.latent_dim)};
    std::vector<float> latents(latent.size()), ropes(rope.size());
    for (size_t i = 0; i < latent.size(); ++i) latents[i] = latent.get(i);
    for (size_t i = 0; i < rope.size(); ++i) ropes[i] = rope.get(i);
    for (const bool coded : {true, false}) {
      TestCache cache(
          {coded ? DType::f8_e4m3 : DType::bf16, shape.tokens_per_block, 0, width, shape.rope_dim}, 1,
          tokens);
      std::vector<AttentionRow> rows;
      for (uint32_t t = 0; t < tokens; ++t) rows.push_back(cache.row(0, t));
      KvWriteArgs write;
      write.rows = rows;
      write.cache = cache.view();
      write.first = latents.data();
      write.second = ropes.data();
      write.first_stride = write.first_width = shape.latent_dim;
      write.second_stride = write.second_width = shape.rope_dim;
      run(table(), table().kv_write, write, 2);
      MlaArgs args;
      args.rows = rows;
      args.cache = cache.view();
      args.query_latent = reinterpret_cast<const float*>(query.data());
      args.query_rope = args.query_latent + size_t{shape.heads} * shape.latent_dim;
      args.query_latent_stride = args.query_rope_stride = size_t{shape.heads} * width;
      args.query_rope_head_stride = shape.rope_dim;
      args.out = out[coded ? 0 : 1].out(size_t{shape.heads} * shape.latent_dim);
      args.num_heads = shape.heads;
      args.latent_dim = shape.latent_dim;
      args.rope_dim = shape.rope_dim;
      args.scale = 0.02f;
      run(table(), table().mla, args, 2);
      if (!coded) continue;
      for (uint32_t t = 0; t < tokens; ++t) {
        const std::vector<float> expected =
            rounded_to_codes({&latents[t * shape.latent_dim], &latents[(t + 1) * shape.latent_dim]});
        for (uint32_t d = 0; d < shape.latent_dim; ++d) {
          ASSERT_EQ(cache.latent(0, t, d), expected[d]) << "token " << t << " dim " << d;
          latents[t * shape.latent_dim + d] = expected[d];
        }
        for (uint32_t d = 0; d < shape.rope_dim; ++d) {
          ASSERT_EQ(cache.latent(0, t, shape.latent_dim + d),
                    to_float(to_bf16(ropes[t * shape.rope_dim + d])));
        }
      }
    }
    EXPECT_TRUE(same_bits(out[0], 0, out[1], 0, out[0].size()));
  }
}

TEST_P(AttentionCodedTest, LatentsOfEveryMagnitude) {
  constexpr uint32_t kLatent = 40, kRope = 8;
  const std::pair<float, float> cases[] = {{0.0f, 1.0f},      {1.0f, 0.0f},       {1e-30f, 1e20f},
                                           {1e20f, 1e-30f},   {kNan, 1.0f},       {1.0f, kNan},
                                           {kInfinity, 1.0f}, {1.0f, -kInfinity}, {3e38f, 3e38f}};
  TestCache cache({DType::f8_e4m3, 16, 0, kLatent + kRope, kRope}, 1, 16);
  std::vector<AttentionRow> rows;
  std::vector<float> latents, ropes;
  for (const auto& [latent, rope] : cases) {
    rows.push_back(cache.row(0, static_cast<uint32_t>(rows.size())));
    latents.insert(latents.end(), kLatent, latent);
    ropes.insert(ropes.end(), kRope, rope);
  }
  KvWriteArgs write;
  write.rows = rows;
  write.cache = cache.view();
  write.first = latents.data();
  write.second = ropes.data();
  write.first_stride = write.first_width = kLatent;
  write.second_stride = write.second_width = kRope;
  run(table(), table().kv_write, write);
  for (uint32_t t = 0; t < rows.size(); ++t) {
    SCOPED_TRACE(t);
    const auto [latent, rope] = cases[t];
    for (uint32_t d : {0u, kLatent - 1, kLatent, kLatent + kRope - 1}) {
      const float got = cache.latent(0, t, d), given = d < kLatent ? latent : rope;
      if (!std::isfinite(latent) || !std::isfinite(rope)) {
        EXPECT_TRUE(std::isnan(got)) << d;
      } else {
        EXPECT_NEAR(got, given,
                    std::fabs(static_cast<double>(given)) / (d < kLatent ? 16 : 256) + 1e-9 * rope +
                        0x1p-126 * latent)
            << d;
      }
    }
  }
}

// Each vector has a scale of its own: nothing saturates, and what is not a number stays in its vector.
TEST_P(AttentionCodedTest, WritesVectorsOfEveryMagnitude) {
  constexpr uint32_t kDim = 24;
  const float largest[] = {0.0f, 1e-38f, 1e-30f, 1e-6f, 0.4375f, 447.9f, 448.0f, 448.1f, 3e4f, 1e20f, 3e38f};
  std::vector<std::vector<float>> vectors;
  for (const float magnitude : largest) {
    std::vector<float> vector(kDim);
    for (uint32_t d = 0; d < kDim; ++d) {
      vector[d] = magnitude * (d % 2 == 0 ? -1.0f : 1.0f) / static_cast<float>(1 + d * d);
    }
    vectors.push_back(vector);
  }
  for (const float odd : {kNan, kInfinity, -kInfinity}) {
    vectors.emplace_back(kDim, 1.0f);
    vectors.back()[7] = odd;
  }
  const auto tokens = static_cast<uint32_t>(vectors.size());
  TestCache cache({DType::f8_e4m3, 16, 1, kDim}, 1, tokens);
  std::vector<AttentionRow> rows;
  std::vector<float> keys, values;
  for (uint32_t t = 0; t < tokens; ++t) {
    rows.push_back(cache.row(0, t));
    keys.insert(keys.end(), vectors[t].begin(), vectors[t].end());
    const std::vector<float>& other = vectors[tokens - 1 - t];
    values.insert(values.end(), other.begin(), other.end());
  }
  write_rows(cache, rows, keys, values);
  for (uint32_t t = 0; t < tokens; ++t) {
    const std::vector<float> key = rounded_to_codes(vectors[t]);
    const std::vector<float> value = rounded_to_codes(vectors[tokens - 1 - t]);
    for (uint32_t d = 0; d < kDim; ++d) {
      SCOPED_TRACE(::testing::Message() << "vector " << t << " dim " << d);
      if (std::isnan(key[d])) {
        EXPECT_TRUE(std::isnan(cache.key(0, 0, t, d)));
      } else {
        EXPECT_EQ(cache.key(0, 0, t, d), key[d]);
        EXPECT_LE(std::fabs(key[d] - vectors[t][d]), std::fabs(vectors[t][d]) / 16 + 0x1p-74);
      }
      if (std::isnan(value[d])) {
        EXPECT_TRUE(std::isnan(cache.value(0, 0, t, d)));
      } else {
        EXPECT_EQ(cache.value(0, 0, t, d), value[d]);
      }
    }
  }
}

// A vector that is not a number is seen by every row from its own on, and by none before.
TEST_P(AttentionCodedTest, NanIsSeen) {
  for (const bool in_key : {true, false}) {
    GqaCase test(table(), {2, 1, 32, 16}, DType::f8_e4m3, 1, 40);
    Tensor before(DType::f32, test.query.size());
    test.attend(before, 0, 40, 1);
    std::vector<float> key(32, 1.0f), value(32, 1.0f);
    (in_key ? key : value)[3] = kInfinity;
    write_rows(test.cache, {test.rows[20]}, key, value);
    Tensor after(DType::f32, test.query.size());
    test.attend(after, 0, 40, 1);
    EXPECT_TRUE(same_bits(before, 0, after, 0, size_t{20} * 64));
    for (size_t i = size_t{20} * 64; i < after.size(); ++i) ASSERT_TRUE(std::isnan(after.get(i))) << i;
  }
}

TEST_P(AttentionCodedTest, EveryTableWritesTheSameBits) {
  const GqaCase here(table(), {4, 2, 40, 16}, DType::f8_e4m3, 2, 50);
  const GqaCase there(*runnable_kernel_tables().back(), {4, 2, 40, 16}, DType::f8_e4m3, 2, 50);
  EXPECT_EQ(here.cache.content(), there.cache.content());
}

TEST(PagedKvLayoutTest, CodesTakeHalfOfBf16AndTheirScales) {
  const PagedKvLayout narrow{DType::bf16, 16, 4, 128}, coded{DType::f8_e4m3, 16, 4, 128};
  EXPECT_EQ(narrow.block_bytes(), 2u * 4 * 128 * 16 * 2);
  EXPECT_EQ(coded.block_bytes(), 2u * 4 * 128 * 16 + 2 * 4 * 16);
  const PagedKvLayout latent{DType::f8_e4m3, 16, 0, 576, 64};
  EXPECT_EQ(latent.block_bytes(), (16u * (512 + 64 * 2) + 16 + 63) / 64 * 64);
  const PagedKvLayout odd{DType::f8_e4m3, 5, 1, 17};  // whole cache lines
  EXPECT_EQ(odd.block_bytes(), (20u * 16 + 32 * 16 + 32 + 63) / 64 * 64);
}

TANDEM_EVERY_TABLE(AttentionCodedTest);

}  // namespace
}  // namespace tandem::kernel_testing
