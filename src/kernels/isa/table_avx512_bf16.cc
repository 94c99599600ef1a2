#define TANDEM_ISA_NAMESPACE isa_avx512_bf16

// The vector type first: what follows is written in its terms.
#include "kernels/isa/simd_avx512.h"

#include "kernels/isa/coded_avx512.h"
#include "kernels/isa/int8_avx512.h"
#include "kernels/isa/simd_math.h"

#include "kernels/isa/make_table.h"
#include "kernels/isa/tables.h"

namespace tandem {

constinit const KernelTable kAvx512Bf16Table = isa_avx512_bf16::make_table("avx512_bf16");

}  // namespace tandem
