// Attention over pages for the sizes of a released model: GQA, absorbed MLA, and DeepSeek-V4's window with
// chosen entries.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/buffer.h"
#include "base/memory_budget.h"
#include "bench/random_pack.h"
#include "bench/shape_cases.h"
#include "kernels/paged_kv_layout.h"

namespace tandem::bench {
namespace {

// As the engine has them (kTokensPerBlock of model/model.h, which lies above this library).
constexpr uint32_t kBlockTokens = 16;
// DeepSeek-V4-Flash: the window, and for layers of ratio 4 the blocks and how many entries are taken.
constexpr uint32_t kWindow = 128, kRatio = 4, kEntryBlockTokens = 128, kTopEntries = 512;
// Caches of all layers of a case together at least: several times a last-level cache.
constexpr double kColdBytes = 4e8;
constexpr size_t kMostCopies = 64;

// Sequences of equal length whose blocks lie apart, each of `chunk` rows that end at the context.
struct Pages {
  OwnedBuffer bytes;
  size_t bytes_per_copy = 0;  // of `bytes`, one layer's cache
  size_t block_bytes = 0;
  uint32_t tokens_per_block = 0;
  DType dtype = DType::bf16;
  std::vector<int32_t> tables;
  std::vector<AttentionRow> rows;

  KvCacheView view(size_t copy) const {
    return {bytes.data() + copy * bytes_per_copy, block_bytes, tokens_per_block, dtype};
  }
};

Result<Pages> make_pages(size_t block_bytes, uint32_t tokens_per_block, uint32_t sequences, uint32_t context,
                         uint32_t chunk, size_t copies) {
  Pages pages;
  pages.tokens_per_block = tokens_per_block;
  pages.block_bytes = block_bytes;
  const uint32_t blocks = (context + tokens_per_block - 1) / tokens_per_block;
  pages.bytes_per_copy = size_t{sequences} * blocks * pages.block_bytes;
  const MemoryBudget have = MemoryBudget::detect();
  if (pages.bytes_per_copy > have.available()) {
    return make_error(ErrorCode::resource_exhausted,
                      fmt::format("the cache of {} sequences of {} tokens takes {} and {} are available; a "
                                  "smaller measure.batch or measure.context would do",
                                  sequences, context, bytes_text(pages.bytes_per_copy), have.text()));
  }
  TANDEM_ASSIGN(pages.bytes, OwnedBuffer::allocate(copies * pages.bytes_per_copy));
  fill_random_bf16(pages.bytes.as<uint16_t>(), pages.bytes.size() / sizeof(uint16_t), 1.0f, 11);
  pages.tables.resize(size_t{sequences} * blocks);
  for (uint32_t s = 0; s < sequences; ++s) {
    int32_t* table = pages.tables.data() + size_t{s} * blocks;
    for (uint32_t b = 0; b < blocks; ++b) table[b] = static_cast<int32_t>(b * sequences + s);
    for (uint32_t r = 0; r < chunk; ++r) pages.rows.push_back({table, context - chunk + r});
  }
  return pages;
}

struct AttentionCase {
  uint32_t sequences = 1, context = 0, chunk = 1;
  DType dtype = DType::bf16;
  size_t rows() const { return size_t{sequences} * chunk; }
};

// The same for a layout. Codes are random bytes; their scales bring them to the size of normed keys.
Result<Pages> make_pages(const PagedKvLayout& layout, const AttentionCase& options, size_t copies) {
  TANDEM_ASSIGN(Pages pages, make_pages(layout.block_bytes(), layout.tokens_per_block, options.sequences,
                                        options.context, options.chunk, copies));
  pages.dtype = layout.dtype;
  if (layout.coded()) set_kv_scales({pages.bytes.data(), pages.bytes.size()}, layout);
  return pages;
}

// Of one layer.
double token_bytes(const PagedKvLayout& layout) {
  return static_cast<double>(layout.block_bytes()) / layout.tokens_per_block;
}

// Keys that the rows of one sequence see, summed.
double seen_keys(uint32_t context, uint32_t chunk) {
  return static_cast<double>(chunk) * context - static_cast<double>(chunk) * (chunk - 1) / 2;
}

struct AttentionState {
  Pages pages, entries;
  OwnedBuffer query, out;
  std::vector<int32_t> selected;
  std::vector<float> sinks;
  size_t copies = 1, next = 0;
};

size_t cold_copies(double bytes) {
  return std::clamp<size_t>(static_cast<size_t>(std::ceil(kColdBytes / std::max(bytes, 1.0))), 1,
                            kMostCopies);
}

Status make_rows(AttentionState& state, size_t rows, size_t query_floats, size_t out_elements) {
  TANDEM_ASSIGN(state.query, OwnedBuffer::allocate(rows * query_floats * sizeof(float)));
  for (size_t i = 0; i < rows * query_floats; ++i)
    state.query.as<float>()[i] = static_cast<float>(random_bits(i) & 0xffff) / 65536.0f - 0.5f;
  TANDEM_ASSIGN(state.out, OwnedBuffer::allocate(rows * out_elements * sizeof(uint16_t)));
  return {};
}

Result<KernelCase> make_gqa(const ModelShape& shape, const AttentionCase& options) {
  auto state = std::make_shared<AttentionState>();
  const PagedKvLayout layout{options.dtype, kBlockTokens, shape.kv_heads, shape.head_dim};
  const size_t width = size_t{shape.heads} * shape.head_dim;
  KernelCase result;
  result.bytes = token_bytes(layout) * options.context * options.sequences;
  result.flops =
      4.0 * static_cast<double>(width) * seen_keys(options.context, options.chunk) * options.sequences;
  state->copies = cold_copies(result.bytes);
  TANDEM_ASSIGN(state->pages, make_pages(layout, options, state->copies));
  TANDEM_TRY(make_rows(*state, options.rows(), width, width));
  result.run = [state, shape, width](KernelRunner& runner) {
    GqaArgs args;
    args.rows = state->pages.rows;
    args.cache = state->pages.view(state->next++ % state->copies);
    args.query = state->query.as<float>();
    args.query_stride = width;
    args.out = {DType::bf16, state->out.data(), width};
    args.num_heads = shape.heads;
    args.num_kv_heads = shape.kv_heads;
    args.head_dim = shape.head_dim;
    args.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    runner.run(runner.table().gqa, args);
  };
  return result;
}

Result<KernelCase> make_mla(const ModelShape& shape, const AttentionCase& options) {
  auto state = std::make_shared<AttentionState>();
  const uint32_t width = shape.kv_lora + shape.rope;
  const PagedKvLayout layout{options.dtype, kBlockTokens, 0, width, shape.rope};
  const size_t query_width = size_t{shape.heads} * width, out_width = size_t{shape.heads} * shape.kv_lora;
  KernelCase result;
  result.bytes = token_bytes(layout) * options.context * options.sequences;
  result.flops = 2.0 * shape.heads * (2.0 * shape.kv_lora + shape.rope) *
                 seen_keys(options.context, options.chunk) * options.sequences;
  state->copies = cold_copies(result.bytes);
  TANDEM_ASSIGN(state->pages, make_pages(layout, options, state->copies));
  TANDEM_TRY(make_rows(*state, options.rows(), query_width, out_width));
  result.run = [state, shape, query_width, out_width](KernelRunner& runner) {
    MlaArgs args;
    args.rows = state->pages.rows;
    args.cache = state->pages.view(state->next++ % state->copies);
    args.query_latent = state->query.as<float>();
    args.query_latent_stride = query_width;
    args.query_rope = state->query.as<float>() + out_width;
    args.query_rope_stride = query_width;
    args.query_rope_head_stride = shape.rope;
    args.out = {DType::bf16, state->out.data(), out_width};
    args.num_heads = shape.heads;
    args.latent_dim = shape.kv_lora;
    args.rope_dim = shape.rope;
    args.scale = 1.0f / std::sqrt(static_cast<float>(shape.nope + shape.rope));
    runner.run(runner.table().mla, args);
  };
  return result;
}

// Keys of the window and entries of ratio 4 that the row at a position attends to.
double compressed_keys(uint32_t position) {
  return std::min(position + 1, kWindow) + std::min((position + 1) / kRatio, kTopEntries);
}

Result<KernelCase> make_compressed(const ModelShape& shape, const AttentionCase& options) {
  auto state = std::make_shared<AttentionState>();
  const size_t width = size_t{shape.heads} * shape.head_dim;
  const double key_bytes = static_cast<double>(shape.head_dim) * sizeof(uint16_t);
  const uint32_t first = options.context - options.chunk;
  double keys = 0;
  for (uint32_t r = 0; r < options.chunk; ++r) keys += compressed_keys(first + r);
  KernelCase result;
  // Of a chunk: its window once, and each entry that its rows may choose.
  const double once = options.chunk == 1
                          ? compressed_keys(first)
                          : std::min(options.context, kWindow + options.chunk - 1) + options.context / kRatio;
  result.bytes = once * key_bytes * options.sequences;
  result.flops = 4.0 * static_cast<double>(width) * keys * options.sequences;
  state->copies = cold_copies(result.bytes);
  const size_t entry_block = size_t{kEntryBlockTokens} / kRatio * shape.head_dim * sizeof(uint16_t);
  TANDEM_ASSIGN(state->pages,
                make_pages(size_t{kBlockTokens} * shape.head_dim * sizeof(uint16_t), kBlockTokens,
                           options.sequences, options.context, options.chunk, state->copies));
  TANDEM_ASSIGN(state->entries, make_pages(entry_block, kEntryBlockTokens, options.sequences, options.context,
                                           options.chunk, state->copies));
  TANDEM_TRY(make_rows(*state, options.rows(), width, width));
  state->sinks.assign(shape.heads, 0.5f);
  // Every row chooses for itself, in ascending order: one entry from each of kTopEntries equal stretches.
  state->selected.assign(options.rows() * kTopEntries, 0);
  std::mt19937 generator(5);
  for (size_t row = 0; row < options.rows(); ++row) {
    const uint32_t seen = (state->pages.rows[row].position + 1) / kRatio;
    if (seen <= kTopEntries) continue;  // takes all
    for (uint32_t k = 0; k < kTopEntries; ++k) {
      const auto from = static_cast<uint32_t>(uint64_t{seen} * k / kTopEntries);
      const auto to = static_cast<uint32_t>(uint64_t{seen} * (k + 1) / kTopEntries);
      state->selected[row * kTopEntries + k] = static_cast<int32_t>(from + generator() % (to - from));
    }
  }
  result.run = [state, shape, width](KernelRunner& runner) {
    CompressedAttentionArgs args;
    const size_t copy = state->next++ % state->copies;
    args.window_rows = state->pages.rows;
    args.window_cache = state->pages.view(copy);
    args.window = kWindow;
    args.entry_rows = state->entries.rows;
    args.entries = state->entries.view(copy);
    args.ratio = kRatio;
    args.selected = state->selected.data();
    args.top_k = kTopEntries;
    args.query = state->query.as<float>();
    args.query_stride = width;
    args.sinks = state->sinks.data();
    args.out = {DType::bf16, state->out.data(), width};
    args.num_heads = shape.heads;
    args.head_dim = shape.head_dim;
    args.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    runner.run(runner.table().compressed_attention, args);
  };
  return result;
}

}  // namespace

Result<KernelCase> make_attention_case(const ModelShape& shape, uint32_t sequences, uint32_t context,
                                       uint32_t chunk, DType cache_dtype) {
  const AttentionCase options{sequences, context, chunk, cache_dtype};
  if (cache_dtype == DType::f8_e4m3 && shape.attention == ShapeAttention::compressed) {
    return make_error(ErrorCode::unsupported, "engine.kv_cache_dtype: fp8 with " + std::string(shape.name) +
                                                  ": window and entries are kept in bf16; auto would do");
  }
  switch (shape.attention) {
    case ShapeAttention::gqa:
      return make_gqa(shape, options);
    case ShapeAttention::mla:
      return make_mla(shape, options);
    case ShapeAttention::compressed:
      return make_compressed(shape, options);
  }
  return make_error(ErrorCode::internal, "attention of no kind");
}

std::vector<CaseMaker> attention_cases(const ModelShape& shape, std::span<const uint32_t> batches,
                                       std::span<const uint32_t> contexts, uint32_t chunk,
                                       DType cache_dtype) {
  std::vector<CaseMaker> cases;
  const auto add = [&](std::string name, uint32_t sequences, uint32_t context, uint32_t rows) {
    cases.push_back({std::move(name), [=](const KernelTable&) {
                       return make_attention_case(shape, sequences, context, rows, cache_dtype);
                     }});
  };
  for (const uint32_t context : contexts) {
    for (const uint32_t sequences : batches) {
      add(fmt::format("attention {} decode {} x {}", shape.name, sequences, context), sequences, context, 1);
    }
    if (chunk == 0) continue;
    const uint32_t rows = std::min(chunk, context);
    add(fmt::format("attention {} prefill {} at {}", shape.name, rows, context), 1, context, rows);
  }
  return cases;
}

}  // namespace tandem::bench
