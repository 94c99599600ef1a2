#define TANDEM_ISA_NAMESPACE roof_avx2

// The vector type first: what follows is written in its terms.
#include "kernels/isa/simd_avx2.h"

#include "bench/roof_loops.h"

namespace tandem::bench {

extern const RoofLoops kAvx2Roofs;
constinit const RoofLoops kAvx2Roofs = roof_avx2::make_roof_loops("avx2");

}  // namespace tandem::bench
