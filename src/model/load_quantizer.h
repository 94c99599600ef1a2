// LoadQuantizer: rows of a stored matrix that is not quantised -> codes and scales of a packed format, with
// what that loses added up for each tensor. Codes depend on the stored tensor alone: where a rank packs a
// part of the columns, the scale is that of all columns that share it (a whole row of int8), which are read
// for it. Any number of threads at once.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "checkpoint/matrix_reader.h"
#include "kernels/weight_quantizer.h"
#include "model/load_plan.h"

namespace tandem {

class LoadQuantizer {
 public:
  // Rows quantised at a time: a panel of the packed weight.
  static constexpr uint32_t kRows = 16;

  // `claims` outlive the quantizer.
  LoadQuantizer(const KernelTable& table, const std::vector<TensorClaim>& claims);

  // Bytes that `quantize` needs for a matrix of so many stored columns.
  static uint64_t scratch_bytes(PackFormat format, uint64_t stored_cols);
  // Rows [from, to), at most kRows, of `columns`, in `scratch`. The rows' scales begin with the block that
  // the first column is in. data_loss: a value is NaN or infinite, named by its tensor.
  Result<CodedRows> quantize(const MatrixReader& reader, size_t claim, PackFormat format, uint64_t from,
                             uint64_t to, MatrixColumns columns, std::byte* scratch);

  // Of the tensors that were quantised, in the order of the claims.
  std::vector<QuantizedTensor> report() const;

 private:
  const KernelTable& table_;
  const std::vector<TensorClaim>& claims_;
  mutable std::mutex mutex_;
  std::vector<QuantizationError> errors_;  // [claims]
  std::vector<PackFormat> formats_;        // [claims]
};

}  // namespace tandem
