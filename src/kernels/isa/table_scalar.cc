#define TANDEM_ISA_NAMESPACE isa_scalar

// The vector type first: what follows is written in its terms.
#include "kernels/isa/simd_scalar.h"

#include "kernels/isa/coded_scalar.h"
#include "kernels/isa/int8_scalar.h"
#include "kernels/isa/simd_math.h"

#include "kernels/isa/make_table.h"
#include "kernels/isa/tables.h"

namespace tandem {

constinit const KernelTable kScalarTable = isa_scalar::make_table("scalar");

}  // namespace tandem
