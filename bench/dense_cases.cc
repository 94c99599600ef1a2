// The matrices of a released model, one product each.
#include <fmt/format.h>

#include <algorithm>

#include "base/buffer.h"
#include "base/cpu_budget.h"
#include "bench/int8_rows.h"
#include "bench/random_pack.h"
#include "bench/shape_cases.h"

namespace tandem::bench {
namespace {

// Copies of a weight at least, so that a small batch finds none of them in a cache.
constexpr size_t kColdBytes = size_t{384} << 20;
// From here on a product is bound by arithmetic and the weight need not be cold.
constexpr uint32_t kManyRows = 64;

struct Matrix {
  const char* name;
  uint32_t rows, cols;
  bool plain = false;  // never in codes
};

std::vector<Matrix> matrices(const ModelShape& shape, PackFormat format) {
  const bool heads_too = format == PackFormat::int8 || format == PackFormat::mxfp8;  // made at load
  std::vector<Matrix> list;
  const uint32_t hidden = shape.hidden, query = shape.heads * shape.head_dim;
  switch (shape.attention) {
    case ShapeAttention::gqa:
      list.push_back({"qkv", query + 2 * shape.kv_heads * shape.head_dim, hidden});
      list.push_back({"output", hidden, query});
      break;
    case ShapeAttention::mla: {
      const uint32_t rows = shape.heads * (shape.nope + shape.rope);
      if (shape.q_lora != 0) list.push_back({"q_a", shape.q_lora, hidden});
      list.push_back({"q_b", rows, shape.q_lora != 0 ? shape.q_lora : hidden});
      list.push_back({"kv_a", shape.kv_lora + shape.rope, hidden});
      list.push_back({"output", hidden, shape.heads * shape.v});
      break;
    }
    case ShapeAttention::compressed:
      list.push_back({"q_a", shape.q_lora, hidden});
      list.push_back({"q_b", query, shape.q_lora});
      list.push_back({"kv", shape.head_dim, hidden});
      break;
  }
  if (shape.shared != 0) {
    list.push_back({"shared up", 2 * shape.shared, hidden});
    list.push_back({"shared down", hidden, shape.shared});
  }
  if (shape.dense_intermediate != 0) {
    list.push_back({"dense up", 2 * shape.dense_intermediate, hidden});
    list.push_back({"dense down", hidden, shape.dense_intermediate});
  }
  list.push_back({"router", shape.experts, hidden, true});
  list.push_back({"head", shape.vocab, hidden, !heads_too});
  return list;
}

struct DenseState {
  OwnedBuffer bytes, in, out;
  Int8Rows int8;
  std::vector<PackedWeight> weights;
  size_t next = 0;
};

}  // namespace

Result<KernelCase> make_dense_case(const KernelTable& table, PackFormat format, uint32_t n, uint32_t k,
                                   uint32_t rows) {
  auto state = std::make_shared<DenseState>();
  const size_t each = table.packed_bytes(format, PackArrangement::plain, n, k);
  const size_t copies = rows >= kManyRows ? 1 : std::max<size_t>(2, kColdBytes / each);
  TANDEM_ASSIGN(state->bytes, OwnedBuffer::allocate(copies * each));
  ThreadPool pool(CpuBudget::detect().threads);
  RandomPacker packer(table, pool, 1);
  for (size_t i = 0; i < copies; ++i) {
    std::byte* at = state->bytes.data() + i * each;
    TANDEM_TRY(packer.fill(format, PackArrangement::plain, n, k, at));
    state->weights.push_back({format, PackArrangement::plain, n, k, at, each});
  }
  TANDEM_ASSIGN(state->in, OwnedBuffer::allocate(size_t{rows} * k * sizeof(uint16_t)));
  fill_random_bf16(state->in.as<uint16_t>(), size_t{rows} * k, 1.0f, 3);
  TANDEM_ASSIGN(state->out, OwnedBuffer::allocate(size_t{rows} * n * sizeof(float)));
  KernelCase result;
  result.bytes = static_cast<double>(each);
  result.flops = 2.0 * n * k * rows;
  if (format == PackFormat::int8) {
    result.flop_roof = FlopRoof::int8_dot;
    TANDEM_ASSIGN(state->int8, Int8Rows::create(rows, k, 0));
  }
  result.run = [state, n, k, rows](KernelRunner& runner) {
    MatmulArgs args;
    args.weights = {&state->weights[state->next++ % state->weights.size()], 1};
    args.in = {DType::bf16, state->in.data(), k};
    if (args.weights.front().format == PackFormat::int8)
      args.in = state->int8.quantize(runner, args.in, rows);
    args.out = {DType::f32, state->out.data(), n};
    args.rows = rows;
    runner.run(runner.table().matmul, args);
  };
  return result;
}

std::vector<CaseMaker> dense_cases(const ModelShape& shape, PackFormat format,
                                   std::span<const uint32_t> batches) {
  std::vector<CaseMaker> cases;
  for (const Matrix& matrix : matrices(shape, format)) {
    const PackFormat packed = matrix.plain ? PackFormat::bf16 : format;
    for (const uint32_t rows : batches) {
      cases.push_back({fmt::format("{} {} {} {}x{} rows {}", shape.name, matrix.name,
                                   pack_format_name(packed), matrix.rows, matrix.cols, rows),
                       [matrix, packed, rows](const KernelTable& table) {
                         return make_dense_case(table, packed, matrix.rows, matrix.cols, rows);
                       }});
    }
  }
  return cases;
}

}  // namespace tandem::bench
