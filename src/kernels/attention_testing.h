// For the tests of attention kernels: a paged cache, its contents as numbers, and a case of gqa.
#pragma once

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/paged_kv_layout.h"
#include "kernels/testing.h"

namespace tandem::kernel_testing {

// The number of an e4m3 code, by its definition.
inline float e4m3_value(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return kNan;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// A vector as e4m3 codes times the smallest power of two, at least 2^-64, that keeps them within 448.
inline std::vector<float> rounded_to_codes(std::vector<float> vector) {
  double largest = 0;
  for (const float x : vector) {
    if (!std::isfinite(x)) return std::vector<float>(vector.size(), kNan);
    largest = std::max(largest, std::fabs(static_cast<double>(x)));
  }
  int power = -64;
  while (std::ldexp(448.0, power) < largest) ++power;
  for (float& x : vector) {
    const double scaled = std::ldexp(static_cast<double>(x), -power);
    // Multiples of 2^(exponent - 3); below 2^-6 of 2^-9.
    const int step = scaled == 0 ? -9 : std::max(std::ilogb(scaled), -6) - 3;
    x = static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(scaled, -step)), step + power));
  }
  return vector;
}

// A paged cache in which everything that was not written is NaN (codes: has the scale NaN). Blocks of a
// sequence are out of order.
class TestCache {
 public:
  TestCache(PagedKvLayout layout, uint32_t sequences, uint32_t tokens)
      : layout_(layout),
        blocks_((tokens + layout.tokens_per_block - 1) / layout.tokens_per_block),
        bytes_(sequences * size_t{blocks_} * layout.block_bytes(), std::byte{0xff}) {
    for (uint32_t s = 0; s < sequences; ++s) {
      tables_.emplace_back();
      for (uint32_t b = 0; b < blocks_; ++b) {
        tables_.back().push_back(static_cast<int32_t>((blocks_ - 1 - b) * sequences + s));
      }
    }
  }

  KvCacheView view() {
    return {bytes_.data(), layout_.block_bytes(), layout_.tokens_per_block, layout_.dtype};
  }
  AttentionRow row(uint32_t sequence, uint32_t position) const {
    return {tables_[sequence].data(), position};
  }
  const PagedKvLayout& layout() const { return layout_; }

  float key(uint32_t sequence, uint32_t head, uint32_t position, uint32_t d) const {
    const uint32_t token = position % layout_.tokens_per_block;
    return element(sequence, position, layout_.key(head, token, d),
                   layout_.scales(head, token / 16) + token % 16);
  }
  float value(uint32_t sequence, uint32_t head, uint32_t position, uint32_t d) const {
    const uint32_t token = position % layout_.tokens_per_block;
    return element(sequence, position, layout_.value(head, token, d),
                   layout_.scales(head, token / 16) + 16 + token % 16);
  }
  // Dimension d of a latent, or of the rotated part behind it.
  float latent(uint32_t sequence, uint32_t position, uint32_t d) const {
    const uint32_t token = position % layout_.tokens_per_block, width = layout_.head_dim - layout_.rope_dim;
    const size_t at = layout_.latent(token);
    if (!layout_.coded()) return element(sequence, position, at / layout_.element_bytes() + d, 0);
    if (d < width) {
      return element(sequence, position, at + PagedKvLayout::latent_code(d), layout_.latent_scale(token));
    }
    const std::byte* of_block = block(sequence, position);
    const auto scale = static_cast<int>(of_block[layout_.latent_scale(token)]);
    bf16 narrow;
    std::memcpy(&narrow, of_block + at + layout_.latent_codes() + (d - width) * sizeof narrow, sizeof narrow);
    return scale == 255 ? kNan : std::ldexp(to_float(narrow), scale - 127);
  }
  const std::vector<std::byte>& content() const { return bytes_; }

 private:
  const std::byte* block(uint32_t sequence, uint32_t position) const {
    return bytes_.data() + static_cast<size_t>(tables_[sequence][position / layout_.tokens_per_block]) *
                               layout_.block_bytes();
  }
  float element(uint32_t sequence, uint32_t position, size_t at, size_t scale_at) const {
    const std::byte* block = this->block(sequence, position);
    if (layout_.coded()) {
      const auto scale = static_cast<int>(block[scale_at]);
      if (scale == 255) return kNan;
      return std::ldexp(e4m3_value(static_cast<uint8_t>(block[at])), scale - 127);
    }
    float wide;
    bf16 narrow;
    if (layout_.dtype == DType::f32) {
      std::memcpy(&wide, block + at * sizeof wide, sizeof wide);
      return wide;
    }
    std::memcpy(&narrow, block + at * sizeof narrow, sizeof narrow);
    return to_float(narrow);
  }

  PagedKvLayout layout_;
  uint32_t blocks_;
  std::vector<std::byte> bytes_;
  std::vector<std::vector<int32_t>> tables_;
};

struct GqaShape {
  uint32_t heads, kv_heads, head_dim, tokens_per_block;
};

// softmax(scores) . values in float64, and the sum of the magnitudes that went in. A sink is one more score,
// without a value.
struct Reference {
  double value, magnitude;
};
template <class Value>
Reference softmax_sum(const std::vector<double>& scores, const Value& value,
                      double sink = -std::numeric_limits<double>::infinity()) {
  const double most = std::max(sink, *std::max_element(scores.begin(), scores.end()));
  double denominator = std::exp(sink - most), sum = 0, magnitude = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const double weight = std::exp(scores[i] - most);
    denominator += weight;
    sum += weight * value(i);
    magnitude += weight * std::fabs(value(i));
  }
  return {sum / denominator, magnitude / denominator};
}

// A score is off by at most dims * 2^-24 * sum |q k|, which scales the weight by e^error; the vectorised e^x,
// the correction of each tile and the two sums add some roundings a key. With bf16 products each weight is
// rounded to 2^-9 of itself, which counts twice: in the sum and in the denominator.
inline double softmax_bound(double score_magnitude, uint32_t dims, uint32_t keys, const Reference& reference,
                            DType dtype) {
  const double score_error = (dims + 4) * 0x1p-24 * score_magnitude;
  const double weight_error = dtype == DType::f32 ? 0.0 : 2.01 * 0x1p-9;
  return (2 * std::expm1(score_error) + weight_error + (2.0 * keys + 16) * 0x1p-24) * reference.magnitude +
         rounding(dtype, reference.value);
}

// What a kernel makes of a query.
inline double rounded_query(DType cache_dtype, float query) {
  return static_cast<double>(cache_dtype == DType::f32 ? query : to_float(to_bf16(query)));
}

// What kernels with a cache of this dtype put out.
inline DType output_dtype(DType cache_dtype) {
  return cache_dtype == DType::f32 ? DType::f32 : DType::bf16;
}

// What a cache of this dtype makes of a vector.
inline std::vector<float> cached(DType dtype, std::vector<float> vector) {
  if (dtype == DType::f8_e4m3) return rounded_to_codes(std::move(vector));
  for (float& x : vector) x = dtype == DType::f32 ? x : to_float(to_bf16(x));
  return vector;
}

struct GqaCase {
  GqaCase(const KernelTable& kernels, GqaShape gqa_shape, DType cache_dtype, uint32_t sequences,
          uint32_t length)
      : table(kernels),
        shape(gqa_shape),
        tokens(length),
        cache({cache_dtype, shape.tokens_per_block, shape.kv_heads, shape.head_dim}, sequences, length),
        query(Tensor::random(DType::f32, size_t{sequences} * length * shape.heads * shape.head_dim, 21)) {
    const uint32_t width = shape.kv_heads * shape.head_dim;
    const Tensor keys = Tensor::random(DType::f32, size_t{sequences} * length * width, 22);
    const Tensor values = Tensor::random(DType::f32, size_t{sequences} * length * width, 23);
    for (uint32_t s = 0; s < sequences; ++s) {
      for (uint32_t t = 0; t < length; ++t) rows.push_back(cache.row(s, t));
    }
    KvWriteArgs write;
    write.rows = rows;
    write.cache = cache.view();
    write.first = reinterpret_cast<const float*>(keys.data());
    write.second = reinterpret_cast<const float*>(values.data());
    write.first_stride = write.second_stride = write.first_width = write.second_width = width;
    write.num_kv_heads = shape.kv_heads;
    run(table, table.kv_write, write, 2);
    for (uint32_t s = 0; s < sequences; ++s) {
      for (uint32_t t = 0; t < length; ++t) {
        for (uint32_t head = 0; head < shape.kv_heads; ++head) {
          const size_t at = (size_t{s} * length + t) * width + size_t{head} * shape.head_dim;
          std::vector<float> key, value;
          for (uint32_t d = 0; d < shape.head_dim; ++d) {
            key.push_back(keys.get(at + d));
            value.push_back(values.get(at + d));
          }
          key = cached(cache_dtype, key);
          value = cached(cache_dtype, value);
          for (uint32_t d = 0; d < shape.head_dim; ++d) {
            EXPECT_EQ(cache.key(s, head, t, d), key[d]);
            EXPECT_EQ(cache.value(s, head, t, d), value[d]);
          }
        }
      }
    }
  }

  // Rows [begin, end) of all sequences' rows.
  void attend(Tensor& out, size_t begin, size_t end, int threads) {
    const size_t width = size_t{shape.heads} * shape.head_dim;
    GqaArgs args;
    args.rows = std::span(rows).subspan(begin, end - begin);
    args.cache = cache.view();
    args.query = query.f32() + begin * width;
    args.query_stride = width;
    args.out = out.out(width);
    args.out.data = static_cast<std::byte*>(out.data()) + begin * width * dtype_bytes(out.dtype(), 1);
    args.num_heads = shape.heads;
    args.num_kv_heads = shape.kv_heads;
    args.head_dim = shape.head_dim;
    args.scale = 0.3f;
    args.window = window;
    args.sinks = sinks.empty() ? nullptr : sinks.data();
    run(table, table.gqa, args, threads);
  }

  // Attends all rows; every head of `checked` ones is what float64 makes of the cache.
  void expect_float64(std::initializer_list<uint32_t> checked, int threads) {
    const DType dtype = cache.layout().dtype, out_dtype = output_dtype(dtype);
    Tensor out(out_dtype, query.size());
    attend(out, 0, rows.size(), threads);
    const uint32_t sharing = shape.heads / shape.kv_heads;
    for (const uint32_t row : checked) {
      const uint32_t sequence = row / tokens, position = row % tokens;
      const uint32_t first = window == 0 || position < window ? 0 : position - window + 1;
      for (uint32_t h = 0; h < shape.heads; ++h) {
        std::vector<double> scores;
        double magnitude = 0;
        const size_t at = (size_t{row} * shape.heads + h) * shape.head_dim;
        for (uint32_t t = first; t <= position; ++t) {
          double score = 0, sum = 0;
          for (uint32_t d = 0; d < shape.head_dim; ++d) {
            const double product = rounded_query(dtype, query.get(at + d)) *
                                   static_cast<double>(cache.key(sequence, h / sharing, t, d));
            score += product;
            sum += std::fabs(product);
          }
          scores.push_back(score * static_cast<double>(0.3f));
          magnitude = std::max(magnitude, sum * static_cast<double>(0.3f));
        }
        const double sink =
            sinks.empty() ? -std::numeric_limits<double>::infinity() : static_cast<double>(sinks[h]);
        if (!sinks.empty()) magnitude = std::max(magnitude, std::fabs(sink));
        for (uint32_t d = 0; d < shape.head_dim; ++d) {
          const auto value = [&](size_t t) {
            return static_cast<double>(
                cache.value(sequence, h / sharing, first + static_cast<uint32_t>(t), d));
          };
          const Reference expected = softmax_sum(scores, value, sink);
          ASSERT_NEAR(out.get(at + d), expected.value,
                      softmax_bound(magnitude, shape.head_dim, position + 1 - first, expected, out_dtype))
              << "row " << row << " head " << h << " dim " << d;
        }
      }
    }
  }

  const KernelTable& table;
  GqaShape shape;
  uint32_t tokens;
  TestCache cache;
  Tensor query;
  std::vector<AttentionRow> rows;
  uint32_t window = 0;
  std::vector<float> sinks;  // [heads] or empty
};

}  // namespace tandem::kernel_testing
