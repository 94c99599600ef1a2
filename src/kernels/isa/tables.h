// The table of each instruction set. A table may be used only on a CPU that has its instructions.
#pragma once

#include "kernels/kernel_table.h"

namespace tandem {

extern const KernelTable kScalarTable;

}  // namespace tandem
