#include "bench/step_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/memory_budget.h"
#include "bench/random_pack.h"

namespace tandem::bench {
namespace {

// Filled once, then copied: random values of the size of normed keys. As float32 two of them are one value of
// that size.
constexpr size_t kFillBytes = size_t{1} << 20;

Status fill_cache(ThreadPool& pool, const OwnedBuffer& memory, uint64_t seed) {
  TANDEM_ASSIGN(const OwnedBuffer piece, OwnedBuffer::allocate(kFillBytes));
  fill_random_bf16(piece.as<uint16_t>(), kFillBytes / sizeof(uint16_t), 1.0f, seed);
  pool.run((memory.size() + kFillBytes - 1) / kFillBytes, [&](size_t task, int) {
    const size_t begin = task * kFillBytes;
    std::memcpy(memory.data() + begin, piece.data(), std::min(kFillBytes, memory.size() - begin));
  });
  return {};
}

// Blocks that rows from `begin` on may read: a group with a short retention has released those before.
uint32_t first_block(const StateGroupSpec& spec, uint32_t begin) {
  if (spec.keeps_all() || begin <= spec.retain_tokens) return 0;
  return (begin - spec.retain_tokens) / spec.tokens_per_block;
}

}  // namespace

uint32_t StepPlan::rows() const {
  uint32_t total = 0;
  for (const StepRows& sequence : sequences) total += sequence.rows;
  return total;
}

Result<std::unique_ptr<StepModel>> StepModel::create(const ModelConfig& config, const RandomModel& model,
                                                     KernelRunner& kernels, const StepPlan& plan,
                                                     uint64_t seed, const ModelOptions& options) {
  auto step = std::unique_ptr<StepModel>(new StepModel(config, model, kernels, plan, seed));
  TANDEM_ASSIGN(Model built, Model::create(config, model.weights, options));
  step->built_ = std::make_unique<Model>(std::move(built));
  StateCaches caches;
  TANDEM_TRY(step->make_caches(step->built_->state_groups(), caches));
  TANDEM_TRY(step->make_block());
  const uint32_t rows = step->plan_.rows();
  for (uint32_t row = plan.all_logits ? 0 : rows - 1; row < rows; ++row) step->logit_rows_.push_back(row);
  TANDEM_ASSIGN(std::shared_ptr<const Program> program,
                step->built_->build({rows, static_cast<uint32_t>(step->logit_rows_.size())},
                                    step->ffn_->traits(), caches, nullptr));
  TANDEM_ASSIGN(step->lane_, step->executor_->create_lane(std::move(program), LaneId{0}));
  return step;
}

Status StepModel::make_caches(std::span<const StateGroupSpec> specs, StateCaches& caches) {
  uint64_t need = 0;
  for (const StateGroupSpec& spec : specs) {
    for (const StepRows& rows : plan_.sequences) {
      const uint64_t blocks =
          spec.blocks_for(uint64_t{rows.begin} + rows.rows) - first_block(spec, rows.begin);
      need += blocks * spec.bytes_of_all_layers();
    }
  }
  if (const MemoryBudget have = MemoryBudget::detect(); need > have.available()) {
    return make_error(ErrorCode::resource_exhausted,
                      fmt::format("the caches of {} sequences take {} and {} are available; a smaller "
                                  "measure.batch, measure.context or measure.layers would do",
                                  plan_.sequences.size(), bytes_text(need), have.text()));
  }
  groups_.resize(specs.size());
  for (uint32_t index = 0; index < specs.size(); ++index) {
    const StateGroupSpec& spec = specs[index];
    Group& group = groups_[index];
    // Blocks are dealt out one by one: no sequence's lie side by side, as after hours of serving.
    uint32_t used = 0, most = 0;
    for (const StepRows& rows : plan_.sequences) {
      group.tables.emplace_back(spec.blocks_for(uint64_t{rows.begin} + rows.rows), -1);
      most = std::max(most, static_cast<uint32_t>(group.tables.back().size()));
    }
    for (uint32_t block = 0; block < most; ++block) {
      for (size_t s = 0; s < plan_.sequences.size(); ++s) {
        if (block < group.tables[s].size() && block >= first_block(spec, plan_.sequences[s].begin))
          group.tables[s][block] = static_cast<int32_t>(used++);
      }
    }
    TANDEM_ASSIGN(group.memory, allocate_state_group(spec, index, used, caches));
    TANDEM_TRY(fill_cache(kernels_.pool(), group.memory, index));
    if (built_->kv_layout().coded())
      set_kv_scales({group.memory.data(), group.memory.size()}, built_->kv_layout());
    for (size_t s = 0; s < plan_.sequences.size(); ++s) {
      const StepRows& rows = plan_.sequences[s];
      for (uint32_t r = 0; r < rows.rows; ++r) group.rows.push_back({group.tables[s].data(), rows.begin + r});
    }
  }
  for (const Group& group : groups_) group_rows_.emplace_back(group.rows);
  return {};
}

Status StepModel::make_block() {
  MoeBlockOptions options;
  options.compute_dtype = model_.weights.compute_dtype;
  options.reply_dtype = options.compute_dtype;
  TANDEM_ASSIGN(block_,
                MoeBlock::create(moe_shape(config_), moe_layers(config_, model_.weights), options, kernels_));
  ffn_ = std::make_unique<LocalFfn>(*block_);
  executor_ = std::make_unique<Executor>(kernels_, *ffn_);
  return {};
}

Result<StepCost> StepModel::run() {
  token_ids_.clear();
  for (uint32_t row = 0; row < plan_.rows(); ++row)
    token_ids_.push_back(static_cast<int32_t>(random_bits(random_++) % config_.vocab_size));
  StepBatch batch;
  batch.step = next_step_++;
  batch.row_class = plan_.all_logits ? RowClass::decode : RowClass::prefill;
  batch.token_ids = token_ids_;
  batch.rows = group_rows_[0];
  batch.group_rows = group_rows_;
  batch.logit_rows = logit_rows_;
  const MoeStats before = block_->stats();
  TANDEM_TRY(executor_->start(*lane_, batch));
  Advance advance = executor_->advance(*lane_);
  while (advance.state == AdvanceState::waiting) {
    executor_->poll();
    advance = executor_->advance(*lane_);
  }
  if (advance.state == AdvanceState::failed) return std::unexpected<Error>(std::move(advance.error));
  {
    const TimeProfile::Scope scope(kernels_.profile(), "sampling");
    SamplingParams greedy;
    greedy.temperature = 0;
    for (uint32_t row = 0; row < logit_rows_.size(); ++row) {
      TANDEM_TRY(sampler_.choose(lane_->logits(row), greedy, 0, {}, {}, 0));
    }
  }
  const MoeStats& after = block_->stats();
  experts_read_ = after.experts_read - before.experts_read;
  return step_cost(config_, model_, built_->kv_layout(), plan_.sequences,
                   static_cast<uint32_t>(logit_rows_.size()), experts_read_,
                   after.expert_rows - before.expert_rows);
}

}  // namespace tandem::bench
