#include "checkpoint/matrix_reader.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <string_view>

#include "base/bf16.h"
#include "checkpoint/strict_json.h"

namespace tandem {
namespace {

template <class T>
T load(const std::byte* from) {  // the file promises no alignment
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

std::array<float, 256> make_e4m3_table() {
  std::array<float, 256> table{};
  for (int bits = 0; bits < 256; ++bits) {
    const int exponent = (bits >> 3) & 15, mantissa = bits & 7;
    const float magnitude = exponent == 15 && mantissa == 7 ? std::numeric_limits<float>::quiet_NaN()
                            : exponent == 0                 ? std::ldexp(static_cast<float>(mantissa), -9)
                                            : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    table[static_cast<size_t>(bits)] = (bits & 0x80) != 0 ? -magnitude : magnitude;
  }
  return table;
}

const std::array<float, 256> kE4M3 = make_e4m3_table();

constexpr std::array<float, 16> kE2M1 = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                         -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

float e8m0_to_float(uint8_t bits) {
  if (bits == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(bits == 0 ? 0x00400000u : uint32_t{bits} << 23);  // 2^-127 is a denormal
}

uint64_t blocks(uint64_t count, uint32_t block) {
  return (count + block - 1) / block;
}

}  // namespace

float f8_e4m3_to_float(uint8_t bits) {
  return kE4M3[bits];
}

Result<MatrixReader> MatrixReader::create(const StoredTensor& tensor, const StoredTensor* scales,
                                          uint32_t block_rows, uint32_t block_cols) {
  const TensorInfo& info = *tensor.info;
  const auto refuse = [&](ErrorCode code, const std::string& what) {
    return make_error(code,
                      fmt::format("{}: tensor '{}' {}", tensor.file->path(), printable(info.name), what));
  };
  MatrixReader reader;
  reader.tensor_ = tensor;
  reader.dtype_ = info.dtype;
  reader.data_ = tensor.bytes().data();
  reader.rows_ = 1;
  reader.cols_ = info.shape.empty() ? 1 : info.shape.back();
  for (size_t i = 0; i + 1 < info.shape.size(); ++i) reader.rows_ *= info.shape[i];

  const auto refuse_scale = [&](ErrorCode code, const std::string& what) {
    return make_error(
        code, fmt::format("{}: tensor '{}' {}", scales->file->path(), printable(scales->info->name), what));
  };
  // What `scales` must be for blocks of this size.
  const auto take_scales = [&](uint32_t rows, uint32_t cols, std::initializer_list<DType> dtypes,
                               std::string_view readable) -> Status {
    const TensorInfo& scale_info = *scales->info;
    const std::array<uint64_t, 2> expected = {blocks(reader.rows_, rows), blocks(reader.cols_, cols)};
    if (!std::ranges::equal(scale_info.shape, expected)) {
      return refuse_scale(
          ErrorCode::data_loss,
          fmt::format("has the shape {}; '{}' {} in blocks of {} x {} needs {}", shape_text(scale_info.shape),
                      printable(info.name), shape_text(info.shape), rows, cols, shape_text(expected)));
    }
    if (std::ranges::find(dtypes, scale_info.dtype) == dtypes.end()) {
      return refuse_scale(ErrorCode::unsupported,
                          fmt::format("is {}; {}", printable(scale_info.dtype_name), readable));
    }
    reader.scales_ = scales->bytes().data();
    reader.scale_dtype_ = scale_info.dtype;
    reader.scale_cols_ = expected[1];
    reader.block_rows_ = rows;
    reader.block_cols_ = cols;
    return {};
  };

  switch (info.dtype) {
    case DType::f32:
    case DType::bf16:
    case DType::f16:
      if (scales != nullptr) {
        return refuse(ErrorCode::data_loss,
                      fmt::format("is {} and has block scales beside it", info.dtype_name));
      }
      break;
    case DType::f8_e4m3:
      if (scales == nullptr) {
        return refuse(ErrorCode::data_loss, "is F8_E4M3 and has no weight_scale_inv or scale beside it");
      }
      if (info.shape.size() != 2) return refuse(ErrorCode::unsupported, "is F8_E4M3 and not a matrix");
      if (block_rows == 0 || block_cols == 0) {
        return refuse(ErrorCode::unsupported,
                      "is F8_E4M3 and config.json gives no quantization_config with a weight_block_size");
      }
      TANDEM_TRY(take_scales(block_rows, block_cols, {DType::f32, DType::bf16, DType::f8_e8m0},
                             "block scales are read as F32, BF16 or F8_E8M0"));
      reader.codes_ = StoredCodes::fp8;
      break;
    case DType::i8:
    case DType::f4_e2m1:
      if (scales == nullptr) {
        return refuse(ErrorCode::data_loss,
                      fmt::format("is {} and has no scale beside it: fp4 weights come with one F8_E8M0 scale "
                                  "for each {} columns",
                                  info.dtype_name, kFp4BlockCols));
      }
      if (info.shape.size() != 2)
        return refuse(ErrorCode::unsupported, fmt::format("is {} and not a matrix", info.dtype_name));
      if (is_fp4_pairs(info.dtype)) reader.cols_ *= 2;
      if (reader.cols_ % 2 != 0) {
        return refuse(ErrorCode::unsupported,
                      fmt::format("is {} with {} columns: rows of fp4 are read where they begin on a byte",
                                  info.dtype_name, reader.cols_));
      }
      TANDEM_TRY(
          take_scales(1, kFp4BlockCols, {DType::f8_e8m0}, "scales of fp4 weights are read as F8_E8M0"));
      reader.codes_ = StoredCodes::fp4;
      break;
    default:
      return refuse(ErrorCode::unsupported,
                    fmt::format("is {}; weights are read as F32, BF16, F16, F8_E4M3 or fp4 (I8, F4) with "
                                "block scales",
                                printable(info.dtype_name)));
  }
  reader.row_bytes_ =
      reader.codes_ == StoredCodes::fp4 ? reader.cols_ / 2 : dtype_bytes(info.dtype, reader.cols_);
  return reader;
}

Result<MatrixReader> MatrixReader::create_fp4_blocks(const StoredTensor& tensor, const StoredTensor* scales,
                                                     uint64_t cols) {
  constexpr uint64_t kBlockBytes = kFp4BlockCols / 2;
  const TensorInfo& info = *tensor.info;
  const auto refuse = [&](ErrorCode code, const std::string& what) {
    return make_error(code,
                      fmt::format("{}: tensor '{}' {}", tensor.file->path(), printable(info.name), what));
  };
  if (info.dtype != DType::u8 || info.shape.size() < 2 || info.shape.back() != kBlockBytes) {
    return refuse(
        ErrorCode::unsupported,
        fmt::format("is {} {}; blocks of fp4 are read as U8 with {} bytes for each {} columns",
                    printable(info.dtype_name), shape_text(info.shape), kBlockBytes, kFp4BlockCols));
  }
  if (scales == nullptr) return refuse(ErrorCode::data_loss, "has no scales beside it");
  const std::span<const uint64_t> blocks_shape(info.shape.data(), info.shape.size() - 1);
  if (scales->info->dtype != DType::u8 || !std::ranges::equal(scales->info->shape, blocks_shape)) {
    return make_error(
        ErrorCode::data_loss,
        fmt::format("{}: tensor '{}' is {} {}; '{}' {} needs U8, one number for each block",
                    scales->file->path(), printable(scales->info->name), printable(scales->info->dtype_name),
                    shape_text(scales->info->shape), printable(info.name), shape_text(info.shape)));
  }
  MatrixReader reader;
  reader.tensor_ = tensor;
  reader.dtype_ = DType::f4_e2m1;
  reader.data_ = tensor.bytes().data();
  reader.codes_ = StoredCodes::fp4;
  reader.cols_ = cols;
  reader.rows_ = info.bytes() * 2 / cols;
  reader.scales_ = scales->bytes().data();
  reader.scale_dtype_ = DType::f8_e8m0;
  reader.scale_cols_ = cols / kFp4BlockCols;
  reader.block_cols_ = kFp4BlockCols;
  reader.row_bytes_ = cols / 2;
  return reader;
}

Result<MatrixReader> MatrixReader::create_turned(const StoredTensor& tensor, bool interleaved) {
  TANDEM_ASSIGN(MatrixReader reader, create(tensor));
  const std::vector<uint64_t>& shape = tensor.info->shape;
  if (shape.size() != 3 || (interleaved && shape[2] % 2 != 0)) {
    return make_error(
        ErrorCode::data_loss,
        fmt::format("{}: tensor '{}' has the shape {}; a stack of matrices has three dimensions{}",
                    tensor.file->path(), printable(tensor.info->name), shape_text(shape),
                    interleaved ? ", the last of them even" : ""));
  }
  reader.rows_ = shape[0] * shape[2];
  reader.cols_ = shape[1];
  reader.turned_rows_ = shape[2];
  reader.interleaved_ = interleaved;
  reader.row_bytes_ = dtype_bytes(reader.dtype_, reader.cols_);
  return reader;
}

uint64_t MatrixReader::turned_begin(uint64_t row) const {
  const uint64_t matrix = row / turned_rows_, half = turned_rows_ / 2;
  uint64_t at = row % turned_rows_;
  if (interleaved_) at = at < half ? 2 * at : 2 * (at - half) + 1;
  return matrix * turned_rows_ * cols_ + at;
}

Status MatrixReader::check_scales(uint64_t row_begin, uint64_t row_end) const {
  if (codes_ == StoredCodes::none || row_begin >= row_end) return {};
  const uint64_t first = row_begin / block_rows_, last = (row_end - 1) / block_rows_;
  for (uint64_t row = first; row <= last; ++row) {
    for (uint64_t col = 0; col < scale_cols_; ++col) {
      const float value = scale(row, col);
      if (std::isfinite(value)) continue;
      return make_error(ErrorCode::data_loss,
                        fmt::format("{}: tensor '{}' has the scale {} at [{}, {}]: the checkpoint is damaged",
                                    tensor_.file->path(), printable(tensor_.info->name), value, row, col));
    }
  }
  return {};
}

const std::byte* MatrixReader::code_row(uint64_t row, uint64_t col) const {
  return data_ + row * row_bytes_ + (codes_ == StoredCodes::fp4 ? col / 2 : col);
}

void MatrixReader::read_f32_scales(uint64_t row_begin, uint64_t row_end, float* out, Columns columns) const {
  const uint64_t first = columns.begin / block_cols_, end = blocks(std::min(columns.end, cols_), block_cols_);
  for (uint64_t row = row_begin; row < row_end; ++row) {
    for (uint64_t block = first; block < end; ++block) *out++ = scale(row / block_rows_, block);
  }
}

void MatrixReader::read_e8m0_scales(uint64_t row_begin, uint64_t row_end, uint8_t* out,
                                    Columns columns) const {
  const uint64_t first = columns.begin / block_cols_, end = blocks(std::min(columns.end, cols_), block_cols_);
  for (uint64_t row = row_begin; row < row_end; ++row, out += end - first)
    std::memcpy(out, scales_ + row / block_rows_ * scale_cols_ + first, end - first);
}

float MatrixReader::scale(uint64_t block_row, uint64_t block_col) const {
  const uint64_t index = block_row * scale_cols_ + block_col;
  switch (scale_dtype_) {
    case DType::f32:
      return load<float>(scales_ + index * 4);
    case DType::bf16:
      return to_float(load<bf16>(scales_ + index * 2));
    default:  // f8_e8m0
      return e8m0_to_float(static_cast<uint8_t>(scales_[index]));
  }
}

template <class Store>
void MatrixReader::read(uint64_t row_begin, uint64_t row_end, Columns columns, Store store) const {
  uint64_t index = 0;
  const auto each = [&](auto&& value_at) {
    if (is_turned()) {
      // A cache line of the file holds one column of many rows, one of `out` many columns of a row: as many
      // columns at a time as leave both where they are until they are used up.
      constexpr uint64_t kColumns = 16;
      const uint64_t width = columns.end - columns.begin;
      for (uint64_t from = columns.begin; from < columns.end; from += kColumns) {
        const uint64_t to = std::min(columns.end, from + kColumns);
        for (uint64_t row = row_begin; row < row_end; ++row) {
          const uint64_t first = turned_begin(row);
          index = (row - row_begin) * width + from - columns.begin;
          for (uint64_t col = from; col < to; ++col) store(index++, value_at(first + col * turned_rows_));
        }
      }
      return;
    }
    for (uint64_t row = row_begin; row < row_end; ++row) {
      for (uint64_t i = row * cols_ + columns.begin; i < row * cols_ + columns.end; ++i)
        store(index++, value_at(i));
    }
  };
  switch (dtype_) {
    case DType::f32:
      each([&](uint64_t i) { return load<float>(data_ + i * 4); });
      break;
    case DType::bf16:
      each([&](uint64_t i) { return to_float(load<bf16>(data_ + i * 2)); });
      break;
    case DType::f16:
      each([&](uint64_t i) { return half_to_float(load<uint16_t>(data_ + i * 2)); });
      break;
    default:  // codes: `create` lets nothing else through
      for (uint64_t row = row_begin; row < row_end; ++row) {
        for (uint64_t col = columns.begin; col < columns.end;) {
          const uint64_t block = col / block_cols_;
          const float factor = scale(row / block_rows_, block);
          const uint64_t end = std::min<uint64_t>(columns.end, (block + 1) * block_cols_);
          for (; col < end; ++col) {
            const auto byte = static_cast<uint8_t>(*code_row(row, col));
            store(index++,
                  (codes_ == StoredCodes::fp8 ? kE4M3[byte] : kE2M1[byte >> (col % 2 * 4) & 15]) * factor);
          }
        }
      }
  }
}

void MatrixReader::copy(uint64_t row_begin, uint64_t row_end, Columns columns, size_t bytes,
                        void* out) const {
  const uint64_t width = columns.end - columns.begin;
  if (width == cols_) {
    std::memcpy(out, data_ + row_begin * cols_ * bytes, (row_end - row_begin) * cols_ * bytes);
    return;
  }
  auto* to = static_cast<std::byte*>(out);
  for (uint64_t row = row_begin; row < row_end; ++row, to += width * bytes)
    std::memcpy(to, data_ + (row * cols_ + columns.begin) * bytes, width * bytes);
}

void MatrixReader::read_f32(uint64_t row_begin, uint64_t row_end, float* out, Columns columns) const {
  columns.end = std::min(columns.end, cols_);
  if (row_begin >= row_end || columns.begin >= columns.end) return;
  if (dtype_ == DType::f32 && !is_turned()) return copy(row_begin, row_end, columns, 4, out);
  read(row_begin, row_end, columns, [out](uint64_t i, float value) { out[i] = value; });
}

void MatrixReader::read_bf16(uint64_t row_begin, uint64_t row_end, uint16_t* out, Columns columns) const {
  columns.end = std::min(columns.end, cols_);
  if (row_begin >= row_end || columns.begin >= columns.end) return;
  if (dtype_ == DType::bf16 && !is_turned()) return copy(row_begin, row_end, columns, 2, out);
  read(row_begin, row_end, columns, [out](uint64_t i, float value) { out[i] = to_bf16(value).bits; });
}

void MatrixReader::drop_rows(uint64_t row_begin, uint64_t row_end) const {
  if (is_turned()) {
    row_begin = row_begin / turned_rows_ * turned_rows_;
    row_end = (row_end + turned_rows_ - 1) / turned_rows_ * turned_rows_;
  }
  tensor_.file->drop_pages(*tensor_.info, row_begin * row_bytes_, (row_end - row_begin) * row_bytes_);
}

}  // namespace tandem
