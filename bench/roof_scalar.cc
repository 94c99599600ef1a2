#define TANDEM_ISA_NAMESPACE roof_scalar

// The vector type first: what follows is written in its terms.
#include "kernels/isa/simd_scalar.h"

#include "bench/roof_loops.h"

namespace tandem::bench {

extern const RoofLoops kScalarRoofs;
constinit const RoofLoops kScalarRoofs = roof_scalar::make_roof_loops("scalar");

}  // namespace tandem::bench
