#include "program/quantized_product.h"

#include <utility>

namespace tandem {
namespace {

struct QuantizedRows {
  Tensor values, scales;
};

// Columns [column, column + cols) of `in` as int8, a scale for each block of them (0: one a row).
QuantizedRows append_quantize(ProgramBuilder& builder, const std::string& name, const Tensor& in,
                              uint32_t column, uint32_t cols, uint32_t block_cols) {
  const uint32_t blocks = block_cols == 0 ? 1 : (cols + block_cols - 1) / block_cols;
  const std::string width = std::to_string(cols);
  const QuantizedRows rows = {
      builder.shared_tensor("int8." + width, DType::i8, cols, in.rows),
      builder.shared_tensor("int8." + width + ".scales", DType::f32, blocks, in.rows)};
  builder.append(quantize(name + ".quantize", {.format = ActivationFormat::int8,
                                               .in = in,
                                               .in_column = column,
                                               .values = rows.values,
                                               .scales = rows.scales,
                                               .block_cols = block_cols}));
  return rows;
}

}  // namespace

void append_matmul(ProgramBuilder& builder, const std::string& name, MatmulSpec spec) {
  if (spec.weights.front().format == PackFormat::int8) {
    // The inputs of all heads share the row's scale.
    const auto others = static_cast<uint32_t>(spec.weights.size() - 1);
    const uint32_t cols = spec.weights.front().cols + others * spec.in_batch_stride;
    const QuantizedRows rows = append_quantize(builder, name, spec.in, spec.in_column, cols, 0);
    spec.in = rows.values;
    spec.in_column = 0;
    spec.in_scales = rows.scales;
  }
  builder.append(matmul(name, spec));
}

void append_dense_mlp(ProgramBuilder& builder, const std::string& name, DenseMlpSpec spec) {
  if (spec.weights->gate_up.format == PackFormat::int8) {
    const QuantizedRows rows =
        append_quantize(builder, name + ".gate_up", spec.in, 0, spec.weights->gate_up.cols, 0);
    spec.in = rows.values;
    spec.in_scales = rows.scales;
  }
  builder.append(dense_gate_up(name + ".gate_up", spec));
  if (spec.weights->down.format == PackFormat::int8) {
    const QuantizedRows rows = append_quantize(builder, name + ".down", spec.intermediate, 0,
                                               spec.weights->down.cols, kDenseScaleBlock);
    spec.intermediate = rows.values;
    spec.intermediate_scales = rows.scales;
    spec.scale_block_cols = kDenseScaleBlock;
  }
  builder.append(dense_down(name + ".down", spec));
}

}  // namespace tandem
