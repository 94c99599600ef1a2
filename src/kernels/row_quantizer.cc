#define TANDEM_ISA_NAMESPACE isa_rows

// The vector type first: what follows is written in its terms.
#include "kernels/isa/simd_scalar.h"

#include "kernels/isa/quantize.h"
#include "kernels/row_quantizer.h"

namespace tandem {

void quantize_all_rows(const QuantizeArgs& args) {
  const size_t tasks = isa_rows::quantize_tasks(args);
  for (size_t task = 0; task < tasks; ++task) isa_rows::quantize_run(args, task, nullptr);
}

}  // namespace tandem
