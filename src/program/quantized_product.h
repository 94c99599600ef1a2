// Products whose weights may be int8: those take int8 rows, so the rows are quantised first, into buffers
// that all products of a program share. With other weights they are the plain operations. One thread builds.
#pragma once

#include <string>

#include "program/operations_basic.h"
#include "program/operations_ffn.h"
#include "program/program.h"

namespace tandem {

// Columns of a dense MLP's intermediate row that share a scale. Of experts it is their slice granule.
inline constexpr uint32_t kDenseScaleBlock = 128;

void append_matmul(ProgramBuilder& builder, const std::string& name, MatmulSpec spec);
void append_dense_mlp(ProgramBuilder& builder, const std::string& name, DenseMlpSpec spec);

}  // namespace tandem
