#include "model/offline_runner.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace tandem {
namespace {

DType reply_dtype(SumMode mode, DType compute_dtype) {
  return mode == SumMode::deterministic ? DType::f64 : compute_dtype;
}

// Blocks are dealt out one by one and from the end: no table is contiguous or ascending, as after hours of
// serving.
std::vector<int32_t> deal_blocks(uint32_t sequences, uint32_t blocks_per_sequence) {
  std::vector<int32_t> blocks(size_t{sequences} * blocks_per_sequence);
  auto next_block = static_cast<int32_t>(blocks.size());
  for (uint32_t index = 0; index < blocks_per_sequence; ++index) {
    for (uint32_t sequence = 0; sequence < sequences; ++sequence)
      blocks[size_t{sequence} * blocks_per_sequence + index] = --next_block;
  }
  return blocks;
}

}  // namespace

Result<std::unique_ptr<OfflineRunner>> OfflineRunner::create(const Model& model, KernelRunner& kernels,
                                                             const OfflineOptions& options) {
  const ModelConfig& config = model.config();
  auto runner = std::unique_ptr<OfflineRunner>(new OfflineRunner());
  runner->options_ = options;
  runner->config_ = &config;
  if (options.sequences == 0 || options.tokens_per_sequence == 0) {
    return make_error(ErrorCode::invalid_argument,
                      "offline run without sequences or tokens: give room for at least one");
  }
  runner->specs_.assign(model.state_groups().begin(), model.state_groups().end());
  StateCaches caches;
  for (uint32_t index = 0; index < runner->specs_.size(); ++index) {
    Group& group = runner->groups_.emplace_back();
    group.blocks_per_sequence =
        static_cast<uint32_t>(runner->specs_[index].blocks_for(options.tokens_per_sequence));
    group.blocks = deal_blocks(options.sequences, group.blocks_per_sequence);
    group.tables = group.blocks;
    TANDEM_ASSIGN(group.memory, allocate_state_group(runner->specs_[index], index,
                                                     static_cast<uint32_t>(group.blocks.size()), caches));
  }

  const std::vector<const MoeLayerWeights*> layers = moe_layers(config, model.weights());
  MoeBlockOptions block_options;
  block_options.routes = !options.gate_on_attention;
  block_options.runs_shared_experts = !options.shared_on_attention;
  block_options.sum_mode = options.sum_mode;
  block_options.compute_dtype = model.weights().compute_dtype;
  block_options.activation_format = options.activation_format;
  block_options.reply_dtype = reply_dtype(options.sum_mode, block_options.compute_dtype);
  TANDEM_ASSIGN(runner->experts_, MoeBlock::create(moe_shape(config), layers, block_options, kernels));
  runner->local_ffn_ = std::make_unique<LocalFfn>(*runner->experts_);
  if (options.gate_on_attention || options.shared_on_attention) {
    block_options.activation_format = ActivationFormat::plain;
    block_options.routes = options.gate_on_attention;
    block_options.runs_shared_experts = options.shared_on_attention;
    TANDEM_ASSIGN(runner->local_, MoeBlock::create(moe_shape(config), layers, block_options, kernels));
  }
  FfnPort* port = runner->local_ffn_.get();
  if (options.wrap_port) {
    runner->wrapper_ = options.wrap_port(*port);
    port = runner->wrapper_.get();
  }
  runner->executor_ = std::make_unique<Executor>(kernels, *port);
  TANDEM_ASSIGN(
      std::shared_ptr<const Program> program,
      model.build({options.capacity, options.capacity}, port->traits(), caches, runner->local_.get()));
  TANDEM_ASSIGN(runner->lane_, runner->executor_->create_lane(std::move(program), LaneId{0}));
  if (config.num_draft_layers > 0) {
    const bool blocks = config.draft.kind == DraftKind::dspark;
    const uint32_t rows = blocks ? config.draft.block_size : options.capacity;
    TANDEM_ASSIGN(std::shared_ptr<const Program> drafts,
                  model.build_drafts({rows, rows}, port->traits(), caches, runner->local_.get()));
    TANDEM_ASSIGN(runner->draft_lane_, runner->executor_->create_lane(std::move(drafts), LaneId{1}));
    if (blocks) {
      TANDEM_ASSIGN(std::shared_ptr<const Program> chain, model.build_draft_chain(1, port->traits(), caches));
      TANDEM_ASSIGN(runner->chain_lane_, runner->executor_->create_lane(std::move(chain), LaneId{2}));
    }
  }
  return runner;
}

void OfflineRunner::set_tables(uint32_t sequence, uint32_t position) {
  for (size_t index = 0; index < groups_.size(); ++index) {
    const StateGroupSpec& spec = specs_[index];
    if (spec.keeps_all()) continue;
    Group& group = groups_[index];
    const uint32_t first =
        position > spec.retain_tokens ? (position - spec.retain_tokens) / spec.tokens_per_block : 0;
    const size_t begin = size_t{sequence} * group.blocks_per_sequence;
    for (uint32_t block = 0; block < group.blocks_per_sequence; ++block)
      group.tables[begin + block] = block < first ? -1 : group.blocks[begin + block];
  }
}

Result<std::span<const float>> OfflineRunner::run(std::span<const OfflineRow> rows) {
  hidden_.clear();
  key_ranges_.clear();
  return run_lane(*lane_, rows);
}

Result<std::span<const float>> OfflineRunner::run_drafts(std::span<const OfflineRow> rows) {
  if (draft_lane_ == nullptr || chain_lane_ != nullptr || rows.size() > token_ids_.size()) {
    return make_error(ErrorCode::invalid_argument,
                      "offline drafts: the model holds none, or more rows than the "
                      "last step had");
  }
  hidden_.clear();
  for (uint32_t row = 0; row < rows.size(); ++row) hidden_.push_back(lane_->hidden(row));
  return run_lane(*draft_lane_, rows);
}

Result<OfflineBlock> OfflineRunner::draft_block(const OfflineRow& row) {
  if (chain_lane_ == nullptr) {
    return make_error(ErrorCode::invalid_argument, "offline drafts: the model holds no drafter of blocks");
  }
  const DraftConfig& draft = config_->draft;
  const uint32_t size = draft.block_size;
  hidden_.clear();
  std::vector<OfflineRow> rows;
  for (uint32_t i = 0; i < size; ++i)
    rows.push_back({row.sequence, row.position + 1 + i, i == 0 ? row.token : draft.noise_token_id});
  key_ranges_.assign(size, block_range(row.position + 1, size, config_->compressed.window));
  TANDEM_TRY(run_lane(*draft_lane_, rows));
  key_ranges_.clear();
  OfflineBlock block;
  int32_t before = row.token;
  for (uint32_t i = 0; i < size; ++i) {
    hidden_ = {draft_lane_->logits(i).data()};
    const OfflineRow link{row.sequence, row.position + 1 + i, before};
    TANDEM_ASSIGN(const std::span<const float> logits, run_lane(*chain_lane_, {&link, 1}));
    before = static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
    block.tokens.push_back(before);
    block.logits.insert(block.logits.end(), logits.begin(), logits.end());
    const float score = *draft_lane_->hidden(i) + *chain_lane_->hidden(0);
    block.confidences.push_back(1 / (1 + std::exp(-score)));
  }
  return block;
}

Result<std::span<const float>> OfflineRunner::run_lane(Lane& lane, std::span<const OfflineRow> rows) {
  token_ids_.clear();
  logit_rows_.clear();
  for (Group& group : groups_) group.rows.clear();
  uint32_t previous = options_.sequences;
  for (const OfflineRow& row : rows) {
    if (row.sequence >= options_.sequences || row.position >= options_.tokens_per_sequence) {
      return make_error(ErrorCode::invalid_argument,
                        "offline run: sequence " + std::to_string(row.sequence) + " position " +
                            std::to_string(row.position) + " where there is room for " +
                            std::to_string(options_.sequences) + " sequences of " +
                            std::to_string(options_.tokens_per_sequence) + " tokens");
    }
    if (row.sequence != previous) set_tables(row.sequence, row.position);
    previous = row.sequence;
    logit_rows_.push_back(static_cast<uint32_t>(token_ids_.size()));
    token_ids_.push_back(row.token);
    for (Group& group : groups_) {
      group.rows.push_back(
          {group.tables.data() + size_t{row.sequence} * group.blocks_per_sequence, row.position});
    }
  }
  group_rows_.clear();
  for (const Group& group : groups_) group_rows_.emplace_back(group.rows);
  StepBatch batch;
  batch.step = next_step_++;
  batch.row_class = rows.size() == 1 ? RowClass::decode : RowClass::prefill;
  batch.token_ids = token_ids_;
  batch.rows = group_rows_[0];
  batch.group_rows = group_rows_;
  batch.logit_rows = logit_rows_;
  batch.hidden = hidden_;
  batch.key_ranges = key_ranges_;
  TANDEM_TRY(executor_->start(lane, batch));
  Advance advance = executor_->advance(lane);
  while (advance.state == AdvanceState::waiting) {
    executor_->poll();
    advance = executor_->advance(lane);
  }
  if (advance.state == AdvanceState::failed) return std::unexpected<Error>(std::move(advance.error));
  return lane.logits();
}

}  // namespace tandem
