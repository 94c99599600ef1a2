// Rows as products with int8 weights take them: quantised in every call of a case, as a model does it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/buffer.h"
#include "base/result.h"
#include "kernels/kernel_table.h"

namespace tandem::bench {

class Int8Rows {
 public:
  // Columns of a row that share a scale; 0: all of them.
  static Result<Int8Rows> create(size_t rows, uint32_t cols, uint32_t block_cols) {
    Int8Rows result;
    result.cols_ = cols;
    result.block_cols_ = block_cols;
    result.blocks_ = block_cols == 0 ? 1 : (cols + block_cols - 1) / block_cols;
    TANDEM_ASSIGN(result.values_, OwnedBuffer::allocate(rows * cols));
    TANDEM_ASSIGN(result.scales_, OwnedBuffer::allocate(rows * result.blocks_ * sizeof(float)));
    return result;
  }
  ActivationView quantize(KernelRunner& runner, ActivationView in, uint32_t rows) {
    QuantizeArgs args;
    args.in = in;
    args.format = ActivationFormat::int8;
    args.values = values_.data();
    args.scales = scales_.data();
    args.rows = rows;
    args.cols = cols_;
    args.block_cols = block_cols_;
    runner.run(runner.table().quantize_rows, args);
    return {DType::i8, args.values, cols_, args.format, args.scales, blocks_};
  }

 private:
  OwnedBuffer values_, scales_;
  uint32_t cols_ = 0, block_cols_ = 0;
  size_t blocks_ = 1;
};

}  // namespace tandem::bench
