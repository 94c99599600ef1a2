// Each table is one translation unit with its own compiler flags and its own namespace, TANDEM_ISA_NAMESPACE,
// which the .cc file defines first. Without it the linker could merge an AVX-512 copy of a function into the
// scalar table.
#pragma once

#ifndef TANDEM_ISA_NAMESPACE
#error "define TANDEM_ISA_NAMESPACE before any header of kernels/isa"
#endif

#define TANDEM_INLINE [[gnu::always_inline]] inline
// After the parameters of a lambda.
#define TANDEM_LAMBDA_INLINE __attribute__((always_inline))
