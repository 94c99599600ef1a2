// MatrixReader: rows of a stored tensor as float32 or bfloat16, whatever the file's type and alignment, or as
// codes and scales where the file has those. F32, BF16, F16; F8_E4M3 with one scale a block
// (`weight_scale_inv`, a multiplier despite its name, or `scale`); fp4 (e2m1, two columns a byte, stored as
// I8 or F4) with one F8_E8M0 scale for each 32 columns of a row, or in gpt-oss' blocks; stacks of matrices
// that lie turned, columns where rows are wanted. Any thread; nothing is allocated.
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

// fp4 scales, whatever config.json says of fp8 blocks.
inline constexpr uint32_t kFp4BlockCols = 32;

enum class StoredCodes : uint8_t {
  none,  // the numbers themselves
  fp8,   // e4m3
  fp4,   // e2m1
};

class MatrixReader {
 public:
  using Columns = MatrixColumns;
  // `tensor` seen as [product of all dimensions but the last, last]; a vector is one row; of I8 the last
  // dimension counts bytes of two columns. unsupported: a type that is not read, named with the tensor.
  // F8_E4M3 needs `scales`, F32, BF16 or F8_E8M0 [ceil(rows / block_rows), ceil(cols / block_cols)] of this
  // very tensor: the last block of a row or column may be partial. fp4 needs F8_E8M0 [rows, ceil(cols / 32)].
  static Result<MatrixReader> create(const StoredTensor& tensor, const StoredTensor* scales = nullptr,
                                     uint32_t block_rows = 0, uint32_t block_cols = 0);

  // fp4 as gpt-oss stores it: U8 [.., blocks of 32 columns, 16], and U8 scales [.., blocks] of e8m0, seen as
  // rows of `cols` columns, a multiple of 32 that divides what the file has.
  static Result<MatrixReader> create_fp4_blocks(const StoredTensor& tensor, const StoredTensor* scales,
                                                uint64_t cols);

  // A stack [matrices, cols, rows] of F32, BF16 or F16, seen as [matrices * rows, cols]. `interleaved`: what
  // alternates in the file comes apart, rows 0, 2, 4, .. of each matrix before 1, 3, 5, ... unsupported: a
  // type that is not read. data_loss: not of three dimensions, or an odd number of rows to come apart.
  static Result<MatrixReader> create_turned(const StoredTensor& tensor, bool interleaved);
  bool is_turned() const { return turned_rows_ != 0; }

  uint64_t rows() const { return rows_; }
  uint64_t cols() const { return cols_; }
  DType dtype() const { return dtype_; }
  StoredCodes codes() const { return codes_; }
  uint32_t block_cols() const { return block_cols_; }  // of scales; 1 without
  DType scale_dtype() const { return scale_dtype_; }   // none: no codes
  const StoredTensor& tensor() const { return tensor_; }

  // out [row_end - row_begin, number of columns], contiguous.
  void read_f32(uint64_t row_begin, uint64_t row_end, float* out, Columns columns = {}) const;
  // The same rounded to bfloat16 (to nearest, ties to even).
  void read_bf16(uint64_t row_begin, uint64_t row_end, uint16_t* out, Columns columns = {}) const;

  // With codes: data_loss, naming the tensor and the place, when a scale of these rows is NaN or infinite. To
  // be asked before the rows are read.
  Status check_scales(uint64_t row_begin, uint64_t row_end) const;
  // With codes: those of a row from column `col` on (even for fp4), and the bytes from row to row.
  const std::byte* code_row(uint64_t row, uint64_t col) const;
  size_t row_bytes() const { return row_bytes_; }
  // Scales of the blocks that the columns touch, for each row: [row_end - row_begin, blocks]. As float32; or
  // as the e8m0 that they are stored as (`scale_dtype`).
  void read_f32_scales(uint64_t row_begin, uint64_t row_end, float* out, Columns columns) const;
  void read_e8m0_scales(uint64_t row_begin, uint64_t row_end, uint8_t* out, Columns columns) const;

  // The rows will not be read again soon: gives back the memory of the file's pages. Of a turned stack those
  // of whole matrices, for each row is on all pages of its own.
  void drop_rows(uint64_t row_begin, uint64_t row_end) const;

 private:
  float scale(uint64_t block_row, uint64_t block_col) const;
  // Calls store(index, value) for each element of the rows and columns, index counted from the first.
  template <class Store>
  void read(uint64_t row_begin, uint64_t row_end, Columns columns, Store store) const;
  // Where in the file column 0 of a row of a turned stack is, in elements; column c is `turned_rows_` * c
  // further.
  uint64_t turned_begin(uint64_t row) const;
  // The elements as the file has them, `bytes` each.
  void copy(uint64_t row_begin, uint64_t row_end, Columns columns, size_t bytes, void* out) const;

  StoredTensor tensor_;
  DType dtype_ = DType::none, scale_dtype_ = DType::none;
  StoredCodes codes_ = StoredCodes::none;
  uint64_t rows_ = 0, cols_ = 0, scale_cols_ = 0;
  size_t row_bytes_ = 0;
  uint64_t turned_rows_ = 0;  // of a matrix of a turned stack; 0: not turned
  bool interleaved_ = false;
  uint32_t block_rows_ = 1, block_cols_ = 1;
  const std::byte* data_ = nullptr;
  const std::byte* scales_ = nullptr;
};

// Whether a matrix of this type has two columns in each element of its shape: fp4 as I8.
inline bool is_fp4_pairs(DType dtype) {
  return dtype == DType::i8;
}

// E4M3 ("fn": no infinities, 0x7f and 0xff are NaN) to float32, exact.
float f8_e4m3_to_float(uint8_t bits);

}  // namespace tandem
