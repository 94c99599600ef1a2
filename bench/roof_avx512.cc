#define TANDEM_ISA_NAMESPACE roof_avx512

// The vector type first: what follows is written in its terms.
#include "kernels/isa/simd_avx512.h"

#include "bench/roof_loops.h"

namespace tandem::bench {

extern const RoofLoops kAvx512Roofs;
constinit const RoofLoops kAvx512Roofs = roof_avx512::make_roof_loops("avx512");

}  // namespace tandem::bench
