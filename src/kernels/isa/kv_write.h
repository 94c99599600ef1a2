// kv_write: keys and values to the paged cache, rounded to its dtype or to e4m3 codes.
//
// Codes: each vector (one head's key or value of one token) has the smallest power of two s, at least 2^-64,
// for which its largest magnitude is at most 448 s, so that nothing saturates and a code times s is exact in
// bfloat16. A vector with infinity or NaN gets the scale NaN. Scale and codes depend on the vector alone and
// have the same bits in every table (quantize.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/isa/elementwise.h"
#include "kernels/isa/isa_namespace.h"
#include "kernels/isa/quantize.h"
#include "kernels/kernel_args.h"
#include "kernels/paged_kv_layout.h"

namespace tandem::TANDEM_ISA_NAMESPACE {

// Tokens of one task: those of a panel share their cache lines.
inline constexpr size_t kTokensPerWrite = 16;

inline size_t kv_write_tasks(const KvWriteArgs& args) {
  if (args.num_kv_heads == 0) return row_tasks(args.rows.size(), args.first_width + args.second_width);
  return (args.rows.size() + kTokensPerWrite - 1) / kTokensPerWrite;
}

TANDEM_INLINE std::byte* block_base(const KvCacheView& cache, const AttentionRow& at) {
  return cache.base +
         static_cast<size_t>(at.block_table[at.position / cache.tokens_per_block]) * cache.block_bytes;
}

// One head's key and value of one token. Pair: what a column of 4 bytes holds.
template <class Element, uint32_t Pair>
void write_key_value(const float* key, const float* value, const PagedKvLayout& layout, uint32_t head,
                     uint32_t token, std::byte* base) {
  const DType dtype = Pair == 1 ? DType::f32 : DType::bf16;
  Element* keys = reinterpret_cast<Element*>(base) + layout.key(head, token, 0);
  Element* values = reinterpret_cast<Element*>(base) + layout.value(head, token, 0);
  const uint32_t dim = layout.head_dim;
  for (uint32_t d = 0; d < dim; d += 16) {
    const uint32_t lanes = lanes_at(d, dim);
    alignas(64) Element narrow[16];
    write_lanes(dtype, narrow, 0, load_lanes(key + d, lanes), 16);
    for (uint32_t i = 0; i < lanes; i += Pair, keys += kPanelTokens * Pair)
      std::memcpy(keys, narrow + i, Pair * sizeof(Element));
    write_lanes(dtype, narrow, 0, load_lanes(value + d, lanes), 16);
    for (uint32_t i = 0; i < lanes; ++i) values[(size_t{d} + i) * Pair] = narrow[i];
  }
}

// 2^-64. Far below any value that matters, and far enough from the smallest float32 that a weight of the
// softmax times a scale is a normal number.
inline constexpr uint32_t kSmallestKvScale = 127 - 64;

// Codes of `dim` values, zeros up to a multiple of 16; returns their scale.
TANDEM_INLINE uint8_t write_codes(const float* in, uint32_t dim, uint8_t* codes,
                                  uint32_t least = kSmallestKvScale) {
  const uint32_t exponent = scale_exponent(largest_magnitude(DType::f32, in, 0, dim), least);
  // Codes are decoded without a look at them: any would do beside a scale that is NaN.
  const Vec inverse = exponent == 255 ? zero() : set1(float_of((254 - exponent) << 23));
  for (uint32_t d = 0; d < dim; d += 16) {
    const Vec x = exponent == 255 ? zero() : load_lanes(in + d, lanes_at(d, dim));
    store_e4m3(codes + d, mul(x, inverse));
  }
  return static_cast<uint8_t>(exponent);
}

// The same as write_key_value.
inline void write_coded_key_value(const float* key, const float* value, const PagedKvLayout& layout,
                                  uint32_t head, uint32_t token, std::byte* base) {
  alignas(64) uint8_t codes[kMostCodedDim];
  uint8_t* block = reinterpret_cast<uint8_t*>(base);
  const uint32_t dim = layout.head_dim;
  uint8_t* scales = block + layout.scales(head, token / kPanelTokens) + token % kPanelTokens;
  scales[0] = write_codes(key, dim, codes);
  uint8_t* column = block + layout.key(head, token, 0) - layout.place(0);
  for (uint32_t d = 0; d < dim; d += 4, column += size_t{kPanelTokens} * 4) {
    for (uint32_t i = 0; i < 4; ++i) column[layout.place(i)] = codes[d + i];
  }
  scales[kPanelTokens] = write_codes(value, dim, codes);
  uint8_t* to = block + layout.value(head, token, 0);
  for (uint32_t d = 0; d < dim; ++d) to[size_t{d} * 4] = codes[d];
}

// A latent and the rotated part of its key, which is divided by the latent's scale.
inline void write_coded_latent(const KvWriteArgs& args, size_t row, const PagedKvLayout& layout,
                               uint32_t token, std::byte* base) {
  alignas(64) uint8_t codes[kMostCodedLatent];
  const float* latent = args.first + row * args.first_stride;
  const float* rotated = args.second + row * args.second_stride;
  // What is not a number in either part is so in both. Else the rotated part stays below 2^66 scales.
  const uint32_t most = scale_exponent(largest_magnitude(DType::f32, rotated, 0, args.second_width), 1);
  const uint32_t least = most < kSmallestKvScale + 57 ? kSmallestKvScale : most - 57;
  uint8_t scale = write_codes(latent, args.first_width, codes, least);
  if (most == 255) scale = 255;
  uint8_t* to = reinterpret_cast<uint8_t*>(base) + layout.latent(token);
  for (uint32_t d = 0; d < args.first_width; ++d) to[PagedKvLayout::latent_code(d)] = codes[d];
  const Vec inverse = set1(scale == 255 ? 1.0f : float_of((254u - scale) << 23));
  for (uint32_t d = 0; d < args.second_width; d += 16) {
    const uint32_t lanes = lanes_at(d, args.second_width);
    write_lanes(DType::bf16, to + layout.latent_codes(), d, mul(load_lanes(rotated + d, lanes), inverse),
                lanes);
  }
  base[layout.latent_scale(token)] = std::byte{scale};
}

inline void kv_write_run(const KvWriteArgs& args, size_t task, std::byte*) {
  const DType dtype = args.cache.dtype;
  if (args.num_kv_heads == 0) {
    const uint32_t width = args.first_width + args.second_width;
    const PagedKvLayout layout{dtype, args.cache.tokens_per_block, 0, width, args.second_width};
    for_task_rows(args.rows.size(), width, task, [&](size_t row) {
      const AttentionRow& at = args.rows[row];
      const uint32_t token = at.position % args.cache.tokens_per_block;
      std::byte* base = block_base(args.cache, at);
      if (dtype == DType::f8_e4m3) return write_coded_latent(args, row, layout, token, base);
      std::byte* latent = base + layout.latent(token);
      convert_row(args.first + row * args.first_stride, dtype, latent, 0, args.first_width);
      convert_row(args.second + row * args.second_stride, dtype, latent, args.first_width, args.second_width);
    });
    return;
  }
  const uint32_t head_dim = args.first_width / args.num_kv_heads;
  const PagedKvLayout layout{dtype, args.cache.tokens_per_block, args.num_kv_heads, head_dim};
  for (size_t row = task * kTokensPerWrite; row < args.rows.size() && row < (task + 1) * kTokensPerWrite;
       ++row) {
    const AttentionRow& at = args.rows[row];
    const uint32_t token = at.position % args.cache.tokens_per_block;
    std::byte* base = block_base(args.cache, at);
    const float* key = args.first + row * args.first_stride;
    const float* value = args.second + row * args.second_stride;
    for (uint32_t head = 0; head < args.num_kv_heads; ++head, key += head_dim, value += head_dim) {
      if (dtype == DType::f8_e4m3) {
        write_coded_key_value(key, value, layout, head, token, base);
      } else if (dtype == DType::f32) {
        write_key_value<float, 1>(key, value, layout, head, token, base);
      } else {
        write_key_value<uint16_t, 2>(key, value, layout, head, token, base);
      }
    }
  }
}

}  // namespace tandem::TANDEM_ISA_NAMESPACE
