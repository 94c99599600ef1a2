// StateCaches: where the blocks of each state group lie in each layer: what a program is built with. It holds
// views; the memory belongs to whoever allocated it and outlives the programs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "kernels/kernel_args.h"
#include "program/state_group.h"

namespace tandem {

class StateCaches {
 public:
  void set(uint32_t group, uint32_t layer, const KvCacheView& view);
  // A view without memory (base null) where nothing was set.
  KvCacheView view(uint32_t group, uint32_t layer) const;

  // invalid_argument naming group and layer: no cache where a group has blocks, or blocks of another size or
  // dtype.
  Status check(std::span<const StateGroupSpec> groups) const;

 private:
  std::vector<std::vector<KvCacheView>> views_;  // [group][layer]
};

// Memory for `num_blocks` blocks of a group in each of its layers, and the views of it. [num_blocks, layers,
// bytes_per_block]; the contents are not set. What a block has in all layers lies together: the kernel gives
// a huge page at its first touch, which takes milliseconds, and so a prompt meets one every few dozen tokens.
// Layer after layer it would meet one of each layer in the same step.
Result<OwnedBuffer> allocate_state_group(const StateGroupSpec& spec, uint32_t group, uint32_t num_blocks,
                                         StateCaches& caches);

}  // namespace tandem
