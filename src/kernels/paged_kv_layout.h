// PagedKvLayout: where a token's values lie inside a block of the paged cache. The only place with such
// arithmetic. GQA: keys [num_kv_heads][tokens][head_dim], then values [num_kv_heads][tokens][head_dim], so
// that one head's keys are one stream. MLA: [tokens][latent_dim + rope_dim].
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace tandem {

struct PagedKvLayout {
  DType dtype = DType::bf16;
  uint32_t tokens_per_block = 0;
  uint32_t num_kv_heads = 0;  // 0: MLA
  uint32_t head_dim = 0;      // MLA: latent_dim + rope_dim

  size_t element_bytes() const { return dtype_bytes(dtype, 1); }
  // Elements of one side (keys, or values) of a block.
  size_t side_elements() const { return size_t{num_kv_heads} * tokens_per_block * head_dim; }
  size_t block_elements() const {
    return num_kv_heads == 0 ? size_t{tokens_per_block} * head_dim : 2 * side_elements();
  }
  size_t block_bytes() const { return block_elements() * element_bytes(); }

  // Element offsets inside a block; `token` is the position modulo tokens_per_block.
  size_t key(uint32_t kv_head, uint32_t token) const {
    return (size_t{kv_head} * tokens_per_block + token) * head_dim;
  }
  size_t value(uint32_t kv_head, uint32_t token) const { return side_elements() + key(kv_head, token); }
  size_t latent(uint32_t token) const { return size_t{token} * head_dim; }
};

}  // namespace tandem
