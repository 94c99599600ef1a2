#include "bench/kernel_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "base/bf16.h"
#include "base/buffer.h"
#include "base/cpu_budget.h"
#include "bench/int8_rows.h"
#include "bench/random_pack.h"
#include "bench/shape_cases.h"

namespace tandem::bench {
namespace {

// Weights of a case that must come from memory: several times the last-level cache of a large server slice.
constexpr size_t kColdBytes = size_t{384} << 20;
// A layer of coded experts takes no more than this, so that the wide shapes run on small machines too.
constexpr double kMostCodedBytes = 7e8;

Result<OwnedBuffer> random_bf16(size_t elements) {
  TANDEM_ASSIGN(OwnedBuffer buffer, OwnedBuffer::allocate(elements * sizeof(bf16)));
  fill_random_bf16(buffer.as<uint16_t>(), elements, 1.0f, 3);
  return buffer;
}

// `count` packed weights of one shape side by side.
struct Weights {
  OwnedBuffer bytes;
  std::vector<PackedWeight> weights;
};
Result<Weights> make_weights(const KernelTable& table, PackFormat format, PackArrangement arrangement,
                             uint32_t rows, uint32_t cols, size_t count) {
  Weights result;
  const size_t each = table.packed_bytes(format, arrangement, rows, cols);
  TANDEM_ASSIGN(result.bytes, OwnedBuffer::allocate(each * count));
  ThreadPool pool(CpuBudget::detect().threads);
  RandomPacker packer(table, pool, 1);
  for (size_t i = 0; i < count; ++i) {
    std::byte* data = result.bytes.data() + i * each;
    TANDEM_TRY(packer.fill(format, arrangement, rows, cols, data));
    result.weights.push_back({format, arrangement, rows, cols, data, each});
  }
  return result;
}

// Columns of an intermediate row that share a scale: the granule of the experts' slices.
constexpr uint32_t kInt8Block = 128;

struct ExpertsState {
  Weights gate_up, down;
  OwnedBuffer in, middle, out;
  Int8Rows int8_in, int8_middle;
  // Several routings, so that the experts of a small batch are cold.
  struct Routing {
    std::vector<std::vector<uint32_t>> rows, slots;
    std::vector<ExpertGroup> groups;
  };
  std::vector<Routing> routings;
  size_t next = 0;
};

// Which experts the rows of a case pick. even: dealt like cards, so that all have equally many rows; own:
// each row picks for itself, as the sequences of a decode batch do.
enum class Routed : uint8_t { even, own };

struct ExpertsShape {
  PackFormat format;
  uint32_t hidden, intermediate, experts, top_k, rows;
  Routed routed = Routed::even;
  // Of `experts`, those that are there: enough to be cold, where all would not fit. Rows pick among them.
  uint32_t present() const {
    if (!is_coded(format) && format != PackFormat::int8) return experts;
    const double each = 3.0 * hidden * intermediate * (format == PackFormat::mxfp4 ? 0.53 : 1.03);
    return std::max(top_k, std::min(experts, static_cast<uint32_t>(kMostCodedBytes / each)));
  }
};

// Each row picks top_k different experts. Even routings of small batches walk through all experts before they
// repeat.
ExpertsState::Routing make_routing(const ExpertsState& state, const ExpertsShape& shape,
                                   std::mt19937& generator, std::vector<uint32_t>& order) {
  ExpertsState::Routing routing;
  routing.rows.resize(shape.experts);
  routing.slots.resize(shape.experts);
  for (uint32_t row = 0; row < shape.rows; ++row) {
    if (order.size() < shape.top_k || shape.routed == Routed::own) {
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
  TANDEM_ASSIGN(state->in, random_bf16(size_t{shape.rows} * shape.hidden));
  TANDEM_ASSIGN(state->middle, OwnedBuffer::allocate(slots * shape.intermediate * sizeof(bf16)));
  TANDEM_ASSIGN(state->out, OwnedBuffer::allocate(slots * shape.hidden * sizeof(float)));
  TANDEM_ASSIGN(state->int8_in, Int8Rows::create(shape.rows, shape.hidden, 0));
  TANDEM_ASSIGN(state->int8_middle, Int8Rows::create(slots, shape.intermediate, kInt8Block));
  std::mt19937 generator(1);
  std::vector<uint32_t> order;
  // Own choices differ in how many experts they touch: eight routings, so that a measurement sees the mean.
  const size_t routings = shape.routed == Routed::own ? 8 : std::max<size_t>(2, 2 * shape.experts / slots);
  for (size_t i = 0; i < routings; ++i)
    state->routings.push_back(make_routing(*state, shape, generator, order));
  const double expert_weights = 3.0 * shape.hidden * shape.intermediate;
  KernelCase result;
  size_t touched = 0;
  for (const ExpertsState::Routing& routing : state->routings) touched += routing.groups.size();
  result.bytes = static_cast<double>(touched) / static_cast<double>(routings) *
                 static_cast<double>(state->gate_up.weights[0].bytes + state->down.weights[0].bytes);
  result.flops = 2.0 * expert_weights * static_cast<double>(slots);
  if (shape.format == PackFormat::int8) result.flop_roof = FlopRoof::int8_dot;
  result.run = [state, shape](KernelRunner& runner) {
    const ExpertsState::Routing& routing = state->routings[state->next++ % state->routings.size()];
    GroupedGateUpArgs up;
    up.groups = routing.groups;
    const bool int8 = shape.format == PackFormat::int8;
    up.in = {DType::bf16, state->in.data(), shape.hidden};
    if (int8) up.in = state->int8_in.quantize(runner, up.in, shape.rows);
    up.intermediate = {DType::bf16, state->middle.data(), shape.intermediate};
    runner.run(runner.table().grouped_gate_up, up);
    GroupedDownArgs down;
    down.groups = routing.groups;
    down.intermediate = {DType::bf16, state->middle.data(), shape.intermediate};
    if (int8) {
      down.intermediate = state->int8_middle.quantize(runner, down.intermediate, shape.rows * shape.top_k);
      down.scale_block_cols = kInt8Block;
    }
    down.out = state->out.as<float>();
    down.out_stride = shape.hidden;
    runner.run(runner.table().grouped_down, down);
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
  TANDEM_ASSIGN(state->rows, random_bf16(tiles * tile));
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
          [=](const KernelTable& table) { return make_dense_case(table, PackFormat::bf16, n, k, rows); });
    }
  }
  for (const PackFormat format :
       {PackFormat::fp8_block, PackFormat::mxfp4, PackFormat::mxfp8, PackFormat::int8}) {
    for (const uint32_t rows : {1u, 16u, 512u}) {
      add(fmt::format("matmul {} 7168x2048 rows {}", pack_format_name(format), rows),
          [=](const KernelTable& table) { return make_dense_case(table, format, 7168, 2048, rows); });
    }
  }
  constexpr PackFormat kBf16 = PackFormat::bf16, kFp8 = PackFormat::fp8_block, kMxfp4 = PackFormat::mxfp4,
                       kMxfp8 = PackFormat::mxfp8, kInt8 = PackFormat::int8;
  // Qwen3-30B, DeepSeek-V2-Lite; DeepSeek-V3 and V4-Flash in the formats of their files. Of the
  // latter as many experts are there as a small machine holds.
  std::vector<ExpertsShape> shapes;
  // Decode with one prompt, with 8 and 32 prompts of their own, and prefill with 32 and 64 rows an expert.
  for (const PackFormat format : {kBf16, kInt8, kFp8, kMxfp8, kMxfp4}) {
    shapes.push_back({format, 2048, 768, 128, 8, 1});
    shapes.push_back({format, 2048, 768, 128, 8, 8, Routed::own});
    shapes.push_back({format, 2048, 768, 128, 8, 32, Routed::own});
    shapes.push_back({format, 2048, 768, 128, 8, 512});
    shapes.push_back({format, 2048, 768, 128, 8, 1024});
  }
  for (const ExpertsShape shape :
       {ExpertsShape{kBf16, 1024, 512, 32, 8, 32, Routed::own}, ExpertsShape{kBf16, 2048, 1408, 64, 6, 1},
        ExpertsShape{kBf16, 2048, 1408, 64, 6, 512}, ExpertsShape{kBf16, 2048, 1408, 64, 6, 768},
        ExpertsShape{kInt8, 2048, 1408, 64, 6, 1}, ExpertsShape{kInt8, 2048, 1408, 64, 6, 512},
        ExpertsShape{kFp8, 7168, 2048, 256, 8, 1}, ExpertsShape{kFp8, 7168, 2048, 256, 8, 512},
        ExpertsShape{kFp8, 4096, 2048, 256, 6, 1}, ExpertsShape{kMxfp4, 7168, 2048, 256, 8, 1},
        ExpertsShape{kMxfp4, 4096, 2048, 256, 6, 1}, ExpertsShape{kMxfp4, 4096, 2048, 256, 6, 512}}) {
    shapes.push_back(shape);
  }
  for (const ExpertsShape& shape : shapes) {
    const std::string format =
        shape.format == kBf16 ? "" : fmt::format("{} ", pack_format_name(shape.format));
    add(fmt::format("experts {}{}/{}/{}/{} {} {}", format, shape.hidden, shape.intermediate, shape.experts,
                    shape.top_k, shape.routed == Routed::own ? "batch" : "rows", shape.rows),
        [=](const KernelTable& table) { return make_experts(table, shape); });
  }
  const std::pair<const char*, ModelShape> kAttention[] = {
      {"gqa 32/4 heads of 128, ", {.heads = 32, .kv_heads = 4, .head_dim = 128}},
      {"gqa 16/16 heads of 128, ", {.heads = 16, .kv_heads = 16, .head_dim = 128}},
      {"mla 16 heads 512+64, ",
       {.attention = ShapeAttention::mla, .heads = 16, .kv_lora = 512, .nope = 128, .rope = 64}},
      {"mla 128 heads 512+64, ",
       {.attention = ShapeAttention::mla, .heads = 128, .kv_lora = 512, .nope = 128, .rope = 64}}};
  struct Batch {
    uint32_t sequences, context, chunk;  // chunk: the last rows of each
  };
  for (const Batch batch : {Batch{1, 32768, 1}, Batch{8, 4096, 1}, Batch{32, 2048, 1}, Batch{128, 512, 1},
                            Batch{1, 1024, 64}, Batch{1, 512, 512}, Batch{1, 4608, 512}}) {
    const std::string name = batch.chunk == 1
                                 ? fmt::format("decode {} x {}", batch.sequences, batch.context)
                                 : fmt::format("prefill {} at {}", batch.chunk, batch.context - batch.chunk);
    for (const auto& [head, shape] : kAttention) {
      if (shape.heads > 16 && shape.attention == ShapeAttention::mla && batch.sequences * batch.chunk > 8)
        continue;
      add(std::string(head) + name, [shape, batch](const KernelTable&) {
        return make_attention_case(shape, batch.sequences, batch.context, batch.chunk);
      });
    }
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
