// Whether a run drafts tokens: from the setting `speculative`, the model and what its folder holds. Attention
// and FFN ranks decide alike, each from its own folder; the handshake compares the result. Main thread.
#pragma once

#include <cstdint>

#include "attention/speculation.h"
#include "cli/settings.h"
#include "model/model_config.h"

namespace tandem {

// Makes the draft layers part of `config` (ModelConfig::hold_drafts) where drafts are wanted and possible.
// `auto` says in the log why it does without; `on` refuses by name.
Status settle_drafts(const Settings& settings, ModelConfig& config);

// Most drafts of a sequence in one step: what num_speculative_tokens says, or as many as the drafter was
// trained for, up to kMaxDraftTokens. 0: no drafts are held.
uint32_t drafts_in_a_step(const Settings& settings, const ModelConfig& config);

// Of a drafter of blocks that `config` holds; of size 0 otherwise.
DraftBlock block_of(const ModelConfig& config);

}  // namespace tandem
