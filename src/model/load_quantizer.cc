#include "model/load_quantizer.h"

#include <fmt/core.h>

#include <algorithm>

namespace tandem {
namespace {

// How the scratch is cut, for rows of `cols` columns.
struct ScratchLayout {
  size_t code_bytes, scale_bytes;  // of a row, of whole floats
  size_t cols;

  ScratchLayout(PackFormat format, uint64_t columns)
      : code_bytes((quantized_code_bytes(format, static_cast<uint32_t>(columns)) + 3) / 4 * 4),
        scale_bytes((quantized_scale_bytes(format, static_cast<uint32_t>(columns)) + 3) / 4 * 4),
        cols(columns) {}
  size_t values() const { return 0; }  // float32 [kRows, cols], then one row of what codes stand for
  size_t codes() const { return (LoadQuantizer::kRows + 1) * cols * sizeof(float); }
  size_t scales() const { return codes() + LoadQuantizer::kRows * code_bytes; }
  size_t bytes() const { return scales() + LoadQuantizer::kRows * scale_bytes; }
};

// The columns whose values decide the codes of `columns`.
MatrixColumns that_share_scales(PackFormat format, MatrixColumns columns, uint64_t cols) {
  columns.end = std::min(columns.end, cols);
  if (format == PackFormat::int8) return {0, cols};
  const uint64_t block = scale_block_cols(format);
  return {columns.begin / block * block, std::min(cols, (columns.end + block - 1) / block * block)};
}

}  // namespace

LoadQuantizer::LoadQuantizer(const KernelTable& table, const std::vector<TensorClaim>& claims)
    : table_(table), claims_(claims), errors_(claims.size()), formats_(claims.size()) {}

uint64_t LoadQuantizer::scratch_bytes(PackFormat format, uint64_t stored_cols) {
  return ScratchLayout(format, stored_cols).bytes();
}

Result<CodedRows> LoadQuantizer::quantize(const MatrixReader& reader, size_t claim, PackFormat format,
                                          uint64_t from, uint64_t to, MatrixColumns columns,
                                          std::byte* scratch) {
  const MatrixColumns read = that_share_scales(format, columns, reader.cols());
  const auto width = static_cast<uint32_t>(read.end - read.begin);
  const ScratchLayout layout(format, width);
  float* values = reinterpret_cast<float*>(scratch + layout.values());
  float* back = values + size_t{kRows} * width;
  std::byte* codes = scratch + layout.codes();
  std::byte* scales = scratch + layout.scales();
  reader.read_f32(from, to, values, read);
  // What is packed: the others only decide its scales.
  const uint64_t first = columns.begin - read.begin;
  const auto count = static_cast<uint32_t>(std::min(columns.end, reader.cols()) - columns.begin);
  QuantizationError lost;
  for (uint64_t row = 0; row < to - from; ++row) {
    const float* in = values + row * width;
    if (!quantize_weight_row(table_, format, in, width, codes + row * layout.code_bytes,
                             scales + row * layout.scale_bytes, back)) {
      return make_error(
          ErrorCode::data_loss,
          fmt::format("{}: tensor '{}' has a value that is NaN or infinite in row {} and cannot "
                      "be quantised to {}",
                      reader.tensor().file->path(), claims_[claim].tensor, from + row,
                      pack_format_name(format)));
    }
    lost.add(quantization_error(in + first, back + first, count));
  }
  const std::lock_guard lock(mutex_);
  errors_[claim].add(lost);
  formats_[claim] = format;
  const size_t scale_element =
      format == PackFormat::int8 || format == PackFormat::fp8_block ? sizeof(float) : 1;
  return CodedRows{codes + quantized_code_bytes(format, static_cast<uint32_t>(first)), layout.code_bytes,
                   scales, layout.scale_bytes / scale_element};
}

std::vector<QuantizedTensor> LoadQuantizer::report() const {
  const std::lock_guard lock(mutex_);
  std::vector<QuantizedTensor> tensors;
  for (size_t i = 0; i < errors_.size(); ++i) {
    if (errors_[i].elements != 0) tensors.push_back({claims_[i].tensor, formats_[i], errors_[i]});
  }
  return tensors;
}

}  // namespace tandem
