// Rotary position embedding as config.json describes it: both spellings (`rope_theta` with `rope_scaling`,
// and `rope_parameters`), plain and YaRN. Other types are refused by name. RopeConfig itself is in
// model_config.h.
#pragma once

#include "model/config_reader.h"
#include "model/model_config.h"

namespace tandem {

// What a family says about its rotation.
struct RopeDefaults {
  double theta = 10000.0;
  uint32_t dim = 0;  // rotated values of a head
  RopeLayout layout = RopeLayout::half_split;
  uint32_t max_position_embeddings = 0;  // stands in for an absent original_max_position_embeddings
  bool partial = false;  // `dim` is what partial_rotary_factor says; otherwise heads rotate whole
};

// Errors go to `reader`.
RopeConfig parse_rope(ConfigReader& reader, const RopeDefaults& defaults);
// One object with the keys of `rope_scaling` or `rope_parameters`: base and type. `type_may_be_absent`: then
// it is "default".
RopeConfig parse_rope_object(ConfigReader& scaling, const RopeDefaults& defaults, bool type_may_be_absent);

// YaRN's g(m) = 0.1 m ln(factor) + 1, and 1 for a factor up to 1.
double yarn_magnitude(double factor, double mscale);

// What multi-head latent attention multiplies its softmax scale with: g(mscale_all_dim)^2, 1 without YaRN.
// (cos and sin take the ratio g(mscale) / g(mscale_all_dim) instead: RopeConfig::cos_sin_factor.)
double mla_softmax_correction(const RopeConfig& rope);

}  // namespace tandem
