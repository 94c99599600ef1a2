// What a frame of each kind may and must carry, on headers and descriptors alone. FrameLayout asks at the
// sender, parse_frame at the receiver: one function for both. Any thread.
//
// Pair rules of activations: bf16 and f32 carry no scale; f8_e4m3 carries f32 scales per 128 values or e8m0
// scales per 32 (mxfp8); i8 carries one f32 scale a row; f8_e5m2 and every other dtype are refused. Routing:
// nothing, token ids, or expert ids with weights. Never two of them. A quantised activation comes with expert
// ids: a router must see the rows before they are rounded.
#pragma once

#include <span>

#include "afd/frame.h"
#include "base/result.h"

namespace tandem {

// `descriptors` holds header.descriptors entries with consistent bytes and offsets. Optional descriptors
// whose role is unknown are skipped; unknown ones that must be understood are refused.
Status check_frame_rules(const FrameHeader& header, std::span<const Descriptor> descriptors);

bool known_role(PayloadRole role);

}  // namespace tandem
