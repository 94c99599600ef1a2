// Arguments of the kernels. Every kernel is two functions: how many independent tasks the arguments make, and
// one task. Kernels know no threads: whoever owns them hands out tasks. All pointers are the caller's and
// stay valid during a run.
//
// Batch invariance: every output row has the same bits whatever other rows are in the call and however tasks
// are spread: the order of a sum depends on the shape alone.
//
// Activations are float32 or bfloat16, rows of `row_stride` elements. The compute dtype of a model is one of
// these two; PackFormat::f32 takes f32 activations, PackFormat::int8 int8 ones with their scales, and every
// other format bf16 ones. Quantised rows of other formats (see activation_format.h) are read by
// `dequantize_rows` only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/bf16.h"
#include "base/dtype.h"
#include "kernels/activation_format.h"
#include "kernels/packed_weight.h"

namespace tandem {

// Writable rows.
struct ActivationOut {
  DType dtype = DType::bf16;  // f32 or bf16
  void* data = nullptr;       // [rows, row_stride]
  size_t row_stride = 0;      // elements
};

// out[r, b, o] = sum_i weights[b][o, i] * in[r, b, i] for each b of a batch of equal-shaped weights. A plain
// projection has one weight; the absorbed projections of MLA have one a head.
struct MatmulArgs {
  std::span<const PackedWeight> weights;  // [batch], equal format and shape, arrangement plain
  ActivationView in;                      // [rows, batch * in_batch_stride ...]
  size_t in_batch_stride = 0;             // elements between in[r, b] and in[r, b + 1]
  ActivationOut out;
  size_t out_batch_stride = 0;
  uint32_t rows = 0;
};

enum class MlpKind : uint8_t {
  swiglu,  // silu(gate) * up
  // silu(min(gate, limit)) * clamp(up, -limit, limit): the gate is bounded on one side only
  clamped_swiglu,
  // gate * sigmoid(alpha * gate) * (up + 1), both bounded first as above: gpt-oss
  scaled_swiglu,
};

// Rows that go through one MLP: an expert, the shared expert or a dense layer (then a single group of all
// rows).
struct ExpertGroup {
  const PackedWeight* gate_up = nullptr;  // [2 * intermediate, hidden], arrangement gate_up
  const PackedWeight* down = nullptr;     // [hidden, intermediate]
  const uint32_t* rows = nullptr;         // [count] row of the input
  const uint32_t* slots =
      nullptr;  // [count] row of the intermediate and of the output; unique over all groups
  uint32_t count = 0;
  // Added to the products: [2 * intermediate], of gate, then of up; [hidden]. Or null.
  const float* gate_up_bias = nullptr;
  const float* down_bias = nullptr;
};

// intermediate[slot, :] = silu(gate x_row) * (up x_row), rounded to the dtype of `intermediate`; the factors
// are clamped in float32 where `kind` says so. NaN stays NaN.
struct GroupedGateUpArgs {
  std::span<const ExpertGroup> groups;
  MlpKind kind = MlpKind::swiglu;
  float limit = 0.0f;          // of clamped_swiglu and scaled_swiglu, above 0
  float alpha = 1.0f;          // of scaled_swiglu
  ActivationView in;           // [rows, hidden]
  ActivationOut intermediate;  // [slots, intermediate]
};

// Plain: out[slot, :] = down intermediate[slot, :] + bias, float32, unweighted.
//
// For deterministic sums (contribution_cols > 0) the columns are cut into contributions of that many, the
// last one shorter, and exact_out[slot, :] = sum over contributions c of grid(weights[slot] * down[:, c]
// intermediate[slot, c]): each float32 product is weighted, rounded to a multiple of 2^-30 and summed in
// float64, exactly; the bias is one more contribution. So a weight that is cut between contributions gives
// parts whose sum has the bits of the whole, if one of them has the bias.
struct GroupedDownArgs {
  std::span<const ExpertGroup> groups;
  ActivationView intermediate;     // [slots, intermediate]
  uint32_t scale_block_cols = 0;   // int8: columns of a row that share a scale (QuantizeArgs::block_cols)
  float* out = nullptr;            // [slots, hidden]; plain
  size_t out_stride = 0;           // elements of out or exact_out
  uint32_t contribution_cols = 0;  // even, int8: a multiple of scale_block_cols; 0: plain
  const float* weights = nullptr;  // [slots]
  double* exact_out = nullptr;     // [slots, hidden]
};

// How contributions are added up (docs/architecture.md, numerics contract).
enum class SumMode : uint8_t {
  plain,          // float32, in the order of the top-k slots, the shared expert last. A bf16 sum rounds the
                  // experts' part, the shared part and their sum, so that it does not matter where they meet
  deterministic,  // each contribution rounded to a multiple of 2^-30, then summed in float64: exact in any
                  // order
};

// out[r, :] = sum_k weights[r, k] * slots[r * top_k + k, :] (+ shared[r, :]). Slots whose expert is not held
// here have weight 0 in `weights` and are skipped, as are shared rows that another rank adds. Deterministic
// sums are written as float64; they take exact_slots, which grouped_down has weighted already, and round the
// shared row to the grid.
struct CombineArgs {
  SumMode mode = SumMode::plain;
  uint32_t rows = 0, hidden = 0, top_k = 0;
  const float* slots = nullptr;         // [rows * top_k, hidden]; may be null when top_k is 0
  const double* exact_slots = nullptr;  // the same for deterministic sums
  const float* weights = nullptr;       // [rows, top_k]
  const float* shared = nullptr;        // [rows, hidden] or null
  // [rows]: 0 where `shared` does not count and was not written; null: all count
  const uint8_t* shared_rows = nullptr;
  DType out_dtype = DType::bf16;  // bf16, f32, or f64 (the only one for deterministic sums)
  void* out = nullptr;            // [rows, hidden], contiguous
};

// out = weight * x * rsqrt(mean(x^2) + eps), computed in float32. Rows are addressed as [outer, inner]: a
// per-head norm has inner = heads.
struct RmsNormArgs {
  const float* in = nullptr;  // [outer, inner, cols]
  size_t in_outer_stride = 0, in_inner_stride = 0;
  ActivationOut out;  // row_stride: outer stride
  size_t out_inner_stride = 0;
  const float* weight = nullptr;  // [cols]; null: 1
  uint32_t outer = 0, inner = 1, cols = 0;
  float epsilon = 1e-6f;
};

enum class RopeLayout : uint8_t {
  interleaved,  // pairs (2i, 2i + 1): DeepSeek
  half_split,   // pairs (i, i + d/2): Mixtral, Qwen, Granite ("neox")
};

// Rotates the first `rope_dim` values of each head of x, in place.
struct RopeArgs {
  float* x = nullptr;  // [rows, heads, ...]
  size_t row_stride = 0, head_stride = 0;
  const float* cos_sin = nullptr;  // [rows, rope_dim]: rope_dim/2 cosines, then rope_dim/2 sines
  uint32_t rows = 0, heads = 0, rope_dim = 0;
  RopeLayout layout = RopeLayout::half_split;
  bool inverse = false;  // back by the same angles
};

// One layer's paged cache. A block holds `tokens_per_block` tokens; where a token's values lie inside a block
// is PagedKvLayout's business (kernels/paged_kv_layout.h).
struct KvCacheView {
  std::byte* base = nullptr;  // block b starts at base + b * block_bytes
  size_t block_bytes = 0;
  uint32_t tokens_per_block = 0;
  DType dtype = DType::bf16;  // f32, bf16 or f8_e4m3
};
// Of a head whose keys and values may be e4m3 codes: what is decoded must fit the scratch.
inline constexpr uint32_t kMostCodedDim = 1024;
// The same of a latent and its rotated part.
inline constexpr uint32_t kMostCodedLatent = 640;

// One query row: its sequence's blocks and its own position. It attends to the keys 0..position, itself
// included. Rows of one sequence stand next to each other, in order of position.
struct AttentionRow {
  const int32_t* block_table = nullptr;  // [position / tokens_per_block + 1]
  uint32_t position = 0;
};

struct AttentionPlan;  // kernels/attention_plan.h

// Grouped-query attention. Of a bf16 cache the products are bf16: queries are rounded to bf16, and so are the
// weights of the softmax (2^x of what a key's score is below the largest of its tile), whose rounded values
// make the denominator. Sums are float32. The keys and values of the rows themselves are in the cache
// already. Of a cache of codes the results have the bits that a bf16 cache of the decoded keys and values
// would give, as long as no intermediate value leaves the normal numbers of float32.
//
// With a window a row attends to its last `window` keys, itself included; keys of its sequence before them
// may be read, weighted with 0, and must be numbers. A sink takes part in the softmax's denominator and
// maximum as the score of a key without a value would.
struct GqaArgs {
  std::span<const AttentionRow> rows;
  KvCacheView cache;
  const float* query = nullptr;  // [rows, num_heads, head_dim]
  size_t query_stride = 0;       // elements between rows
  ActivationOut out;             // [rows, num_heads * head_dim]
  uint32_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  float scale = 1.0f;
  uint32_t window = 0;                  // 0: all keys
  const float* sinks = nullptr;         // [num_heads], not scaled; or null
  const AttentionPlan* plan = nullptr;  // KernelRunner makes it
};

// Multi-head latent attention in its absorbed form:
// score = (query_latent . c + query_rope . k_rope) * scale; out = sum p * c.
struct MlaArgs {
  std::span<const AttentionRow> rows;
  KvCacheView cache;                    // per token: latent_dim + rope_dim values
  const float* query_latent = nullptr;  // [rows, num_heads, latent_dim]
  size_t query_latent_stride = 0;       // elements between rows
  const float* query_rope = nullptr;    // [rows, num_heads, rope_dim], heads `query_rope_head_stride` apart
  size_t query_rope_stride = 0, query_rope_head_stride = 0;
  ActivationOut out;  // [rows, num_heads * latent_dim]
  uint32_t num_heads = 0, latent_dim = 0, rope_dim = 0;
  float scale = 1.0f;
  const AttentionPlan* plan = nullptr;  // KernelRunner makes it
};

// Latents of a sequence out of its blocks, side by side, for the products that expand them: positions
// [0, keys), in the cache's dtype, codes as the bf16 numbers that they stand for. The rotated part of each goes
// behind the expanded key of every head.
struct MlaGatherArgs {
  KvCacheView cache;
  const int32_t* block_table = nullptr;
  uint32_t keys = 0, latent_dim = 0, rope_dim = 0;
  ActivationOut latents;  // [keys, latent_dim]
  ActivationOut rope;     // [keys, num_heads, rope_dim], heads `rope_head_stride` apart, of the same dtype
  size_t rope_head_stride = 0;
  uint32_t num_heads = 0;
};

// Multi-head latent attention over expanded keys and values, contiguous rows that all rows' sequence has:
// score = query . key * scale; out = sum p * value. A row's bits depend on its own keys alone, as in gqa, but
// are not those of `mla` over the latents that the keys were made of.
struct ExpandedMlaArgs {
  std::span<const AttentionRow> rows;  // of one sequence; its blocks are not read
  DType dtype = DType::bf16;           // of keys and values: bf16 or f32
  const void* keys = nullptr;          // [positions, num_heads, value_dim + key_dim]: the value, then the key
  size_t key_stride = 0;               // elements between positions
  const float* query = nullptr;        // [rows, num_heads, key_dim]
  size_t query_stride = 0;             // elements between rows
  ActivationOut out;                   // [rows, num_heads * value_dim]
  uint32_t num_heads = 0, key_dim = 0, value_dim = 0;
  float scale = 1.0f;
  const AttentionPlan* plan = nullptr;  // KernelRunner makes it
};

// Writes the rows' keys and values (GQA: two vectors of num_kv_heads * head_dim; MLA: one of latent_dim +
// rope_dim, given in two parts) to the cache, rounded to its dtype. To f8_e4m3 as codes with a power of two
// as the scale of each head's key and value of a token, or of each latent (isa/kv_write.h).
struct KvWriteArgs {
  std::span<const AttentionRow> rows;
  KvCacheView cache;
  const float* first = nullptr;  // [rows, first_width]: keys, or the latent
  size_t first_stride = 0;
  uint32_t first_width = 0;
  const float* second = nullptr;  // [rows, second_width]: values, or the rotated key part
  size_t second_stride = 0;
  uint32_t second_width = 0;
  uint32_t num_kv_heads = 0;  // 0: MLA
};

// x[r, :] += multiplier * y[r, :]; y is the reply of the experts or an attention output. With two addends (a
// reply and the shared experts' part) they are added in float64 first, which is exact in deterministic mode,
// and their sum is rounded to `dtype`, as combine rounds it where it has both.
struct ResidualAddArgs {
  float* x = nullptr;  // [rows, cols]
  uint32_t rows = 0, cols = 0;
  DType dtype = DType::f32;      // of both addends: bf16, f32 or f64
  const void* first = nullptr;   // [rows, cols]
  const void* second = nullptr;  // [rows, cols] or null
  float multiplier = 1.0f;
};

// out = in rounded to out.dtype.
struct ConvertArgs {
  const float* in = nullptr;  // [rows, cols]
  size_t in_stride = 0;
  ActivationOut out;
  uint32_t rows = 0, cols = 0;
};

// values[r, c] * scale of its block ~ in[r, c]; rows without gaps.
//   fp8, mxfp8  the scale is the smallest power of two s for which the block's largest magnitude is at most
//               448 s, but at least 2^-22 (the largest counts as 1e-4 at least): the quantiser of DeepSeek's
//               fp8 files with ue8m0 scales. Values are rounded to nearest even
//   int8        scale = max(the row's largest magnitude, 1e-4) / 127; value = in * (127 / largest) rounded to
//               nearest even; -128 does not occur. With block_cols so for each block of that many columns
// A zero row has values 0 (its sign is kept in e4m3) and the smallest scale. Infinity or NaN anywhere in a
// block (int8: in a row) makes its scale NaN and its values e4m3 NaN (int8: 0): it comes back as NaN, whole,
// and no other block changes.
struct QuantizeArgs {
  ActivationView in;  // plain, f32 or bf16
  ActivationFormat format = ActivationFormat::fp8;
  void* values = nullptr;  // [rows, cols], bytes
  void* scales = nullptr;  // [rows, scale_cols(format, cols)] of scale_dtype(format)
  uint32_t rows = 0, cols = 0;
  // int8: columns that share a scale, a multiple of 4, for a product with int8 weights; 0: the whole row.
  // `scales` is [rows, blocks] then.
  uint32_t block_cols = 0;
  // The `rows` rows that are meant, of the input and of the result alike; null: the first ones.
  const uint32_t* row_index = nullptr;
};

// out[r, c] = values[r, c] * scale, in float32, rounded to the dtype of `out`. Exact in bf16 too for e4m3 and
// scales that are powers of two, unless it leaves the range: magnitudes from 2^127 * 1.9375 on were rounded
// up to 2^128 and come back as infinity, and bf16 ends at 2^-133.
struct DequantizeArgs {
  ActivationView in;  // fp8, mxfp8 or int8
  ActivationOut out;  // f32 or bf16
  uint32_t rows = 0, cols = 0;
};

}  // namespace tandem
