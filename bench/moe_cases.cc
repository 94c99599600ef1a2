// The grouped expert product over layers, through the class that the engine runs its experts with.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "base/buffer.h"
#include "base/cpu_budget.h"
#include "base/memory_budget.h"
#include "bench/random_pack.h"
#include "bench/shape_cases.h"
#include "moe/expert_runner.h"
#include "moe/expert_slice.h"

namespace tandem::bench {
namespace {

// Automatic layers: several times the last-level cache of a large server slice, and quick to make.
constexpr uint64_t kAutomaticBytes = uint64_t{1} << 30;
// What one run of a case touches at least, so that nothing is found in the cache.
constexpr double kColdBytes = 4e8;
constexpr size_t kMostRoutings = 16;
// As MoeBlockOptions::scratch_bytes: a larger batch goes in pieces, as it does in the engine.
constexpr size_t kScratchBytes = size_t{128} << 20;
constexpr uint32_t kFewestRows = 64;

struct MoeState {
  MoeSizes sizes;
  OwnedBuffer bytes;
  std::vector<std::vector<MlpWeights>> layers;  // [layers][experts]
  OwnedBuffer in;                               // bf16 [rows, hidden]
  struct Routing {
    std::vector<int32_t> ids;
    std::vector<float> weights;
  };
  std::vector<Routing> routings;  // [routings * layers]
  std::unique_ptr<ExpertRunner> runner;
  uint32_t piece = 0;
};

MoeState::Routing own_routing(uint32_t rows, uint32_t experts, uint32_t top_k, std::mt19937& generator) {
  MoeState::Routing routing;
  std::vector<int32_t> order(experts);
  std::iota(order.begin(), order.end(), 0);
  for (uint32_t row = 0; row < rows; ++row) {
    for (uint32_t k = 0; k < top_k; ++k) {  // the first top_k of a shuffle
      std::swap(order[k], order[k + generator() % (experts - k)]);
      routing.ids.push_back(order[k]);
      routing.weights.push_back(1.0f / static_cast<float>(top_k));
    }
  }
  return routing;
}

uint64_t distinct_experts(const MoeState::Routing& routing, uint32_t experts) {
  std::vector<bool> seen(experts);
  for (const int32_t id : routing.ids) seen[static_cast<size_t>(id)] = true;
  return static_cast<uint64_t>(std::count(seen.begin(), seen.end(), true));
}

Status make_experts(const KernelTable& table, ThreadPool& pool, const ModelShape& shape, PackFormat format,
                    MoeState& state) {
  const MoeSizes& sizes = state.sizes;
  const uint32_t up_rows = 2 * shape.intermediate;
  const size_t up = table.packed_bytes(format, PackArrangement::gate_up, up_rows, shape.hidden);
  const size_t down = table.packed_bytes(format, PackArrangement::plain, shape.hidden, shape.intermediate);
  TANDEM_ASSIGN(state.bytes, OwnedBuffer::allocate(size_t{sizes.layers} * sizes.experts * (up + down)));
  std::byte* at = state.bytes.data();
  RandomPacker packer(table, pool, 1);
  for (uint32_t layer = 0; layer < sizes.layers; ++layer) {
    std::vector<MlpWeights>& experts = state.layers.emplace_back();
    for (uint32_t e = 0; e < sizes.experts; ++e) {
      TANDEM_TRY(packer.fill(format, PackArrangement::gate_up, up_rows, shape.hidden, at));
      TANDEM_TRY(packer.fill(format, PackArrangement::plain, shape.hidden, shape.intermediate, at + up));
      MlpWeights& expert = experts.emplace_back();
      expert.gate_up = {format, PackArrangement::gate_up, up_rows, shape.hidden, at, up};
      expert.down = {format, PackArrangement::plain, shape.hidden, shape.intermediate, at + up, down};
      at += up + down;
    }
  }
  return {};
}

Result<KernelCase> make_moe(const KernelTable& table, const ModelShape& shape, const MoeCase& options,
                            uint32_t rows) {
  auto state = std::make_shared<MoeState>();
  TANDEM_ASSIGN(state->sizes, moe_sizes(table, shape, options));
  const MoeSizes sizes = state->sizes;
  ThreadPool pool(CpuBudget::detect().threads);
  TANDEM_TRY(make_experts(table, pool, shape, options.format, *state));
  TANDEM_ASSIGN(state->in, OwnedBuffer::allocate(size_t{rows} * shape.hidden * sizeof(uint16_t)));
  fill_random_bf16(state->in.as<uint16_t>(), size_t{rows} * shape.hidden, 1.0f, 3);

  std::mt19937 generator(1);
  uint64_t touched = 0;
  size_t passes = 0;
  do {
    for (uint32_t layer = 0; layer < sizes.layers; ++layer) {
      state->routings.push_back(own_routing(rows, sizes.experts, shape.top_k, generator));
      touched += distinct_experts(state->routings.back(), sizes.experts);
    }
    ++passes;
  } while (passes < kMostRoutings && static_cast<double>(touched * sizes.expert_bytes) < kColdBytes);

  ExpertRunner::Sizes runner_sizes;
  runner_sizes.hidden_size = shape.hidden;
  runner_sizes.intermediate_size = shape.intermediate;
  runner_sizes.num_experts = sizes.experts;
  runner_sizes.top_k = shape.top_k;
  if (options.format == PackFormat::int8) runner_sizes.int8_block_cols = slice_granule(shape.intermediate);
  const size_t fits = kScratchBytes / ExpertRunner::bytes_per_row(runner_sizes);
  state->piece = std::clamp<uint32_t>(static_cast<uint32_t>(fits), kFewestRows, kMostRows);
  runner_sizes.max_rows = std::min(rows, state->piece);

  KernelCase result;
  result.bytes = static_cast<double>(touched * sizes.expert_bytes);
  result.flops = 6.0 * shape.hidden * shape.intermediate * rows * shape.top_k * sizes.layers *
                 static_cast<double>(passes);
  if (options.format == PackFormat::int8) result.flop_roof = FlopRoof::int8_dot;
  result.passes = static_cast<double>(passes);
  result.note =
      fmt::format("{} layers of {} experts{}, {:.1f} touched a layer", sizes.layers, sizes.experts,
                  sizes.experts == shape.experts ? std::string()
                                                 : fmt::format(" (of {}: more do not fit)", shape.experts),
                  static_cast<double>(touched) / static_cast<double>(passes * sizes.layers));
  result.prepare = [state, runner_sizes](KernelRunner& runner) -> Status {
    TANDEM_ASSIGN(ExpertRunner created, ExpertRunner::create(runner_sizes, runner));
    state->runner = std::make_unique<ExpertRunner>(std::move(created));
    return {};
  };
  const uint32_t hidden = shape.hidden, top_k = shape.top_k;
  result.run = [state, rows, hidden, top_k](KernelRunner&) {
    for (size_t i = 0; i < state->routings.size(); ++i) {
      const MoeState::Routing& routing = state->routings[i];
      for (uint32_t first = 0; first < rows; first += state->piece) {
        const uint32_t count = std::min(state->piece, rows - first);
        const RoutingView view{{routing.ids.data() + size_t{first} * top_k, size_t{count} * top_k},
                               {routing.weights.data() + size_t{first} * top_k, size_t{count} * top_k},
                               top_k};
        state->runner->run_routed(state->layers[i % state->layers.size()], count,
                                  {DType::bf16, state->in.as<uint16_t>() + size_t{first} * hidden, hidden},
                                  view);
      }
    }
  };
  return result;
}

}  // namespace

Result<MoeSizes> moe_sizes(const KernelTable& table, const ModelShape& shape, const MoeCase& options) {
  MoeSizes sizes;
  sizes.expert_bytes =
      table.packed_bytes(options.format, PackArrangement::gate_up, 2 * shape.intermediate, shape.hidden) +
      table.packed_bytes(options.format, PackArrangement::plain, shape.hidden, shape.intermediate);
  const uint64_t most = options.most_bytes != 0 ? options.most_bytes : MemoryBudget::detect().available() / 2;
  const uint64_t layer_bytes = sizes.expert_bytes * shape.experts;
  const uint64_t fit = most / sizes.expert_bytes;  // experts
  sizes.experts = shape.experts;
  if (fit < shape.experts) {
    sizes.experts = static_cast<uint32_t>(fit);
    if (fit < shape.top_k) {
      return make_error(ErrorCode::resource_exhausted,
                        fmt::format("the {} experts of one row of {} take {} as {} and {} may be used; "
                                    "narrower measure.weights would do",
                                    shape.top_k, shape.name, bytes_text(shape.top_k * sizes.expert_bytes),
                                    pack_format_name(options.format), bytes_text(most)));
    }
  }
  const uint64_t fit_layers = std::max<uint64_t>(1, most / layer_bytes);
  if (options.layers > fit_layers) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("measure.layers: {} of the experts of {} take {} as {} and {} may be used; "
                                  "use {} or fewer, or narrower measure.weights",
                                  options.layers, shape.name, bytes_text(options.layers * layer_bytes),
                                  pack_format_name(options.format), bytes_text(most), fit_layers));
  }
  const uint64_t automatic = (kAutomaticBytes + layer_bytes - 1) / layer_bytes;
  sizes.layers = options.layers != 0
                     ? options.layers
                     : static_cast<uint32_t>(std::min<uint64_t>({automatic, fit_layers, shape.layers}));
  return sizes;
}

std::vector<CaseMaker> moe_cases(const ModelShape& shape, const MoeCase& options,
                                 std::span<const uint32_t> batches) {
  std::vector<CaseMaker> cases;
  for (const uint32_t rows : batches) {
    cases.push_back(
        {fmt::format("moe {} {} rows {}", shape.name, pack_format_name(options.format), rows),
         [shape, options, rows](const KernelTable& table) { return make_moe(table, shape, options, rows); }});
  }
  return cases;
}

}  // namespace tandem::bench
