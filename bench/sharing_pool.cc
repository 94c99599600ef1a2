#include "bench/sharing_pool.h"

#include <fmt/format.h>

#include "base/cpu_budget.h"
#include "base/memory_budget.h"
#include "bench/random_pack.h"
#include "moe/expert_map.h"
#include "moe/expert_slice.h"

namespace tandem::bench {
namespace {

struct ExpertBytes {
  size_t gate_up = 0, down = 0;
};

ExpertBytes expert_bytes(const SharingOptions& options, const KernelTable& table) {
  return {
      table.packed_bytes(options.format, PackArrangement::gate_up, 2 * options.intermediate, options.hidden),
      table.packed_bytes(options.format, PackArrangement::plain, options.hidden, options.intermediate)};
}

}  // namespace

uint64_t RandomExperts::bytes_of(const SharingOptions& options, const KernelTable& table) {
  const ExpertBytes one = expert_bytes(options, table);
  return uint64_t{options.layers} * options.experts * (one.gate_up + one.down);
}

Result<std::unique_ptr<RandomExperts>> RandomExperts::create(const SharingOptions& options,
                                                             const KernelTable& table, ThreadPool& pool) {
  const ExpertBytes one = expert_bytes(options, table);
  auto made = std::make_unique<RandomExperts>();
  TANDEM_ASSIGN(made->bytes_, OwnedBuffer::allocate(bytes_of(options, table)));
  RandomPacker packer(table, pool, 1);
  std::byte* at = made->bytes_.data();
  made->layers_.resize(options.layers);
  for (MoeLayerWeights& layer : made->layers_) {
    for (uint32_t e = 0; e < options.experts; ++e) {
      MlpWeights& expert = layer.experts.emplace_back();
      TANDEM_TRY(packer.fill(options.format, PackArrangement::gate_up, 2 * options.intermediate,
                             options.hidden, at));
      expert.gate_up = {
          options.format, PackArrangement::gate_up, 2 * options.intermediate, options.hidden, at,
          one.gate_up};
      at += one.gate_up;
      TANDEM_TRY(
          packer.fill(options.format, PackArrangement::plain, options.hidden, options.intermediate, at));
      expert.down = {options.format, PackArrangement::plain, options.hidden, options.intermediate, at,
                     one.down};
      at += one.down;
    }
  }
  return made;
}

std::vector<const MoeLayerWeights*> RandomExperts::layers() const {
  std::vector<const MoeLayerWeights*> pointers;
  for (const MoeLayerWeights& layer : layers_) pointers.push_back(&layer);
  return pointers;
}

Result<std::unique_ptr<MoeBlock>> make_sharing_block(const SharingOptions& options,
                                                     const RandomExperts& experts, KernelRunner& runner) {
  MoeShape shape;
  shape.hidden_size = options.hidden;
  shape.moe_intermediate_size = options.intermediate;
  shape.router.num_experts = options.experts;
  shape.router.top_k = options.top_k;
  MoeBlockOptions block;
  block.routes = false;
  block.runs_shared_experts = false;
  return MoeBlock::create(shape, experts.layers(), block, runner);
}

SplitSettings sharing_settings(const SharingOptions& options, const KernelTable& table) {
  SplitSettings settings;
  settings.model_fingerprint = 1;
  settings.hidden_size = options.hidden;
  settings.num_layers = options.layers;
  settings.vocab_size = 1;
  settings.num_experts = options.experts;
  settings.top_k = options.top_k;
  settings.moe_intermediate_size = options.intermediate;
  for (uint32_t layer = 0; layer < options.layers; ++layer)
    settings.moe_layers.push_back(static_cast<uint16_t>(layer));
  settings.gate_on_attention = settings.shared_experts_on_attention = true;
  settings.set_dtypes(DType::bf16, SumMode::plain);
  settings.numerics_id = table.numerics_id;
  return settings;
}

Result<std::unique_ptr<SharingPool>> SharingPool::create(const SharingOptions& options) {
  std::unique_ptr<SharingPool> made(new SharingPool);
  TANDEM_ASSIGN(const KernelTable* table, choose_kernel_table());
  made->pool_ =
      std::make_unique<ThreadPool>(options.threads == 0 ? CpuBudget::detect().threads : options.threads);
  TANDEM_ASSIGN(KernelRunner runner, KernelRunner::create(*table, *made->pool_));
  made->runner_ = std::make_unique<KernelRunner>(std::move(runner));
  const uint64_t need = RandomExperts::bytes_of(options, *table);
  if (const MemoryBudget have = MemoryBudget::detect(); need > have.available()) {
    return make_error(
        ErrorCode::resource_exhausted,
        fmt::format("bench sharing: the experts take {} and {} are available; fewer sharing.layers or a "
                    "narrower sharing.format would do",
                    bytes_text(need), have.text()));
  }
  TANDEM_ASSIGN(made->experts_, RandomExperts::create(options, *table, *made->pool_));
  TANDEM_ASSIGN(made->block_, make_sharing_block(options, *made->experts_, *made->runner_));
  TANDEM_ASSIGN(made->urgent_, make_sharing_block(options, *made->experts_, *made->runner_));
  TANDEM_ASSIGN(made->reference_, make_sharing_block(options, *made->experts_, *made->runner_));
  made->settings_ = sharing_settings(options, *table);
  return made;
}

Result<std::unique_ptr<FfnWorker>> SharingPool::serve(const std::string& address, GroupOrder order) {
  FfnWorkerOptions worker;
  worker.listen_address = address;
  worker.settings = settings_;
  const ExpertMap map = ExpertMap::whole(settings_.map_shape(), {});
  worker.pieces.assign(map.pieces().begin(), map.pieces().end());
  worker.policy.order = order;
  worker.max_sessions = 1024;
  return FfnWorker::create(worker, *block_, urgent_.get());
}

}  // namespace tandem::bench
