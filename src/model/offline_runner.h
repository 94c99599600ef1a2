// OfflineRunner: runs rows of a few sequences through a model in this process, without scheduler, sampler or
// server: what `tandem eval parity` and the tests of the model need. The experts are in the same process,
// behind the same port, gate and shared experts on the side that the options say. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/model.h"
#include "moe/local_ffn.h"
#include "program/executor.h"

namespace tandem {

struct OfflineOptions {
  bool gate_on_attention = false;
  bool shared_on_attention = false;
  SumMode sum_mode = SumMode::plain;
  ActivationFormat activation_format = ActivationFormat::plain;  // quantised: with the gate on attention
  uint32_t capacity = 64;                                        // most rows of a step
  uint32_t sequences = 1;  // each has blocks for tokens_per_sequence from the start
  uint32_t tokens_per_sequence = 0;
  // A port to stand between the executor and the experts, for observers; absent: none. The argument outlives
  // it.
  std::function<std::unique_ptr<FfnPort>(FfnPort&)> wrap_port;
};

// What DSpark drafts behind a token, each token the best of its logits.
struct OfflineBlock {
  std::vector<int32_t> tokens;     // [block]
  std::vector<float> logits;       // [block, vocab]
  std::vector<float> confidences;  // [block]
};

struct OfflineRow {
  uint32_t sequence = 0;
  uint32_t position = 0;
  int32_t token = 0;
};

class OfflineRunner {
 public:
  // `model` and `kernels` outlive the runner.
  static Result<std::unique_ptr<OfflineRunner>> create(const Model& model, KernelRunner& kernels,
                                                       const OfflineOptions& options);

  // One step; its logits [rows, vocab] of every row, valid until the next. Rows of one sequence stand next to
  // each other in order of position. invalid_argument: a sequence or a position beyond what the options gave
  // room for.
  Result<std::span<const float>> run(std::span<const OfflineRow> rows);

  // A round of drafting over the rows of the last `run`, the first ones in their order: the same sequences
  // and positions, and for each the token behind it. Logits of the tokens behind those.
  Result<std::span<const float>> run_drafts(std::span<const OfflineRow> rows);

  // DSpark: the block behind a sequence whose last computed position is `row.position`; row.token is the
  // token behind it. The sequence has room for the block.
  Result<OfflineBlock> draft_block(const OfflineRow& row);

  uint32_t vocab_size() const { return lane_->program().vocab_size(); }
  Lane& lane() { return *lane_; }

 private:
  OfflineRunner() = default;

  OfflineOptions options_;
  // One state group: each sequence has a block of its own for every position, but a table names only those
  // that a serving engine would hold, so that reading beyond a group's retention fails here as well.
  struct Group {
    OwnedBuffer memory;
    uint32_t blocks_per_sequence = 0;
    std::vector<int32_t> blocks;     // [sequences, blocks_per_sequence]
    std::vector<int32_t> tables;     // the same, -1 where the block is out of reach
    std::vector<AttentionRow> rows;  // of the step in work
  };
  Result<std::span<const float>> run_lane(Lane& lane, std::span<const OfflineRow> rows);
  // Tables for a step whose rows of `sequence` begin at `position`.
  void set_tables(uint32_t sequence, uint32_t position);

  std::vector<StateGroupSpec> specs_;
  std::vector<Group> groups_;
  std::unique_ptr<MoeBlock> experts_;  // behind the port
  std::unique_ptr<MoeBlock> local_;    // the parts on attention, if any
  std::unique_ptr<LocalFfn> local_ffn_;
  std::unique_ptr<FfnPort> wrapper_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Lane> lane_, draft_lane_, chain_lane_;
  const ModelConfig* config_ = nullptr;  // the model's
  StepId next_step_ = 1;
  std::vector<int32_t> token_ids_;  // of the step in work
  std::vector<std::span<const AttentionRow>> group_rows_;
  std::vector<uint32_t> logit_rows_;
  std::vector<const float*> hidden_;
  std::vector<KeyRange> key_ranges_;
};

}  // namespace tandem
