// mla_gather and expanded_mla on every table: the cache's numbers, attention against float64, and equal bits
// for every chunking of a prompt.
#include <algorithm>

#include "kernels/attention_testing.h"
#include "kernels/testing.h"

namespace tandem::kernel_testing {
namespace {

class ExpandedMlaTest : public EveryTable {};

TEST_P(ExpandedMlaTest, GathersWhatTheCacheHolds) {
  struct Shape {
    uint32_t latent_dim, rope_dim, tokens_per_block, keys;
  };
  for (const Shape& shape : {Shape{32, 8, 16, 130}, Shape{50, 6, 5, 64}, Shape{512, 64, 16, 70}}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f8_e4m3}) {
      SCOPED_TRACE(::testing::Message() << "latent " << shape.latent_dim << " " << dtype_name(dtype));
      const uint32_t width = shape.latent_dim + shape.rope_dim, heads = 3, row = 7 + shape.rope_dim;
      TestCache cache({dtype, shape.tokens_per_block, 0, width, shape.rope_dim}, 2, shape.keys + 3);
      const Tensor latent = Tensor::random(DType::f32, size_t{shape.keys} * shape.latent_dim, 41);
      const Tensor rope = Tensor::random(DType::f32, size_t{shape.keys} * shape.rope_dim, 42);
      std::vector<AttentionRow> rows;
      for (uint32_t t = 0; t < shape.keys; ++t) rows.push_back(cache.row(1, t));
      KvWriteArgs write;
      write.rows = rows;
      write.cache = cache.view();
      write.first = reinterpret_cast<const float*>(latent.data());
      write.second = reinterpret_cast<const float*>(rope.data());
      write.first_stride = write.first_width = shape.latent_dim;
      write.second_stride = write.second_width = shape.rope_dim;
      run(table(), table().kv_write, write);

      Tensor latents(output_dtype(dtype), size_t{shape.keys} * shape.latent_dim, kNan);
      Tensor expanded(output_dtype(dtype), size_t{shape.keys} * heads * row, kNan);
      MlaGatherArgs args;
      args.cache = cache.view();
      args.block_table = rows[0].block_table;
      args.keys = shape.keys;
      args.latent_dim = shape.latent_dim;
      args.rope_dim = shape.rope_dim;
      args.latents = latents.out(shape.latent_dim);
      args.rope = expanded.out(size_t{heads} * row);
      args.rope.data = static_cast<std::byte*>(args.rope.data) + dtype_bytes(expanded.dtype(), 7);
      args.rope_head_stride = row;
      args.num_heads = heads;
      run(table(), table().mla_gather, args, 2);
      for (uint32_t t = 0; t < shape.keys; ++t) {
        for (uint32_t d = 0; d < shape.latent_dim; ++d)
          ASSERT_EQ(latents.get(size_t{t} * shape.latent_dim + d), cache.latent(1, t, d)) << t << " " << d;
        for (uint32_t h = 0; h < heads; ++h) {
          for (uint32_t d = 0; d < row; ++d) {
            const double found = expanded.get((size_t{t} * heads + h) * row + d);
            if (d < 7) {
              ASSERT_TRUE(std::isnan(found)) << "in front of the rotated part";
            } else {
              ASSERT_EQ(found, cache.latent(1, t, shape.latent_dim + d - 7)) << t << " " << h << " " << d;
            }
          }
        }
      }
    }
  }
}

struct ExpandedShape {
  uint32_t heads, key_dim, value_dim;
};

TEST_P(ExpandedMlaTest, AgreesWithFloat64AndChunkingKeepsBits) {
  for (const ExpandedShape shape :
       {ExpandedShape{4, 40, 32}, {3, 21, 50}, {2, 192, 128}, {1, 9, 7}, {5, 24, 24}}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(::testing::Message() << "key " << shape.key_dim << " value " << shape.value_dim);
      const uint32_t tokens = 530, width = shape.key_dim + shape.value_dim;  // three tiles
      // Stands in wider rows; behind the last key there is nothing that is a number.
      const size_t key_stride = size_t{shape.heads} * width + 5,
                   query_width = size_t{shape.heads} * shape.key_dim;
      Tensor keys(dtype, (tokens + 9) * key_stride, kNan);
      const Tensor numbers = Tensor::random(dtype, tokens * key_stride, 51);
      for (size_t i = 0; i < numbers.size(); ++i) keys.set(i, numbers.get(i));
      Tensor query = Tensor::random(DType::f32, tokens * query_width, 52);
      const int32_t no_blocks = 0;
      std::vector<AttentionRow> rows;
      for (uint32_t t = 0; t < tokens; ++t) rows.push_back({&no_blocks, t});
      const size_t out_width = size_t{shape.heads} * shape.value_dim;
      const auto attend = [&](Tensor& to, size_t begin, size_t end, int threads) {
        ExpandedMlaArgs args;
        args.rows = std::span(rows).subspan(begin, end - begin);
        args.dtype = dtype;
        args.keys = keys.data();
        args.key_stride = key_stride;
        args.query = query.f32() + begin * query_width;
        args.query_stride = query_width;
        args.out = to.out(out_width);
        args.out.data = static_cast<std::byte*>(to.data()) + dtype_bytes(to.dtype(), begin * out_width);
        args.num_heads = shape.heads;
        args.key_dim = shape.key_dim;
        args.value_dim = shape.value_dim;
        args.scale = 0.2f;
        run(table(), table().expanded_mla, args, threads);
      };
      Tensor out(dtype, tokens * out_width);
      attend(out, 0, tokens, 2);
      for (const uint32_t position : {0u, 1u, 64u, 255u, 256u, tokens - 1}) {
        for (uint32_t h = 0; h < shape.heads; ++h) {
          std::vector<double> scores;
          double magnitude = 0;
          for (uint32_t t = 0; t <= position; ++t) {
            const size_t at = t * key_stride + size_t{h} * width + shape.value_dim;
            double score = 0, sum = 0;
            for (uint32_t d = 0; d < shape.key_dim; ++d) {
              const float q = query.f32()[position * query_width + size_t{h} * shape.key_dim + d];
              const double product = rounded_query(dtype, q) * static_cast<double>(keys.get(at + d));
              score += product;
              sum += std::fabs(product);
            }
            scores.push_back(score * static_cast<double>(0.2f));
            magnitude = std::max(magnitude, sum * static_cast<double>(0.2f));
          }
          for (uint32_t d = 0; d < shape.value_dim; ++d) {
            const Reference expected = softmax_sum(scores, [&](size_t t) {
              return static_cast<double>(keys.get(t * key_stride + size_t{h} * width + d));
            });
            ASSERT_NEAR(out.get(position * out_width + size_t{h} * shape.value_dim + d), expected.value,
                        softmax_bound(magnitude, shape.key_dim, position + 1, expected, out.dtype()))
                << "position " << position << " head " << h << " dim " << d;
          }
        }
      }
      // Rows on either side of a tile's first key; two threads spread the tiles of a row that is alone.
      const size_t first = 240, last = 275;
      for (const size_t chunk : {1, 9, 64}) {
        for (const int threads : {1, 2}) {
          Tensor chunked(out.dtype(), out.size());
          for (size_t begin = first; begin < last; begin += chunk)
            attend(chunked, begin, std::min<size_t>(begin + chunk, last), threads);
          EXPECT_TRUE(
              same_bits(out, first * out_width, chunked, first * out_width, (last - first) * out_width))
              << "chunks of " << chunk << ", " << threads << " threads";
        }
      }
    }
  }
}

TANDEM_EVERY_TABLE(ExpandedMlaTest);

}  // namespace
}  // namespace tandem::kernel_testing
