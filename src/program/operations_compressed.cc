#include "program/operations_compressed.h"

#include <cassert>
#include <utility>

namespace tandem {

OperationPtr compress(std::string name, const CompressSpec& spec) {
  assert(spec.norm.size() == spec.dim &&
         spec.position_bias.size() == size_t{spec.ratio} * spec.dim * (spec.overlap ? 2 : 1));
  assert(spec.dim <= kMostEntryDim);
  return make_compute(
      std::move(name),
      [spec](StepContext& step) -> Status {
        CompressArgs args;
        args.pending_rows = step.batch.rows_of(spec.pending_group);
        args.pending = spec.pending;
        args.pending_width = spec.pending_width;
        args.keys_offset = spec.keys_offset;
        args.scores_offset = spec.scores_offset;
        args.position_bias = spec.position_bias.data();
        args.entry_rows = step.batch.rows_of(spec.entries_group);
        args.entries = spec.entries;
        args.entry_offset = spec.entry_offset;
        args.norm = spec.norm.data();
        args.epsilon = spec.epsilon;
        args.cos_sin = step.data<float>(spec.rope);
        args.rope_dim = spec.rope.cols;
        args.ratio = spec.ratio;
        args.dim = spec.dim;
        args.overlap = spec.overlap;
        args.rounding = spec.rounding;
        step.kernels.run(step.kernels.table().compress, args);
        return {};
      },
      OperationKind::attend);
}

OperationPtr trained_rounding(std::string name, const TrainedRoundingSpec& spec) {
  assert(spec.x.dtype == DType::f32);
  return make_compute(std::move(name), [spec](StepContext& step) -> Status {
    TrainedRoundingArgs args;
    args.x = step.data<float>(spec.x);
    args.row_stride = spec.x.cols;
    args.head_stride = spec.head_stride;
    args.rows = step.rows(spec.x);
    args.heads = spec.heads;
    args.cols = spec.cols;
    args.kind = spec.kind;
    args.narrow = spec.narrow;
    step.kernels.run(step.kernels.table().trained_rounding, args);
    return {};
  });
}

OperationPtr index_select(std::string name, const IndexSelectSpec& spec) {
  assert(spec.query.cols == spec.heads * spec.dim && spec.weights.cols == spec.heads);
  assert(spec.selected.dtype == DType::i32 && spec.heads <= kMostIndexHeads && spec.dim <= kMostIndexDim &&
         spec.selected.cols <= kMostIndexTopK);
  return make_compute(
      std::move(name),
      [spec](StepContext& step) -> Status {
        IndexSelectArgs args;
        args.rows = step.batch.rows_of(spec.group);
        args.entries = spec.entries;
        args.key_offset = spec.key_offset;
        args.ratio = spec.ratio;
        args.query = step.data<float>(spec.query);
        args.weights = step.data<float>(spec.weights);
        args.heads = spec.heads;
        args.dim = spec.dim;
        args.top_k = spec.selected.cols;
        args.selected = step.data<int32_t>(spec.selected);
        step.kernels.run(step.kernels.table().index_select, args);
        return {};
      },
      OperationKind::attend);
}

OperationPtr compressed_attention(std::string name, const CompressedAttentionSpec& spec) {
  assert(spec.query.cols == spec.num_heads * spec.head_dim && spec.out.cols == spec.query.cols &&
         spec.sinks.size() == spec.num_heads);
  return make_compute(
      std::move(name),
      [spec](StepContext& step) -> Status {
        CompressedAttentionArgs args;
        args.window_rows = step.batch.rows_of(spec.window_group);
        args.window_cache = spec.window_cache;
        args.window = spec.window;
        if (spec.ranged) args.window_ranges = step.batch.key_ranges;
        if (spec.ratio != 0) {
          args.entry_rows = step.batch.rows_of(spec.entries_group);
          args.entries = spec.entries;
          args.ratio = spec.ratio;
        }
        if (!spec.selected.empty()) {
          args.selected = step.data<int32_t>(spec.selected);
          args.top_k = spec.selected.cols;
        }
        args.query = step.data<float>(spec.query);
        args.query_stride = spec.query.cols;
        args.sinks = spec.sinks.data();
        args.out = step.out(spec.out);
        args.num_heads = spec.num_heads;
        args.head_dim = spec.head_dim;
        args.scale = spec.scale;
        step.kernels.run(step.kernels.table().compressed_attention, args);
        return {};
      },
      OperationKind::attend);
}

}  // namespace tandem
