// MatrixReader: rows of a stored tensor as float32 or bfloat16, whatever the file's type and alignment. F32,
// BF16, F16, and F8_E4M3 with one scale a block (`weight_scale_inv`, a multiplier despite its name). Any
// thread; nothing is allocated.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"

namespace tandem {

// Of a matrix; to the last column unless said otherwise.
struct MatrixColumns {
  uint64_t begin = 0, end = UINT64_MAX;
};

class MatrixReader {
 public:
  using Columns = MatrixColumns;
  // `tensor` seen as [product of all dimensions but the last, last]; a vector is one row. unsupported: a type
  // that is not read, named with the tensor. F8_E4M3 needs `scales`, F32 or BF16 [ceil(rows / block_rows),
  // ceil(cols / block_cols)] of this very tensor: the last block of a row or column may be partial.
  static Result<MatrixReader> create(const StoredTensor& tensor, const StoredTensor* scales = nullptr,
                                     uint32_t block_rows = 0, uint32_t block_cols = 0);

  uint64_t rows() const { return rows_; }
  uint64_t cols() const { return cols_; }
  DType dtype() const { return dtype_; }
  const StoredTensor& tensor() const { return tensor_; }

  // out [row_end - row_begin, number of columns], contiguous.
  void read_f32(uint64_t row_begin, uint64_t row_end, float* out, Columns columns = {}) const;
  // The same rounded to bfloat16 (to nearest, ties to even).
  void read_bf16(uint64_t row_begin, uint64_t row_end, uint16_t* out, Columns columns = {}) const;

  // The rows will not be read again soon: gives back the memory of the file's pages.
  void drop_rows(uint64_t row_begin, uint64_t row_end) const;

 private:
  float scale(uint64_t block_row, uint64_t block_col) const;
  // Calls store(index, value) for each element of the rows and columns, index counted from the first.
  template <class Store>
  void read(uint64_t row_begin, uint64_t row_end, Columns columns, Store store) const;
  // The elements as the file has them, `bytes` each.
  void copy(uint64_t row_begin, uint64_t row_end, Columns columns, size_t bytes, void* out) const;

  StoredTensor tensor_;
  DType dtype_ = DType::none, scale_dtype_ = DType::none;
  uint64_t rows_ = 0, cols_ = 0, scale_cols_ = 0;
  uint32_t block_rows_ = 1, block_cols_ = 1;
  const std::byte* data_ = nullptr;
  const std::byte* scales_ = nullptr;
};

// E4M3 ("fn": no infinities, 0x7f and 0xff are NaN) to float32, exact.
float f8_e4m3_to_float(uint8_t bits);

}  // namespace tandem
