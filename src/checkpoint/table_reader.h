// Reads a stored table of whole numbers, such as expert ids by token id: I64 or I32 in the file, int32 in
// memory, every number checked. Any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"

namespace tandem {

// unsupported: another type, named with the tensor.
Result<void> check_table(const StoredTensor& tensor);

// The table in the file's order. out_of_range: a number that is not in [0, limit), named with the tensor, its
// row and its place in the row.
Result<std::vector<int32_t>> read_table(const StoredTensor& tensor, uint32_t limit);

}  // namespace tandem
