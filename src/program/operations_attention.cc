#include "program/operations_attention.h"

#include <cassert>
#include <cmath>
#include <utility>

namespace tandem {

OperationPtr rope_table(std::string name, std::vector<double> inverse_frequencies, double factor,
                        const Tensor& out, uint32_t granule) {
  assert(out.cols == 2 * inverse_frequencies.size() && out.dtype == DType::f32);
  return make_compute(
      std::move(name),
      [frequencies = std::move(inverse_frequencies), factor, out, granule](StepContext& step) -> Status {
        const size_t pairs = frequencies.size();
        step.kernels.pool().run(step.rows(), [&](size_t row, int) {
          float* table = step.data<float>(out) + row * out.cols;
          const uint32_t at = step.batch.rows[row].position;
          const double position = at - at % granule;
          for (size_t i = 0; i < pairs; ++i) {
            const double angle = position * frequencies[i];
            table[i] = static_cast<float>(std::cos(angle) * factor);
            table[pairs + i] = static_cast<float>(std::sin(angle) * factor);
          }
        });
        return {};
      });
}

OperationPtr rope(std::string name, const RopeSpec& spec) {
  assert(spec.x.dtype == DType::f32 && spec.table.dtype == DType::f32);
  return make_compute(std::move(name), [spec](StepContext& step) -> Status {
    RopeArgs args;
    args.x = step.data<float>(spec.x, spec.column);
    args.row_stride = spec.x.cols;
    args.head_stride = spec.head_stride;
    args.cos_sin = step.data<float>(spec.table);
    args.rows = step.rows();
    args.heads = spec.heads;
    args.rope_dim = spec.table.cols;
    args.layout = spec.layout;
    args.inverse = spec.inverse;
    step.kernels.run(step.kernels.table().rope, args);
    return {};
  });
}

OperationPtr kv_write(std::string name, const KvWriteSpec& spec) {
  return make_compute(std::move(name), [spec](StepContext& step) -> Status {
    KvWriteArgs args;
    args.rows = step.batch.rows_of(spec.group);
    args.cache = spec.cache;
    args.first = step.data<float>(spec.first, spec.first_column);
    args.first_stride = spec.first.cols;
    args.first_width = spec.first_width;
    args.second = step.data<float>(spec.second, spec.second_column);
    args.second_stride = spec.second.cols;
    args.second_width = spec.second_width;
    args.num_kv_heads = spec.num_kv_heads;
    step.kernels.run(step.kernels.table().kv_write, args);
    return {};
  });
}

OperationPtr gqa(std::string name, const GqaSpec& spec) {
  assert(spec.out.cols == spec.num_heads * spec.head_dim);
  return make_compute(
      std::move(name),
      [spec](StepContext& step) -> Status {
        GqaArgs args;
        args.rows = step.batch.rows_of(spec.group);
        args.cache = spec.cache;
        args.query = step.data<float>(spec.query, spec.query_column);
        args.query_stride = spec.query.cols;
        args.out = step.out(spec.out);
        args.num_heads = spec.num_heads;
        args.num_kv_heads = spec.num_kv_heads;
        args.head_dim = spec.head_dim;
        args.scale = spec.scale;
        args.window = spec.window;
        args.sinks = spec.sinks.empty() ? nullptr : spec.sinks.data();
        step.kernels.run(step.kernels.table().gqa, args);
        return {};
      },
      OperationKind::attend);
}

}  // namespace tandem
