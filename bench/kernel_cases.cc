#include "bench/kernel_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "base/bf16.h"
#include "base/buffer.h"
#include "kernels/paged_kv_layout.h"

namespace tandem::bench {
namespace {

// Weights of a case that must come from memory: several times the last-level cache of a large server slice.
constexpr size_t kColdBytes = size_t{384} << 20;
// A layer of coded experts takes no more than this, so that the wide shapes run on small machines too.
constexpr double kMostCodedBytes = 7e8;

Result<OwnedBuffer> random_bf16(size_t elements, float scale) {
  TANDEM_ASSIGN(OwnedBuffer buffer, OwnedBuffer::allocate(elements * sizeof(bf16)));
  std::minstd_rand generator(1);
  bf16* values = buffer.as<bf16>();
  for (size_t i = 0; i < elements; ++i) {
    values[i] = to_bf16((static_cast<float>(generator() % 2001) / 1000.0f - 1.0f) * scale);
  }
  return buffer;
}

// Random codes with powers of two between 2^-8 and 2^-5 for scales.
Status pack_random_codes(const KernelTable& table, PackFormat format, PackArrangement arrangement,
                         uint32_t rows, uint32_t cols, std::byte* packed) {
  const bool fp4 = format == PackFormat::mxfp4;
  const uint32_t blocks = (cols + scale_block_cols(format) - 1) / scale_block_cols(format);
  TANDEM_ASSIGN(OwnedBuffer codes, OwnedBuffer::allocate(size_t{rows} * cols));
  TANDEM_ASSIGN(OwnedBuffer scales, OwnedBuffer::allocate(size_t{rows} * blocks * sizeof(float)));
  std::minstd_rand generator(1);
  for (size_t i = 0; i < codes.size(); ++i) {
    const auto code = static_cast<uint8_t>(generator() >> 8);
    codes.data()[i] = static_cast<std::byte>(!fp4 && (code & 0x7f) == 0x7f ? 0 : code);
  }
  for (size_t i = 0; i < size_t{rows} * blocks; ++i) {
    const int power = -8 + static_cast<int>(generator() >> 8 & 3);
    if (fp4) {
      scales.as<uint8_t>()[i] = static_cast<uint8_t>(127 + power);
    } else {
      scales.as<float>()[i] = std::ldexp(1.0f, power);
    }
  }
  const CodedRows source = {codes.data(), fp4 ? (cols + 1) / 2 : cols, scales.data(), blocks};
  const PackFault fault = table.pack_coded(format, arrangement, rows, cols, 0, 0, rows, source, packed);
  if (fault == PackFault::none) return {};
  return make_error(ErrorCode::internal,
                    fmt::format("a random {} weight {}", pack_format_name(format), pack_fault_text(fault)));
}

// `copies` packed weights of one shape side by side. They have the same values: speed does not depend on
// them.
struct Weights {
  OwnedBuffer bytes;
  std::vector<PackedWeight> weights;
};
Result<Weights> make_weights(const KernelTable& table, PackFormat format, PackArrangement arrangement,
                             uint32_t rows, uint32_t cols, size_t copies) {
  Weights result;
  const size_t each = table.packed_bytes(format, arrangement, rows, cols);
  TANDEM_ASSIGN(result.bytes, OwnedBuffer::allocate(each * copies));
  if (is_coded(format)) {
    TANDEM_TRY(pack_random_codes(table, format, arrangement, rows, cols, result.bytes.data()));
  } else {
    TANDEM_ASSIGN(const OwnedBuffer source, random_bf16(size_t{rows} * cols, 0.05f));
    table.pack(format, arrangement, rows, cols, 0, rows, DType::bf16, source.data(), result.bytes.data());
  }
  for (size_t i = 0; i < copies; ++i) {
    std::byte* data = result.bytes.data() + i * each;
    if (i != 0) std::memcpy(data, result.bytes.data(), each);
    result.weights.push_back({format, arrangement, rows, cols, data, each});
  }
  return result;
}

struct MatmulState {
  Weights weights;
  OwnedBuffer in, out;
  size_t next = 0;
};

Result<KernelCase> make_matmul(const KernelTable& table, PackFormat format, uint32_t n, uint32_t k,
                               uint32_t rows) {
  auto state = std::make_shared<MatmulState>();
  const size_t each = table.packed_bytes(format, PackArrangement::plain, n, k);
  const size_t copies = rows >= 64 ? 1 : std::max<size_t>(2, kColdBytes / each);
  TANDEM_ASSIGN(state->weights, make_weights(table, format, PackArrangement::plain, n, k, copies));
  TANDEM_ASSIGN(state->in, random_bf16(size_t{rows} * k, 1.0f));
  TANDEM_ASSIGN(state->out, OwnedBuffer::allocate(size_t{rows} * n * sizeof(float)));
  KernelCase result;
  result.bytes = static_cast<double>(each);
  result.flops = 2.0 * n * k * rows;
  result.run = [state, n, k, rows](KernelRunner& runner) {
    MatmulArgs args;
    args.weights = {&state->weights.weights[state->next++ % state->weights.weights.size()], 1};
    args.in = {DType::bf16, state->in.data(), k};
    args.out = {DType::f32, state->out.data(), n};
    args.rows = rows;
    runner.run(runner.table().matmul, args);
  };
  return result;
}

struct ExpertsState {
  Weights gate_up, down;
  OwnedBuffer in, middle, out;
  // Several routings, so that the experts of a small batch are cold.
  struct Routing {
    std::vector<std::vector<uint32_t>> rows, slots;
    std::vector<ExpertGroup> groups;
  };
  std::vector<Routing> routings;
  size_t next = 0;
};

struct ExpertsShape {
  PackFormat format;
  uint32_t hidden, intermediate, experts, top_k, rows;
  // Of `experts`, those that are there: enough to be cold, where all would not fit. Rows pick among them.
  uint32_t present() const {
    if (!is_coded(format)) return experts;
    const double each = 3.0 * hidden * intermediate * (format == PackFormat::mxfp4 ? 0.53 : 1.03);
    return std::max(top_k, std::min(experts, static_cast<uint32_t>(kMostCodedBytes / each)));
  }
};

// Each row picks top_k different experts. Routings of small batches walk through all experts before they
// repeat.
ExpertsState::Routing make_routing(const ExpertsState& state, const ExpertsShape& shape,
                                   std::mt19937& generator, std::vector<uint32_t>& order) {
  ExpertsState::Routing routing;
  routing.rows.resize(shape.experts);
  routing.slots.resize(shape.experts);
  for (uint32_t row = 0; row < shape.rows; ++row) {
    if (order.size() < shape.top_k) {
      order.resize(shape.experts);
      std::iota(order.begin(), order.end(), 0u);
      std::shuffle(order.begin(), order.end(), generator);
    }
    for (uint32_t k = 0; k < shape.top_k; ++k) {
      const uint32_t expert = order.back();
      order.pop_back();
      routing.rows[expert].push_back(row);
      routing.slots[expert].push_back(row * shape.top_k + k);
    }
  }
  for (uint32_t e = 0; e < shape.experts; ++e) {
    if (routing.rows[e].empty()) continue;
    routing.groups.push_back({&state.gate_up.weights[e], &state.down.weights[e], routing.rows[e].data(),
                              routing.slots[e].data(), static_cast<uint32_t>(routing.rows[e].size())});
  }
  return routing;
}

Result<KernelCase> make_experts(const KernelTable& table, ExpertsShape shape) {
  shape.experts = shape.present();
  auto state = std::make_shared<ExpertsState>();
  TANDEM_ASSIGN(state->gate_up, make_weights(table, shape.format, PackArrangement::gate_up,
                                             2 * shape.intermediate, shape.hidden, shape.experts));
  TANDEM_ASSIGN(state->down, make_weights(table, shape.format, PackArrangement::plain, shape.hidden,
                                          shape.intermediate, shape.experts));
  const size_t slots = size_t{shape.rows} * shape.top_k;
  TANDEM_ASSIGN(state->in, random_bf16(size_t{shape.rows} * shape.hidden, 1.0f));
  TANDEM_ASSIGN(state->middle, OwnedBuffer::allocate(slots * shape.intermediate * sizeof(bf16)));
  TANDEM_ASSIGN(state->out, OwnedBuffer::allocate(slots * shape.hidden * sizeof(float)));
  std::mt19937 generator(1);
  std::vector<uint32_t> order;
  const size_t routings = std::max<size_t>(2, 2 * shape.experts / slots);
  for (size_t i = 0; i < routings; ++i)
    state->routings.push_back(make_routing(*state, shape, generator, order));
  const double expert_weights = 3.0 * shape.hidden * shape.intermediate;
  KernelCase result;
  result.bytes = static_cast<double>(state->routings[0].groups.size() *
                                     (state->gate_up.weights[0].bytes + state->down.weights[0].bytes));
  result.flops = 2.0 * expert_weights * static_cast<double>(slots);
  result.run = [state, shape](KernelRunner& runner) {
    const ExpertsState::Routing& routing = state->routings[state->next++ % state->routings.size()];
    GroupedGateUpArgs up;
    up.groups = routing.groups;
    up.in = {DType::bf16, state->in.data(), shape.hidden};
    up.intermediate = {DType::bf16, state->middle.data(), shape.intermediate};
    runner.run(runner.table().grouped_gate_up, up);
    GroupedDownArgs down;
    down.groups = routing.groups;
    down.intermediate = {DType::bf16, state->middle.data(), shape.intermediate};
    down.out = state->out.as<float>();
    down.out_stride = shape.hidden;
    runner.run(runner.table().grouped_down, down);
  };
  return result;
}

struct AttentionState {
  OwnedBuffer cache, query, out;
  std::vector<std::vector<int32_t>> tables;
  std::vector<AttentionRow> rows;
  PagedKvLayout layout;
};

// One query a sequence, each behind `context` keys; or the last `chunk` rows of one sequence.
Result<std::shared_ptr<AttentionState>> make_attention(PagedKvLayout layout, uint32_t sequences,
                                                       uint32_t context, uint32_t chunk, size_t query_floats,
                                                       size_t out_elements) {
  auto state = std::make_shared<AttentionState>();
  state->layout = layout;
  const uint32_t blocks = (context + layout.tokens_per_block - 1) / layout.tokens_per_block;
  TANDEM_ASSIGN(state->cache, random_bf16(size_t{sequences} * blocks * layout.block_elements(), 1.0f));
  TANDEM_ASSIGN(state->query,
                OwnedBuffer::allocate(size_t{sequences} * chunk * query_floats * sizeof(float)));
  for (size_t i = 0; i < size_t{sequences} * chunk * query_floats; ++i) {
    state->query.as<float>()[i] = static_cast<float>(i % 17) / 17.0f - 0.5f;
  }
  TANDEM_ASSIGN(state->out, OwnedBuffer::allocate(size_t{sequences} * chunk * out_elements * sizeof(bf16)));
  for (uint32_t s = 0; s < sequences; ++s) {
    state->tables.emplace_back(blocks);
    for (uint32_t b = 0; b < blocks; ++b) state->tables[s][b] = static_cast<int32_t>(b * sequences + s);
  }
  for (uint32_t s = 0; s < sequences; ++s) {
    for (uint32_t r = 0; r < chunk; ++r)
      state->rows.push_back({state->tables[s].data(), context - chunk + r});
  }
  return state;
}

// Keys that the rows attend to, all together.
double keys_of(const AttentionState& state) {
  double keys = 0;
  for (const AttentionRow& row : state.rows) keys += row.position + 1;
  return keys;
}

Result<KernelCase> make_gqa(uint32_t heads, uint32_t kv_heads, uint32_t head_dim, uint32_t sequences,
                            uint32_t context, uint32_t chunk) {
  const size_t width = size_t{heads} * head_dim;
  TANDEM_ASSIGN(const auto state, make_attention({DType::bf16, 16, kv_heads, head_dim}, sequences, context,
                                                 chunk, width, width));
  KernelCase result;
  result.bytes = 2.0 * kv_heads * head_dim * context * sequences * sizeof(bf16);
  result.flops = 4.0 * static_cast<double>(width) * keys_of(*state);
  result.run = [state, width, heads, kv_heads, head_dim](KernelRunner& runner) {
    GqaArgs args;
    args.rows = state->rows;
    args.cache = {state->cache.data(), state->layout.block_bytes(), state->layout.tokens_per_block,
                  DType::bf16};
    args.query = state->query.as<float>();
    args.query_stride = width;
    args.out = {DType::bf16, state->out.data(), width};
    args.num_heads = heads;
    args.num_kv_heads = kv_heads;
    args.head_dim = head_dim;
    args.scale = 0.09f;
    runner.run(runner.table().gqa, args);
  };
  return result;
}

Result<KernelCase> make_mla(uint32_t heads, uint32_t latent, uint32_t rope, uint32_t sequences,
                            uint32_t context, uint32_t chunk) {
  const size_t query_width = size_t{heads} * (latent + rope), out_width = size_t{heads} * latent;
  TANDEM_ASSIGN(const auto state, make_attention({DType::bf16, 16, 0, latent + rope}, sequences, context,
                                                 chunk, query_width, out_width));
  KernelCase result;
  result.bytes = static_cast<double>(latent + rope) * context * sequences * sizeof(bf16);
  result.flops = 2.0 * heads * (2.0 * latent + rope) * keys_of(*state);
  result.run = [state, heads, latent, rope, query_width, out_width](KernelRunner& runner) {
    MlaArgs args;
    args.rows = state->rows;
    args.cache = {state->cache.data(), state->layout.block_bytes(), state->layout.tokens_per_block,
                  DType::bf16};
    args.query_latent = state->query.as<float>();
    args.query_latent_stride = query_width;
    args.query_rope = state->query.as<float>() + out_width;
    args.query_rope_stride = query_width;
    args.query_rope_head_stride = rope;
    args.out = {DType::bf16, state->out.data(), out_width};
    args.num_heads = heads;
    args.latent_dim = latent;
    args.rope_dim = rope;
    args.scale = 0.07f;
    runner.run(runner.table().mla, args);
  };
  return result;
}

struct QuantizeState {
  OwnedBuffer rows, values, scales;
  size_t next = 0;
};

// A tile of activations, cold: what an attention rank quantises before it sends.
Result<KernelCase> make_quantize(ActivationFormat format, uint32_t rows, uint32_t cols) {
  auto state = std::make_shared<QuantizeState>();
  const size_t tile = size_t{rows} * cols;
  const size_t tiles = std::max<size_t>(2, kColdBytes / (tile * sizeof(bf16)));
  TANDEM_ASSIGN(state->rows, random_bf16(tiles * tile, 1.0f));
  TANDEM_ASSIGN(state->values, OwnedBuffer::allocate(tile));
  TANDEM_ASSIGN(state->scales, OwnedBuffer::allocate(rows * scale_row_bytes(format, cols)));
  KernelCase result;
  result.bytes = static_cast<double>(tile) * sizeof(bf16);
  result.run = [state, format, rows, cols, tile, tiles](KernelRunner& runner) {
    QuantizeArgs args;
    args.in = {DType::bf16, state->rows.as<bf16>() + state->next++ % tiles * tile, cols};
    args.format = format;
    args.values = state->values.data();
    args.scales = state->scales.data();
    args.rows = rows;
    args.cols = cols;
    runner.run(runner.table().quantize_rows, args);
  };
  return result;
}

// The same tile where it arrives: values cold, the bf16 rows into a buffer that stays warm.
Result<KernelCase> make_dequantize(ActivationFormat format, uint32_t rows, uint32_t cols) {
  auto state = std::make_shared<QuantizeState>();
  const size_t tile = size_t{rows} * cols;
  const size_t tiles = std::max<size_t>(2, kColdBytes / tile);
  TANDEM_ASSIGN(state->rows, OwnedBuffer::allocate(tile * sizeof(bf16)));
  TANDEM_ASSIGN(state->values, OwnedBuffer::allocate(tiles * tile));
  // 0x40 is 2 in e4m3, and as a scale 2^-63, or float32 3.0: speed does not depend on them.
  std::memset(state->values.data(), 0x40, tiles * tile);
  TANDEM_ASSIGN(state->scales, OwnedBuffer::allocate(rows * scale_row_bytes(format, cols)));
  std::memset(state->scales.data(), 0x40, state->scales.size());
  KernelCase result;
  result.bytes = static_cast<double>(tile);
  result.run = [state, format, rows, cols, tile, tiles](KernelRunner& runner) {
    DequantizeArgs args;
    args.in = {value_dtype(format, DType::bf16),
               state->values.data() + state->next++ % tiles * tile,
               cols,
               format,
               state->scales.data(),
               scale_cols(format, cols)};
    args.out = {DType::bf16, state->rows.data(), cols};
    args.rows = rows;
    args.cols = cols;
    runner.run(runner.table().dequantize_rows, args);
  };
  return result;
}

}  // namespace

std::vector<CaseMaker> kernel_cases() {
  std::vector<CaseMaker> cases;
  const auto add = [&](std::string name, auto make) { cases.push_back({std::move(name), std::move(make)}); };
  for (const auto& [n, k] : {std::pair{2048u, 1408u}, std::pair{7168u, 2048u}}) {
    for (const uint32_t rows : {1u, 16u, 512u}) {
      add(fmt::format("matmul {}x{} rows {}", n, k, rows),
          [=](const KernelTable& table) { return make_matmul(table, PackFormat::bf16, n, k, rows); });
    }
  }
  for (const PackFormat format : {PackFormat::fp8_block, PackFormat::mxfp4}) {
    for (const uint32_t rows : {1u, 16u, 512u}) {
      add(fmt::format("matmul {} 7168x2048 rows {}", pack_format_name(format), rows),
          [=](const KernelTable& table) { return make_matmul(table, format, 7168, 2048, rows); });
    }
  }
  constexpr PackFormat kBf16 = PackFormat::bf16, kFp8 = PackFormat::fp8_block, kMxfp4 = PackFormat::mxfp4;
  // Qwen3-30B, DeepSeek-V2-Lite; DeepSeek-V3 and V4-Flash in the formats of their files. Of the
  // latter as many experts are there as a small machine holds.
  for (const ExpertsShape shape :
       {ExpertsShape{kBf16, 2048, 768, 128, 8, 1}, ExpertsShape{kBf16, 2048, 768, 128, 8, 512},
        ExpertsShape{kBf16, 2048, 1408, 64, 6, 1}, ExpertsShape{kBf16, 2048, 1408, 64, 6, 512},
        ExpertsShape{kFp8, 7168, 2048, 256, 8, 1}, ExpertsShape{kFp8, 7168, 2048, 256, 8, 512},
        ExpertsShape{kFp8, 4096, 2048, 256, 6, 1}, ExpertsShape{kMxfp4, 7168, 2048, 256, 8, 1},
        ExpertsShape{kMxfp4, 4096, 2048, 256, 6, 1}, ExpertsShape{kMxfp4, 4096, 2048, 256, 6, 512}}) {
    const std::string format =
        shape.format == kBf16 ? "" : fmt::format("{} ", pack_format_name(shape.format));
    add(fmt::format("experts {}{}/{}/{}/{} rows {}", format, shape.hidden, shape.intermediate, shape.experts,
                    shape.top_k, shape.rows),
        [=](const KernelTable& table) { return make_experts(table, shape); });
  }
  struct Batch {
    uint32_t sequences, context, chunk;  // chunk: the last rows of each
  };
  for (const Batch batch : {Batch{1, 32768, 1}, Batch{8, 4096, 1}, Batch{32, 2048, 1}, Batch{128, 512, 1},
                            Batch{1, 1024, 64}, Batch{1, 512, 512}, Batch{1, 4608, 512}}) {
    const std::string name = batch.chunk == 1
                                 ? fmt::format("decode {} x {}", batch.sequences, batch.context)
                                 : fmt::format("prefill {} at {}", batch.chunk, batch.context - batch.chunk);
    const auto [sequences, context, chunk] = batch;
    add("gqa 32/4 heads of 128, " + name,
        [=](const KernelTable&) { return make_gqa(32, 4, 128, sequences, context, chunk); });
    add("gqa 16/16 heads of 128, " + name,
        [=](const KernelTable&) { return make_gqa(16, 16, 128, sequences, context, chunk); });
    add("mla 16 heads 512+64, " + name,
        [=](const KernelTable&) { return make_mla(16, 512, 64, sequences, context, chunk); });
    if (batch.sequences * batch.chunk > 8) continue;
    add("mla 128 heads 512+64, " + name,
        [=](const KernelTable&) { return make_mla(128, 512, 64, sequences, context, chunk); });
  }
  for (const ActivationFormat format :
       {ActivationFormat::fp8, ActivationFormat::mxfp8, ActivationFormat::int8}) {
    add(fmt::format("quantize {} 64 x 7168", activation_format_name(format)),
        [=](const KernelTable&) { return make_quantize(format, 64, 7168); });
    add(fmt::format("dequantize {} 64 x 7168", activation_format_name(format)),
        [=](const KernelTable&) { return make_dequantize(format, 64, 7168); });
  }
  return cases;
}

}  // namespace tandem::bench
