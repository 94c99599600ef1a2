// Cases of the kernel benchmark for the sizes of a released model (bench/model_shapes.h): its projections,
// its experts, its attention. Weights and caches are random and made in place, one case at a time; several
// batches of one case share them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "bench/kernel_cases.h"
#include "bench/model_shapes.h"

namespace tandem::bench {

// Rows of a batch at most: what MoeBlock takes in one piece.
inline constexpr uint32_t kMostRows = 2048;

// One product for each matrix that a layer or the head multiplies a row with, experts left out. Weights that
// the engine keeps plain (router, absorbed projections, the head but in int8 and mxfp8) are bf16 whatever the
// format.
std::vector<CaseMaker> dense_cases(const ModelShape& shape, PackFormat format,
                                   std::span<const uint32_t> batches);

// One of them: `rows` rows times a random weight [n, k]; several copies of it where few rows must find it
// cold.
Result<KernelCase> make_dense_case(const KernelTable& table, PackFormat format, uint32_t n, uint32_t k,
                                   uint32_t rows);

// The routed experts of some layers, gate and up and down, one layer after another as a step reads them.
// Every row picks top_k different experts for itself, in every layer anew. Bytes are those of the experts
// that the rows touch, FLOPs those of the rows.
struct MoeCase {
  PackFormat format = PackFormat::bf16;
  uint32_t layers = 0;      // 0: as many as make a gigabyte, so that they come from memory
  uint64_t most_bytes = 0;  // of weights; 0: half of what the machine has left. Where not even one layer
                            // fits, that many experts are there and rows pick among them
};
struct MoeSizes {
  uint32_t layers = 0, experts = 0;  // that are there
  uint64_t expert_bytes = 0;         // of one, packed
};
// resource_exhausted: not even the experts of one row fit. invalid_argument: more layers than fit.
Result<MoeSizes> moe_sizes(const KernelTable& table, const ModelShape& shape, const MoeCase& options);
std::vector<CaseMaker> moe_cases(const ModelShape& shape, const MoeCase& options,
                                 std::span<const uint32_t> batches);

// Attention over pages: decode for each batch of sequences and context, and a chunk of prompt rows that ends
// at the context (chunk 0: none). One layer; caches of cases that would fit the cache are several.
std::vector<CaseMaker> attention_cases(const ModelShape& shape, std::span<const uint32_t> batches,
                                       std::span<const uint32_t> contexts, uint32_t chunk,
                                       DType cache_dtype = DType::bf16);

// One of them: the last `chunk` rows of each of `sequences`. Of the shape its kind of attention counts alone.
// unsupported: codes (f8_e4m3) for a kind that has none.
Result<KernelCase> make_attention_case(const ModelShape& shape, uint32_t sequences, uint32_t context,
                                       uint32_t chunk, DType cache_dtype = DType::bf16);

}  // namespace tandem::bench
