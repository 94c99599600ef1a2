// Checks a LoadPlan against a checkpoint, headers only: everything that can be wrong is found and named
// before the first weight is read or any memory taken.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/matrix_reader.h"
#include "model/load_plan.h"

namespace tandem {

struct ResolvedTensors {
  std::vector<std::optional<MatrixReader>>
      readers;                              // [claims]; empty where this rank does not need the tensor
  std::vector<const StoredTensor*> tables;  // [tables of the plan]; null where this rank does not need one
  uint64_t stored_bytes = 0;                // of the tensors that this rank reads from, scales included
};

// A tensor `<module>.weight` may have its scales beside it as `<module>.weight_scale_inv` or
// `<module>.scale`; which format it has is decided by its own type. fp4 as I8 has half the columns that the
// plan claims. not_found: a tensor of the plan that the checkpoint lacks. data_loss: one of another shape, or
// one in the checkpoint that the plan does not know. unsupported: a type that is not read, if this rank needs
// it. The plan and the checkpoint outlive the result.
Result<ResolvedTensors> resolve_tensors(const LoadPlan& plan, const Checkpoint& checkpoint,
                                        const ModelConfig& config, const HeldParts& held);

// Tensors that released files carry and that no plan needs, by the plan's spelling: RoPE tables, the layers
// of multi-token prediction and of drafters, and the second copy of a tied embedding.
bool is_ignorable(const std::string& tensor, const ModelConfig& config);

}  // namespace tandem
