// Whether a MoE block does what the settings of an FFN rank say. Pure, any thread.
#pragma once

#include "afd/split_settings.h"
#include "moe/moe_block.h"

namespace tandem {

// invalid_argument naming what differs: gate, shared experts, dtypes, sums or the model.
Status check_block(const SplitSettings& settings, const MoeBlock& block);

}  // namespace tandem
