// StateGroupSpec: one kind of memory that a sequence needs while it lives, as its model declares it. A
// sequence's state is a set of such groups; today's families declare one paged group.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace tandem {

enum class StateKind : uint8_t {
  paged,    // grows with the sequence, block by block
  window,   // the last tokens only, a ring
  rolling,  // a fixed amount, overwritten as the sequence advances
};

struct StateGroupSpec {
  StateKind kind = StateKind::paged;
  uint32_t tokens_per_block = 0;
  size_t bytes_per_block = 0;   // in one layer
  uint32_t num_layers = 0;      // layers that hold such a block; block b exists in each of them
  uint32_t snapshot_every = 0;  // tokens between states that may be kept for reuse; 0: any position (paged)
  DType dtype = DType::bf16;
};

}  // namespace tandem
