// PagedKvLayout: where a token's values lie inside a block of the paged cache. The only place with such
// arithmetic.
//
// GQA: one head's keys, then the next head's, then the values in the same order. Tokens form panels of 16 (as
// many as a vector has float32 lanes); a column is 4 bytes: a float32 value, or a pair of bf16 values, which
// is what one lane of a bf16 dot product takes.
//   keys    [kv_head][panel][ceil(head_dim / pair)][16 tokens][pair of dimensions]
//   values  [kv_head][panel][16 / pair][head_dim padded to 16][pair of tokens]
// So a vector of keys is one column of 16 tokens, which meets the same column of any query without a sum over
// lanes, and a vector of values is 16 dimensions of a pair of tokens. With an odd head_dim the last column
// of the keys holds a zero. Tokens and dimensions that do not exist are never written nor used.
//
// MLA: [tokens][latent_dim + rope_dim].
//
// e4m3 codes, GQA: a column is a byte each of four dimensions (of a key) or four tokens (of a value), in the
// order 2, 0, 3, 1: as two pairs of bf16 are decoded (isa/coded_avx512.h). A block ends with its scales, a
// byte e (2^(e - 127); 255: the vector is NaN) for each token, head and side:
//   scales  [kv_head][panel][keys, values][16 tokens]
// MLA: [tokens][latent in codes, rope_dim in bf16], then [tokens] scales. The rotated part of a key stays
// bf16: it has values of very different sizes, of which the large ones say how far away a key is. It is
// divided by the scale of the latent, so that one factor makes a score of the whole key. A line of 64 codes
// has the dimensions 32, 0, 33, 1, ..., 63, 31.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace tandem {

inline constexpr uint32_t kPanelTokens = 16;

struct PagedKvLayout {
  DType dtype = DType::bf16;
  uint32_t tokens_per_block = 0;
  uint32_t num_kv_heads = 0;  // 0: MLA
  uint32_t head_dim = 0;      // MLA: latent_dim + rope_dim
  uint32_t rope_dim = 0;      // MLA with codes: the last of head_dim

  [[gnu::always_inline]] bool coded() const { return dtype == DType::f8_e4m3; }
  [[gnu::always_inline]] size_t element_bytes() const { return 4 / pair(); }
  // Without scales.
  [[gnu::always_inline]] size_t block_elements() const {
    return num_kv_heads == 0 ? size_t{tokens_per_block} * head_dim : value_side() + head_values(num_kv_heads);
  }
  // With codes it is whole cache lines, so that every block's panels are.
  [[gnu::always_inline]] size_t block_bytes() const {
    if (!coded()) return block_elements() * element_bytes();
    const size_t bytes = num_kv_heads == 0 ? latent_scale(tokens_per_block) : scales(num_kv_heads, 0);
    return (bytes + 63) / 64 * 64;
  }

  // GQA. Element offsets inside a block; `token` is the position modulo tokens_per_block.
  [[gnu::always_inline]] size_t key(uint32_t kv_head, uint32_t token, uint32_t dim) const {
    return key_panel(kv_head, token / kPanelTokens) +
           (size_t{dim / pair()} * kPanelTokens + token % kPanelTokens) * pair() + place(dim % pair());
  }
  [[gnu::always_inline]] size_t value(uint32_t kv_head, uint32_t token, uint32_t dim) const {
    return value_panel(kv_head, token / kPanelTokens) +
           (size_t{token % kPanelTokens / pair()} * padded_dim() + dim) * pair() + place(token % pair());
  }
  [[gnu::always_inline]] size_t key_panel(uint32_t kv_head, uint32_t panel) const {
    return (size_t{kv_head} * panels() + panel) * key_panel_elements();
  }
  [[gnu::always_inline]] size_t value_panel(uint32_t kv_head, uint32_t panel) const {
    return value_side() + head_values(kv_head) + size_t{panel} * kPanelTokens * padded_dim();
  }
  // Panels of one block.
  [[gnu::always_inline]] uint32_t panels() const {
    return (tokens_per_block + kPanelTokens - 1) / kPanelTokens;
  }
  // Elements of a column of one token.
  [[gnu::always_inline]] uint32_t pair() const { return dtype == DType::f32 ? 1 : coded() ? 4 : 2; }
  // Of element i of a column.
  [[gnu::always_inline]] uint32_t place(uint32_t i) const { return coded() ? (2 * i + 1) % 5 : i; }
  [[gnu::always_inline]] uint32_t key_columns() const { return (head_dim + pair() - 1) / pair(); }
  [[gnu::always_inline]] uint32_t padded_dim() const { return (head_dim + 15) / 16 * 16; }

  // Codes: bytes from the block's start to the 16 scales of a panel's keys, which those of its values follow.
  [[gnu::always_inline]] size_t scales(uint32_t kv_head, uint32_t panel) const {
    return block_elements() + (size_t{kv_head} * panels() + panel) * 2 * kPanelTokens;
  }

  // MLA. Bytes from the block's start.
  [[gnu::always_inline]] size_t latent(uint32_t token) const {
    return coded() ? token * (size_t{latent_codes()} + size_t{rope_dim} * 2)
                   : size_t{token} * head_dim * element_bytes();
  }
  // With codes: how many a token has, of which `latent_code` is that of a dimension; and its scale.
  [[gnu::always_inline]] uint32_t latent_codes() const { return (head_dim - rope_dim + 63) / 64 * 64; }
  [[gnu::always_inline]] static uint32_t latent_code(uint32_t dim) {
    return dim / 64 * 64 + dim % 32 * 2 + (dim % 64 < 32 ? 1 : 0);
  }
  [[gnu::always_inline]] size_t latent_scale(uint32_t token) const {
    return latent(tokens_per_block) + token;
  }

 private:
  [[gnu::always_inline]] size_t key_panel_elements() const {
    return size_t{key_columns()} * kPanelTokens * pair();
  }
  [[gnu::always_inline]] size_t value_side() const {
    return size_t{num_kv_heads} * panels() * key_panel_elements();
  }
  [[gnu::always_inline]] size_t head_values(uint32_t heads) const {
    return size_t{heads} * panels() * kPanelTokens * padded_dim();
  }
};

}  // namespace tandem
