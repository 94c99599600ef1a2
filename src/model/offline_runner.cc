#include "model/offline_runner.h"

#include <string>
#include <utility>

namespace tandem {
namespace {

DType reply_dtype(SumMode mode, DType compute_dtype) {
  return mode == SumMode::deterministic ? DType::f64 : compute_dtype;
}

}  // namespace

Result<std::unique_ptr<OfflineRunner>> OfflineRunner::create(const Model& model, KernelRunner& kernels,
                                                             const OfflineOptions& options) {
  const ModelConfig& config = model.config();
  const PagedKvLayout& layout = model.kv_layout();
  auto runner = std::unique_ptr<OfflineRunner>(new OfflineRunner());
  runner->options_ = options;
  runner->tokens_per_block_ = layout.tokens_per_block;
  runner->blocks_per_sequence_ =
      (options.tokens_per_sequence + layout.tokens_per_block - 1) / layout.tokens_per_block;
  const uint32_t blocks = options.sequences * runner->blocks_per_sequence_;
  if (blocks == 0) {
    return make_error(ErrorCode::invalid_argument,
                      "offline run without sequences or tokens: give room for at least one");
  }
  // Blocks are dealt out one by one and from the end: no table is contiguous or ascending, as after hours of
  // serving.
  runner->block_tables_.resize(blocks);
  int32_t next_block = static_cast<int32_t>(blocks);
  for (uint32_t index = 0; index < runner->blocks_per_sequence_; ++index) {
    for (uint32_t sequence = 0; sequence < options.sequences; ++sequence) {
      runner->block_tables_[size_t{sequence} * runner->blocks_per_sequence_ + index] = --next_block;
    }
  }
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    TANDEM_ASSIGN(OwnedBuffer memory, OwnedBuffer::allocate(size_t{blocks} * layout.block_bytes()));
    runner->caches_.push_back({memory.data(), layout.block_bytes(), layout.tokens_per_block, layout.dtype});
    runner->cache_memory_.push_back(std::move(memory));
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
  TANDEM_ASSIGN(std::shared_ptr<const Program> program,
                model.build({options.capacity, options.capacity}, port->traits(), runner->caches_,
                            runner->local_.get()));
  TANDEM_ASSIGN(runner->lane_, runner->executor_->create_lane(std::move(program), LaneId{0}));
  return runner;
}

Result<std::span<const float>> OfflineRunner::run(std::span<const OfflineRow> rows) {
  token_ids_.clear();
  rows_.clear();
  logit_rows_.clear();
  for (const OfflineRow& row : rows) {
    if (row.sequence >= options_.sequences || row.position >= blocks_per_sequence_ * tokens_per_block_) {
      return make_error(ErrorCode::invalid_argument,
                        "offline run: sequence " + std::to_string(row.sequence) + " position " +
                            std::to_string(row.position) + " where there is room for " +
                            std::to_string(options_.sequences) + " sequences of " +
                            std::to_string(options_.tokens_per_sequence) + " tokens");
    }
    logit_rows_.push_back(static_cast<uint32_t>(rows_.size()));
    token_ids_.push_back(row.token);
    rows_.push_back({block_tables_.data() + size_t{row.sequence} * blocks_per_sequence_, row.position});
  }
  StepBatch batch;
  batch.step = next_step_++;
  batch.row_class = rows.size() == 1 ? RowClass::decode : RowClass::prefill;
  batch.token_ids = token_ids_;
  batch.rows = rows_;
  batch.logit_rows = logit_rows_;
  TANDEM_TRY(executor_->start(*lane_, batch));
  Advance advance = executor_->advance(*lane_);
  while (advance.state == AdvanceState::waiting) {
    executor_->poll();
    advance = executor_->advance(*lane_);
  }
  if (advance.state == AdvanceState::failed) return std::unexpected<Error>(std::move(advance.error));
  return lane_->logits();
}

}  // namespace tandem
