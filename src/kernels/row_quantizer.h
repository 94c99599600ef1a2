// quantize_rows for a program that brings no kernel table along: the C client (client/), which has everything
// of the wire and nothing of the experts. The code is that of the tables (isa/quantize.h), compiled for every
// CPU; so are the bits. One call does all rows. Any thread.
#pragma once

#include "kernels/kernel_args.h"

namespace tandem {

// `args` as KernelTable::quantize_rows wants them.
void quantize_all_rows(const QuantizeArgs& args);

}  // namespace tandem
