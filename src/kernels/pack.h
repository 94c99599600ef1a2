// Packing of weights, the same for every instruction set (KernelTable::packed_bytes and KernelTable::pack).
// Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/coded_rows.h"
#include "kernels/packed_weight.h"

namespace tandem {

// Bytes of a packed [rows, cols] weight, a multiple of 64.
size_t packed_weight_bytes(PackFormat format, PackArrangement arrangement, uint32_t rows, uint32_t cols);

// See KernelTable::pack.
void pack_weight(PackFormat format, PackArrangement arrangement, uint32_t rows, uint32_t cols,
                 uint32_t row_begin, uint32_t row_end, DType source_dtype, const void* source,
                 std::byte* destination);

// See KernelTable::pack_coded.
PackFault pack_coded_weight(PackFormat format, PackArrangement arrangement, uint32_t rows, uint32_t cols,
                            uint32_t col_phase, uint32_t row_begin, uint32_t row_end, const CodedRows& source,
                            std::byte* destination);

// pack_coded_weight of int8.
PackFault pack_int8_weight(PackArrangement arrangement, uint32_t rows, uint32_t cols, uint32_t row_begin,
                           uint32_t row_end, const CodedRows& source, std::byte* destination);

}  // namespace tandem
