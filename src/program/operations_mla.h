// Operations of multi-head latent attention, from the query to the values of all heads. Two forms of the same
// sums (DeepSeek-V2, section 2.1.2):
//   absorbed  the query is taken into the latent space, attends to the cached latents, and the result is
//             taken out again: nothing to be made for a key, num_heads * (2 * latent + rope) products for
//             each row and key;
//   expanded  keys and values of every head are made from the latents first: (nope + value) * latent products
//             for each key and head, then nope + rope + value for each row, key and head.
// The second is for many rows of one sequence: 512 rows of V2-Lite take half the products, of a prompt of
// 8,192 a third. Its bits differ from the first form's, so that they depend on how a prompt is cut: a program
// with deterministic sums has the first alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kernels/kernel_args.h"
#include "kernels/packed_weight.h"
#include "program/program.h"

namespace tandem {

struct MlaSizes {
  uint32_t num_heads = 0, latent_dim = 0, nope_dim = 0, rope_dim = 0, value_dim = 0;
  // Of a head's query, and of its expanded value and key.
  uint32_t query_width() const { return nope_dim + rope_dim; }
  uint32_t expanded_width() const { return value_dim + query_width(); }
};

// Where a lane keeps what is expanded: the latents of a sequence beside the values and keys of as many heads
// as there is room for; heads that find none are expanded after those.
struct MlaWorkspace {
  size_t offset = 0, bytes = 0;  // bytes 0: nothing is expanded

  // What a sequence of `most_keys` keys may need.
  static size_t bytes_for(const MlaSizes& sizes, DType compute_dtype, uint32_t most_keys);
  // Of a sequence of at most `most_keys` keys; none where steps of the program have too few rows.
  static MlaWorkspace plan(ProgramBuilder& builder, const MlaSizes& sizes, DType compute_dtype,
                           uint32_t most_keys);
  // Heads that have room at once beside the latents of `keys` keys; 0: not one.
  uint32_t heads(const MlaSizes& sizes, DType compute_dtype, uint32_t keys) const;
};

// Whether `rows` rows of a sequence, of which the last has `keys` keys, are computed in the expanded form.
// `heads`: MlaWorkspace::heads.
bool expands_mla(const MlaSizes& sizes, uint32_t rows, uint32_t keys, uint32_t heads);

struct MlaSpec {
  MlaSizes sizes;
  KvCacheView cache;
  uint32_t group = 0;
  std::span<const PackedWeight> key_absorb;    // [heads]: [latent_dim, nope_dim]
  std::span<const PackedWeight> key_expand;    // [heads]: [nope_dim, latent_dim]; may be empty
  std::span<const PackedWeight> value_absorb;  // [heads]: [value_dim, latent_dim]
  MlaWorkspace workspace;
  Tensor query;          // float32 [rows, heads * (nope_dim + rope_dim)], rotated
  Tensor query_rounded;  // the same in the compute dtype
  Tensor query_latent;   // float32 [rows, heads * latent_dim]
  Tensor attended;       // compute dtype [rows, heads * latent_dim]
  Tensor values;         // compute dtype [rows, heads * value_dim]: the result
  float scale = 1.0f;
};
void append_mla(ProgramBuilder& builder, const std::string& name, const MlaSpec& spec);

}  // namespace tandem
