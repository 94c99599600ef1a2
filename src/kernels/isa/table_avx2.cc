#define TANDEM_ISA_NAMESPACE isa_avx2

// The vector type first: what follows is written in its terms.
#include "kernels/isa/simd_avx2.h"

#include "kernels/isa/coded_avx2.h"
#include "kernels/isa/int8_avx2.h"
#include "kernels/isa/simd_math.h"

#include "kernels/isa/make_table.h"
#include "kernels/isa/tables.h"

namespace tandem {

constinit const KernelTable kAvx2Table = isa_avx2::make_table("avx2");

}  // namespace tandem
