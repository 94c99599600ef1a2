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

  [[gnu::always_inline]] size_t element_bytes() const { return dtype == DType::f32 ? 4 : 2; }
  [[gnu::always_inline]] size_t block_elements() const {
    return num_kv_heads == 0 ? size_t{tokens_per_block} * head_dim : value_side() + head_values(num_kv_heads);
  }
  [[gnu::always_inline]] size_t block_bytes() const { return block_elements() * element_bytes(); }

  // GQA. Element offsets inside a block; `token` is the position modulo tokens_per_block.
  [[gnu::always_inline]] size_t key(uint32_t kv_head, uint32_t token, uint32_t dim) const {
    return key_panel(kv_head, token / kPanelTokens) +
           (size_t{dim / pair()} * kPanelTokens + token % kPanelTokens) * pair() + dim % pair();
  }
  [[gnu::always_inline]] size_t value(uint32_t kv_head, uint32_t token, uint32_t dim) const {
    return value_panel(kv_head, token / kPanelTokens) +
           (size_t{token % kPanelTokens / pair()} * padded_dim() + dim) * pair() + token % pair();
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
  [[gnu::always_inline]] uint32_t pair() const { return dtype == DType::f32 ? 1 : 2; }
  [[gnu::always_inline]] uint32_t key_columns() const { return (head_dim + pair() - 1) / pair(); }
  [[gnu::always_inline]] uint32_t padded_dim() const { return (head_dim + 15) / 16 * 16; }

  // MLA.
  [[gnu::always_inline]] size_t latent(uint32_t token) const { return size_t{token} * head_dim; }

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
