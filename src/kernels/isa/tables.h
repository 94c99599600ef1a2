// The table of each instruction set. A table may be used only on a CPU that has its instructions.
#pragma once

#include "kernels/kernel_table.h"

namespace tandem {

extern const KernelTable kScalarTable;
#if defined(__x86_64__)
extern const KernelTable kAvx2Table;
extern const KernelTable kAvx512Table;
extern const KernelTable kAvx512Bf16Table;
#endif

}  // namespace tandem
