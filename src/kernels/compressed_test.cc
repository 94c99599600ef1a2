// compress, index_select and compressed_attention on every table: against float64, with NaN wherever nothing
// may be read, and with equal bits however the rows are cut into calls.
#include <algorithm>

#include "kernels/testing.h"

namespace tandem::kernel_testing {
namespace {

class CompressedTest : public EveryTable {};

// A paged cache of one sequence whose blocks are out of order. What was not written is NaN.
class PagedCache {
 public:
  PagedCache(DType dtype, uint32_t tokens, uint32_t tokens_per_block, size_t block_elements)
      : tokens_per_block_(tokens_per_block),
        block_elements_(block_elements),
        blocks_((tokens + tokens_per_block - 1) / tokens_per_block),
        values_(dtype, blocks_ * block_elements, kNan) {
    for (uint32_t b = 0; b < blocks_; ++b) table_.push_back(static_cast<int32_t>(blocks_ - 1 - b));
  }
  KvCacheView view() {
    return {static_cast<std::byte*>(values_.data()), dtype_bytes(values_.dtype(), block_elements_),
            tokens_per_block_, values_.dtype()};
  }
  std::vector<AttentionRow> rows(uint32_t begin, uint32_t end) const {
    std::vector<AttentionRow> rows;
    for (uint32_t position = begin; position < end; ++position) rows.push_back({table_.data(), position});
    return rows;
  }
  // The element `offset` of the block of a token.
  size_t at(uint32_t token, size_t offset) const {
    return static_cast<size_t>(table_[token / tokens_per_block_]) * block_elements_ + offset;
  }
  Tensor& values() { return values_; }
  // Blocks before that of `token` are somebody else's now.
  void forget_before(uint32_t token) {
    for (uint32_t b = 0; b < token / tokens_per_block_; ++b) table_[b] = -1;
  }

 private:
  uint32_t tokens_per_block_;
  size_t block_elements_;
  uint32_t blocks_;
  Tensor values_;
  std::vector<int32_t> table_;
};

struct CompressShape {
  uint32_t ratio, dim, rope_dim, pending_per_block;
  bool overlap;
};

TEST_P(CompressedTest, CompressAgreesWithFloat64AndCutsDoNotMatter) {
  const CompressShape shapes[] = {
      {4, 40, 8, 8, true}, {4, 17, 6, 4, true}, {16, 24, 4, 16, false}, {128, 16, 16, 32, false}};
  for (const CompressShape shape : shapes) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(::testing::Message() << "ratio " << shape.ratio << " dim " << shape.dim);
      const uint32_t tokens = 3 * shape.ratio + 2, width = shape.overlap ? 2 * shape.dim : shape.dim;
      // Keys, something else, scores.
      const uint32_t pending_width = 2 * width + 3, scores_offset = width + 3;
      PagedCache pending(DType::f32, tokens, shape.pending_per_block,
                         size_t{shape.pending_per_block} * pending_width);
      const Tensor keys = Tensor::random(DType::f32, size_t{tokens} * width, 41);
      const Tensor scores = Tensor::random(DType::f32, size_t{tokens} * width, 42, 3.0f);
      for (uint32_t t = 0; t < tokens; ++t) {
        const size_t token = size_t{t % shape.pending_per_block} * pending_width;
        for (uint32_t c = 0; c < width; ++c) {
          pending.values().set(pending.at(t, token + c), keys.get(t * width + c));
          pending.values().set(pending.at(t, token + scores_offset + c), scores.get(t * width + c));
        }
      }
      Tensor bias = Tensor::random(DType::f32, size_t{shape.ratio} * width, 43);
      Tensor norm = Tensor::random(DType::f32, shape.dim, 44);
      Tensor angles = Tensor::random(DType::f32, size_t{tokens} * shape.rope_dim / 2, 45);
      Tensor cos_sin(DType::f32, size_t{tokens} * shape.rope_dim);
      for (uint32_t t = 0; t < tokens; ++t) {
        for (uint32_t i = 0; i < shape.rope_dim / 2; ++i) {
          const float angle = angles.get(t * shape.rope_dim / 2 + i);
          cos_sin.set(t * shape.rope_dim + i, std::cos(angle));
          cos_sin.set(t * shape.rope_dim + shape.rope_dim / 2 + i, std::sin(angle));
        }
      }
      const uint32_t per_block = 2, entry_offset = 5;
      const auto compress = [&](PagedCache& entries, uint32_t chunk, int threads) {
        for (uint32_t begin = 0; begin < tokens; begin += chunk) {
          const uint32_t end = std::min(tokens, begin + chunk);
          const std::vector<AttentionRow> from = pending.rows(begin, end), to = entries.rows(begin, end);
          CompressArgs args;
          args.pending_rows = from;
          args.pending = pending.view();
          args.pending_width = pending_width;
          args.scores_offset = scores_offset;
          args.position_bias = bias.f32();
          args.entry_rows = to;
          args.entries = entries.view();
          args.entry_offset = entry_offset;
          args.norm = norm.f32();
          args.cos_sin = cos_sin.f32() + size_t{begin} * shape.rope_dim;
          args.rope_dim = shape.rope_dim;
          args.ratio = shape.ratio;
          args.dim = shape.dim;
          args.overlap = shape.overlap;
          run(table(), table().compress, args, threads);
        }
      };
      const auto make = [&] {
        return PagedCache(dtype, tokens, per_block * shape.ratio, entry_offset + per_block * shape.dim);
      };
      PagedCache entries = make();
      compress(entries, tokens, 2);
      for (const uint32_t chunk : {1u, 3u, shape.ratio}) {
        PagedCache cut = make();
        compress(cut, chunk, 1);
        EXPECT_TRUE(same_bits(entries.values(), 0, cut.values(), 0, cut.values().size())) << chunk;
      }
      for (uint32_t w = 0; w < tokens / shape.ratio; ++w) {
        std::vector<double> entry(shape.dim);
        double squares = 0;
        for (uint32_t d = 0; d < shape.dim; ++d) {
          double denominator = 0, sum = 0;
          const auto pool = [&](uint32_t window, uint32_t channel) {
            for (uint32_t slot = 0; slot < shape.ratio; ++slot) {
              const size_t at = size_t{window * shape.ratio + slot} * width + channel;
              const double weight = std::exp(static_cast<double>(scores.get(at)) +
                                             static_cast<double>(bias.get(slot * width + channel)));
              denominator += weight;
              sum += weight * static_cast<double>(keys.get(at));
            }
          };
          if (shape.overlap && w > 0) pool(w - 1, d);
          pool(w, shape.overlap ? shape.dim + d : d);
          entry[d] = sum / denominator;
          if (dtype == DType::bf16) entry[d] = to_float(to_bf16(static_cast<float>(entry[d])));
          squares += entry[d] * entry[d];
        }
        const double factor = 1 / std::sqrt(squares / shape.dim + static_cast<double>(1e-6f));
        for (uint32_t d = 0; d < shape.dim; ++d) entry[d] *= factor * static_cast<double>(norm.get(d));
        const uint32_t last = (w + 1) * shape.ratio - 1, first = shape.dim - shape.rope_dim;
        for (uint32_t i = 0; i < shape.rope_dim / 2; ++i) {
          const double c = cos_sin.get(last * shape.rope_dim + i),
                       s = cos_sin.get(last * shape.rope_dim + shape.rope_dim / 2 + i);
          const double a = entry[first + 2 * i], b = entry[first + 2 * i + 1];
          entry[first + 2 * i] = a * c - b * s;
          entry[first + 2 * i + 1] = a * s + b * c;
        }
        for (uint32_t d = 0; d < shape.dim; ++d) {
          // bf16: the pooled sum may be rounded the other way in float32, which moves all of the entry a bit.
          const double bound = dtype == DType::f32 ? 2e-5 : 3e-2;
          EXPECT_NEAR(entries.values().get(entries.at(last, entry_offset + w % per_block * shape.dim + d)),
                      entry[d], bound * std::max(1.0, std::fabs(entry[d])))
              << "entry " << w << " value " << d;
        }
      }
    }
  }
}

// The window before the last one is nobody's: neither the sequence's first entry nor a later one reads it.
TEST_P(CompressedTest, CompressReadsWhatIsRetainedOnly) {
  const uint32_t dim = 16, width = 2 * dim, ratio = 4;
  PagedCache pending(DType::f32, 12, ratio, size_t{ratio} * 2 * width);
  for (uint32_t t = 4; t < 12; ++t) {
    for (uint32_t c = 0; c < 2 * width; ++c)
      pending.values().set(pending.at(t, t % ratio * 2 * width + c), 0.5f);
  }
  pending.forget_before(4);
  PagedCache entries(DType::f32, 12, ratio, dim);
  const std::vector<float> bias(ratio * width, 0.0f), norm(dim, 1.0f), cos_sin(2, 1.0f);
  const std::vector<AttentionRow> from = pending.rows(11, 12), to = entries.rows(11, 12);
  CompressArgs args;
  args.pending_rows = from;
  args.pending = pending.view();
  args.pending_width = 2 * width;
  args.scores_offset = width;
  args.position_bias = bias.data();
  args.entry_rows = to;
  args.entries = entries.view();
  args.norm = norm.data();
  args.cos_sin = cos_sin.data();
  args.rope_dim = 0;
  args.ratio = ratio;
  args.dim = dim;
  args.overlap = true;
  run(table(), table().compress, args);
  for (uint32_t d = 0; d < dim; ++d) EXPECT_NEAR(entries.values().get(entries.at(11, d)), 1.0f, 1e-4);
}

double scale_of(double most, double range, double least) {
  return std::max(std::exp2(std::ceil(std::log2(most / range))), least);
}
// The nearest multiple of what the format's spacing is at |x|, ties to even.
double nearest(double x, int mantissa_bits, int least_exponent) {
  const double magnitude = std::fabs(x);
  const int exponent = magnitude == 0
                           ? least_exponent
                           : std::max(static_cast<int>(std::floor(std::log2(magnitude))), least_exponent);
  const double step = std::exp2(exponent - mantissa_bits);
  return std::copysign(std::nearbyint(magnitude / step) * step, x);
}

TEST_P(CompressedTest, TrainedRoundingAgreesWithFloat64) {
  for (const float size : {1e-6f, 1.0f, 3e4f}) {
    const uint32_t rows = 5, heads = 3, cols = 64, head_stride = 70, row_stride = heads * head_stride + 9;
    const Tensor source = Tensor::random(DType::f32, rows * row_stride, 71, size);
    for (const TrainedRounding kind : {TrainedRounding::fp8, TrainedRounding::hadamard_fp4}) {
      // fp8 has a short last block.
      const uint32_t used = kind == TrainedRounding::fp8 ? 70 : cols;
      Tensor x = source;
      TrainedRoundingArgs args;
      args.x = x.f32();
      args.row_stride = row_stride;
      args.head_stride = head_stride;
      args.rows = rows;
      args.heads = heads;
      args.cols = used;
      args.kind = kind;
      run(table(), table().trained_rounding, args, 2);
      for (uint32_t r = 0; r < rows; ++r) {
        for (uint32_t h = 0; h < heads; ++h) {
          const size_t at = size_t{r} * row_stride + h * head_stride;
          std::vector<double> expected(used);
          for (uint32_t i = 0; i < used; ++i) {
            if (kind == TrainedRounding::fp8) {
              expected[i] = source.get(at + i);
              continue;
            }
            // Row i of the Hadamard matrix: the parity of the common bits is the sign.
            for (uint32_t j = 0; j < used; ++j) {
              expected[i] +=
                  (std::popcount(i & j) % 2 == 0 ? 1 : -1) * static_cast<double>(source.get(at + j));
            }
            expected[i] /= std::sqrt(used);
          }
          const uint32_t block = kind == TrainedRounding::fp8 ? 64 : 32;
          for (uint32_t begin = 0; begin < used; begin += block) {
            const uint32_t end = std::min(used, begin + block);
            double most = 0;
            for (uint32_t i = begin; i < end; ++i) most = std::max(most, std::fabs(expected[i]));
            const double scale =
                kind == TrainedRounding::fp8 ? scale_of(most, 448, 0x1p-22) : scale_of(most, 6, 0x1p-126);
            for (uint32_t i = begin; i < end; ++i) {
              const double rounded = kind == TrainedRounding::fp8 ? nearest(expected[i] / scale, 3, -6)
                                                                  : nearest(expected[i] / scale, 1, 0);
              const double have = x.get(at + i);
              if (kind == TrainedRounding::fp8) {
                ASSERT_EQ(have, rounded * scale) << i;
              } else if (have != rounded * scale) {
                // The float32 sum may lie on the other side of a tie.
                ASSERT_NEAR(std::fabs(expected[i] / scale - (have / scale + rounded) / 2), 0, 1e-4) << i;
              }
            }
          }
        }
      }
      // What lies between the heads is left alone.
      for (uint32_t r = 0; r < rows; ++r) {
        for (uint32_t i = heads * head_stride; i < row_stride; ++i)
          ASSERT_EQ(x.get(r * row_stride + i), source.get(r * row_stride + i));
      }
    }
  }
}

struct IndexCase {
  static constexpr uint32_t kHeads = 5, kDim = 24, kRatio = 4, kPerBlock = 8, kOffset = 11, kTokens = 1400;
  IndexCase(DType dtype, bool ties)
      : entries(dtype, kTokens, kRatio * kPerBlock, kOffset + kPerBlock * kDim),
        query(Tensor::random(DType::f32, size_t{kTokens} * kHeads * kDim, 51)),
        weights(Tensor::random(DType::f32, size_t{kTokens} * kHeads, 52)) {
    Tensor keys = Tensor::random(dtype, size_t{kTokens / kRatio} * kDim, 53);
    for (uint32_t entry = 0; entry < kTokens / kRatio; ++entry) {
      // Of three kinds of keys only: most scores are equal to many others.
      const uint32_t from = ties ? entry * 7 % 3 : entry;
      for (uint32_t d = 0; d < kDim; ++d) {
        entries.values().set(entries.at(entry * kRatio, kOffset + entry % kPerBlock * kDim + d),
                             keys.get(from * kDim + d));
      }
    }
  }
  std::vector<int32_t> select(const KernelTable& table, uint32_t top_k, uint32_t begin, uint32_t end,
                              int threads) {
    const std::vector<AttentionRow> rows = entries.rows(begin, end);
    std::vector<int32_t> selected(size_t{end - begin} * top_k, -7);
    IndexSelectArgs args;
    args.rows = rows;
    args.entries = entries.view();
    args.key_offset = kOffset;
    args.ratio = kRatio;
    args.query = query.f32() + size_t{begin} * kHeads * kDim;
    args.weights = weights.f32() + size_t{begin} * kHeads;
    args.heads = kHeads;
    args.dim = kDim;
    args.top_k = top_k;
    args.selected = selected.data();
    run(table, table.index_select, args, threads);
    return selected;
  }
  double score(uint32_t row, uint32_t entry) {
    double score = 0;
    for (uint32_t h = 0; h < kHeads; ++h) {
      double dot = 0;
      for (uint32_t d = 0; d < kDim; ++d) {
        const float q = query.get((size_t{row} * kHeads + h) * kDim + d);
        dot += static_cast<double>(entries.values().dtype() == DType::bf16 ? to_float(to_bf16(q)) : q) *
               static_cast<double>(
                   entries.values().get(entries.at(entry * kRatio, kOffset + entry % kPerBlock * kDim + d)));
      }
      score += static_cast<double>(weights.get(size_t{row} * kHeads + h)) * std::max(0.0, dot);
    }
    return score;
  }
  PagedCache entries;
  Tensor query, weights;
};

TEST_P(CompressedTest, IndexSelectTakesTheBestAndOfEqualOnesTheEarlier) {
  for (const bool ties : {false, true}) {
    for (const uint32_t top_k : {1u, 6u, 16u, 100u}) {
      IndexCase test(ties ? DType::bf16 : DType::f32, ties);
      const std::vector<int32_t> all = test.select(table(), top_k, 0, IndexCase::kTokens, 1);
      for (uint32_t row = 0; row < IndexCase::kTokens; row += 13) {
        const uint32_t visible = (row + 1) / IndexCase::kRatio;
        const std::vector<int32_t> have(all.begin() + row * top_k, all.begin() + (row + 1) * top_k);
        // Two threads share the entries of a row that is alone.
        EXPECT_EQ(test.select(table(), top_k, row, row + 1, 2), have) << "row " << row << " alone";
        if (visible <= top_k) {
          EXPECT_EQ(have, std::vector<int32_t>(top_k, -7)) << "row " << row << " takes all";
          continue;
        }
        EXPECT_TRUE(std::is_sorted(have.begin(), have.end(), std::less_equal<>())) << "row " << row;
        ASSERT_GE(have.front(), 0);
        ASSERT_LT(have.back(), static_cast<int32_t>(visible));
        // float32 may order differently what differs by less than this.
        const double near = 1e-4;
        double worst = 1e30;
        for (const int32_t entry : have)
          worst = std::min(worst, test.score(row, static_cast<uint32_t>(entry)));
        for (uint32_t entry = 0; entry < visible; ++entry) {
          if (std::ranges::find(have, static_cast<int32_t>(entry)) != have.end()) continue;
          EXPECT_LE(test.score(row, entry), worst + near) << "row " << row << " left out " << entry;
          if (!ties) continue;
          // Equal keys give equal bits: a later one of the same kind must not have been preferred.
          for (const int32_t taken : have) {
            if (static_cast<uint32_t>(taken) < entry) continue;
            EXPECT_NE(taken * 7 % 3, static_cast<int>(entry * 7 % 3));
          }
        }
      }
    }
  }
}

struct AttentionShape {
  uint32_t heads, head_dim, window, ratio, entries_per_block, top_k;  // top_k 0: no choice
  uint32_t block = 0;  // rows that see each other, and `window` positions before the first of them
  KeyRange seen_by(uint32_t row) const {
    const uint32_t first = block == 0 ? row + 1 : row / block * block;
    return {first < window ? 0 : first - window, block == 0 ? row + 1 : first + block};
  }
};

TEST_P(CompressedTest, AttentionAgreesWithFloat64AndCutsDoNotMatter) {
  // The last one sees up to 340 keys: two tiles.
  const AttentionShape shapes[] = {{4, 24, 20, 0, 1, 0},     {3, 64, 16, 4, 4, 5},
                                   {20, 40, 70, 16, 1, 0},   {5, 32, 12, 0, 1, 0, 5},
                                   {2, 64, 33, 0, 1, 0, 10}, {36, 32, 300, 4, 4, 50}};
  for (const AttentionShape shape : shapes) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(::testing::Message() << shape.heads << " heads, ratio " << shape.ratio);
      const uint32_t tokens = shape.window == 300 ? 310 : 150, dim = shape.head_dim, per_block = 8;
      PagedCache window(dtype, tokens, per_block, per_block * dim);
      Tensor keys = Tensor::random(dtype, size_t{tokens} * dim, 61);
      for (uint32_t t = 0; t < tokens; ++t) {
        for (uint32_t d = 0; d < dim; ++d) {
          window.values().set(window.at(t, t % per_block * dim + d), keys.get(t * dim + d));
        }
      }
      const uint32_t ratio = std::max(shape.ratio, 1u), count = shape.ratio == 0 ? 0 : tokens / ratio;
      PagedCache entries(dtype, tokens, ratio * shape.entries_per_block, shape.entries_per_block * dim);
      Tensor entry_keys = Tensor::random(dtype, size_t{count} * dim + 1, 62);
      for (uint32_t e = 0; e < count; ++e) {
        for (uint32_t d = 0; d < dim; ++d) {
          entries.values().set(entries.at(e * ratio, e % shape.entries_per_block * dim + d),
                               entry_keys.get(e * dim + d));
        }
      }
      // Row r takes every second of the entries that it sees.
      std::vector<int32_t> selected(size_t{tokens} * std::max(shape.top_k, 1u), -1);
      for (uint32_t r = 0; shape.top_k != 0 && r < tokens; ++r) {
        if ((r + 1) / ratio <= shape.top_k) continue;
        for (uint32_t i = 0; i < shape.top_k; ++i) {
          selected[r * shape.top_k + i] = static_cast<int32_t>(i * ((r + 1) / ratio) / shape.top_k);
        }
      }
      Tensor query = Tensor::random(DType::f32, size_t{tokens} * shape.heads * dim, 63);
      Tensor sinks = Tensor::random(DType::f32, shape.heads, 64, 2.0f);
      const size_t out_width = size_t{shape.heads} * dim;
      std::vector<KeyRange> ranges;
      for (uint32_t row = 0; shape.block != 0 && row < tokens; ++row) ranges.push_back(shape.seen_by(row));
      const auto attend = [&](Tensor& out, uint32_t begin, uint32_t end, int threads) {
        const std::vector<AttentionRow> rows = window.rows(begin, end), entry_rows = entries.rows(begin, end);
        CompressedAttentionArgs args;
        args.window_rows = rows;
        args.window_cache = window.view();
        args.window = shape.window;
        if (!ranges.empty()) args.window_ranges = std::span(ranges).subspan(begin, end - begin);
        args.entry_rows = entry_rows;
        args.entries = entries.view();
        args.ratio = shape.ratio;
        args.selected = shape.top_k == 0 ? nullptr : selected.data() + size_t{begin} * shape.top_k;
        args.top_k = shape.top_k;
        args.query = query.f32() + begin * out_width;
        args.query_stride = out_width;
        args.sinks = sinks.f32();
        args.out = out.out(out_width);
        args.out.data = static_cast<std::byte*>(out.data()) + dtype_bytes(out.dtype(), begin * out_width);
        args.num_heads = shape.heads;
        args.head_dim = dim;
        args.scale = 0.3f;
        run(table(), table().compressed_attention, args, threads);
      };
      Tensor out(DType::f32, tokens * out_width, kNan);
      attend(out, 0, tokens, 2);
      for (const uint32_t chunk : {1u, 9u}) {
        for (const int threads : {1, 2}) {
          Tensor cut(DType::f32, out.size(), kNan);
          for (uint32_t begin = 0; begin < tokens; begin += chunk) {
            attend(cut, begin, std::min(tokens, begin + chunk), threads);
          }
          EXPECT_TRUE(same_bits(out, 0, cut, 0, out.size()))
              << "chunks of " << chunk << ", " << threads << " threads";
        }
      }
      for (const uint32_t row : {0u, 3u, 15u, 16u, 19u, 20u, 63u, 127u, 149u, tokens - 1}) {
        for (uint32_t h = 0; h < shape.heads; ++h) {
          std::vector<std::pair<const Tensor*, size_t>> at;
          const KeyRange seen = shape.seen_by(row);
          for (uint32_t t = seen.begin; t < seen.end; ++t) {
            at.emplace_back(&keys, size_t{t} * dim);
          }
          const uint32_t visible = shape.ratio == 0 ? 0 : (row + 1) / ratio;
          const bool chosen = shape.top_k != 0 && visible > shape.top_k;
          for (uint32_t i = 0; i < (chosen ? shape.top_k : visible); ++i) {
            const auto entry = chosen ? static_cast<uint32_t>(selected[row * shape.top_k + i]) : i;
            at.emplace_back(&entry_keys, size_t{entry} * dim);
          }
          const double sink = sinks.get(h);
          std::vector<double> scores;
          double most = sink, magnitude = 0;
          for (const auto& [tensor, begin] : at) {
            double score = 0, sum = 0;
            for (uint32_t d = 0; d < dim; ++d) {
              const float q = query.get(row * out_width + h * dim + d);
              const double product = static_cast<double>(dtype == DType::bf16 ? to_float(to_bf16(q)) : q) *
                                     static_cast<double>(tensor->get(begin + d)) * static_cast<double>(0.3f);
              score += product;
              sum += std::fabs(product);
            }
            scores.push_back(score);
            most = std::max(most, score);
            magnitude = std::max(magnitude, sum);
          }
          double denominator = std::exp(sink - most);
          for (const double score : scores) denominator += std::exp(score - most);
          for (uint32_t d = 0; d < dim; ++d) {
            double sum = 0, sizes = 0;
            for (size_t i = 0; i < at.size(); ++i) {
              const double part = std::exp(scores[i] - most) / denominator *
                                  static_cast<double>(at[i].first->get(at[i].second + d));
              sum += part;
              sizes += std::fabs(part);
            }
            // bf16: each weight is rounded, in the sum and in the denominator.
            const double bound = (2 * std::expm1((dim + 4) * 0x1p-24 * magnitude) +
                                  (dtype == DType::bf16 ? 2.01 * 0x1p-9 : 0.0) +
                                  (2.0 * static_cast<double>(at.size()) + 24) * 0x1p-24) *
                                     sizes +
                                 1e-30;
            ASSERT_NEAR(out.get(row * out_width + h * dim + d), sum, bound)
                << "row " << row << " head " << h << " value " << d;
          }
        }
      }
    }
  }
}

TANDEM_EVERY_TABLE(CompressedTest);

}  // namespace
}  // namespace tandem::kernel_testing
