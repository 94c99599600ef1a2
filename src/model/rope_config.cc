#include "model/rope_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace tandem {
namespace {

// The (fractional) index of the dimension that turns `turns` times over the original context.
double correction_dim(const RopeConfig& rope, const YarnConfig& yarn, double turns) {
  return rope.dim * std::log(yarn.original_max_position / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(static_cast<double>(rope.theta)));
}

std::string rope_type(ConfigReader& scaling, bool type_may_be_absent) {
  const std::string type = scaling.text_or("type", ""), rope_type = scaling.text_or("rope_type", "");
  if (!type.empty() && !rope_type.empty() && type != rope_type) {
    scaling.fail(ErrorCode::invalid_argument, "type",
                 fmt::format("is '{}' and rope_type is '{}'; keep one", type, rope_type));
  }
  std::string name = rope_type.empty() ? type : rope_type;
  if (!name.empty()) return name;
  if (!type_may_be_absent)
    scaling.fail(ErrorCode::invalid_argument, "rope_type", "is missing; default or yarn would do");
  return "default";
}

YarnConfig parse_yarn(ConfigReader& scaling, const RopeDefaults& defaults) {
  YarnConfig yarn;
  yarn.factor = static_cast<float>(scaling.number("factor"));
  if (!(yarn.factor >= 1)) {
    scaling.fail(ErrorCode::invalid_argument, "factor",
                 fmt::format("is {}; a number from 1 would do", scaling.written("factor")));
  }
  yarn.original_max_position =
      scaling.u32_or("original_max_position_embeddings", defaults.max_position_embeddings, 1);
  yarn.beta_fast = static_cast<float>(scaling.positive_or("beta_fast", 32));
  yarn.beta_slow = static_cast<float>(scaling.positive_or("beta_slow", 1));
  yarn.mscale = static_cast<float>(scaling.number_or("mscale", 1));
  yarn.mscale_all_dim = static_cast<float>(scaling.number_or("mscale_all_dim", 0));
  yarn.truncate = scaling.boolean_or("truncate", true);
  if (scaling.has("attention_factor")) {
    yarn.attention_factor = static_cast<float>(scaling.positive_or("attention_factor", 1));
  }
  return yarn;
}

}  // namespace

double yarn_magnitude(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double mla_softmax_correction(const RopeConfig& rope) {
  if (!rope.yarn) return 1.0;
  const double magnitude = yarn_magnitude(rope.yarn->factor, rope.yarn->mscale_all_dim);
  return magnitude * magnitude;
}

double RopeConfig::cos_sin_factor() const {
  if (!yarn) return 1.0;
  if (yarn->attention_factor) return *yarn->attention_factor;
  return yarn_magnitude(yarn->factor, yarn->mscale) / yarn_magnitude(yarn->factor, yarn->mscale_all_dim);
}

std::vector<double> RopeConfig::inverse_frequencies() const {
  const uint32_t pairs = dim / 2;
  std::vector<double> frequencies(pairs);
  double low = 0, high = 0;
  if (yarn) {
    low = correction_dim(*this, *yarn, yarn->beta_fast);
    high = correction_dim(*this, *yarn, yarn->beta_slow);
    if (yarn->truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(dim) - 1);
    if (low == high) high += 0.001;  // a step instead of a ramp; the same width as every implementation takes
  }
  for (uint32_t i = 0; i < pairs; ++i) {
    const double plain = std::pow(static_cast<double>(theta), -2.0 * i / dim);
    frequencies[i] = plain;
    if (yarn) {
      const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
      frequencies[i] = plain / yarn->factor * ramp + plain * (1 - ramp);
    }
  }
  return frequencies;
}

RopeConfig parse_rope_object(ConfigReader& scaling, const RopeDefaults& defaults, bool type_may_be_absent) {
  RopeConfig rope;
  rope.theta = static_cast<float>(scaling.positive_or("rope_theta", defaults.theta));
  rope.dim = defaults.dim;
  rope.layout = defaults.layout;
  if (!defaults.partial && scaling.number_or("partial_rotary_factor", 1) != 1) {
    scaling.fail(
        ErrorCode::unsupported, "partial_rotary_factor",
        fmt::format("is {}; this family rotates whole heads (1)", scaling.written("partial_rotary_factor")));
  }
  constexpr std::array<std::string_view, 12> kKnown = {
      "type",      "rope_type",  "factor",           "original_max_position_embeddings",
      "beta_fast", "beta_slow",  "mscale",           "mscale_all_dim",
      "truncate",  "rope_theta", "attention_factor", "partial_rotary_factor"};
  for (const std::string& name : scaling.keys()) {
    if (std::ranges::find(kKnown, name) == kKnown.end()) {
      scaling.fail(ErrorCode::unsupported, name,
                   "is a key that Tandem does not know, and it may change the rotation");
    }
  }
  const std::string type = rope_type(scaling, type_may_be_absent);
  if (type == "yarn") {
    rope.yarn = parse_yarn(scaling, defaults);
  } else if (type != "default") {
    scaling.fail(ErrorCode::unsupported, "rope_type",
                 fmt::format("is '{}'; default and yarn are implemented", type));
  }
  return rope;
}

RopeConfig parse_rope(ConfigReader& reader, const RopeDefaults& defaults) {
  if (defaults.dim == 0 || defaults.dim % 2 != 0) {
    reader.fail(ErrorCode::unsupported, "head_dim",
                fmt::format("rotates {} values; an even number would do", defaults.dim));
    return {};
  }
  const bool has_parameters = reader.has("rope_parameters"), has_scaling = reader.has("rope_scaling");
  if (has_parameters && has_scaling) {
    reader.fail(ErrorCode::invalid_argument, "rope_scaling", "and rope_parameters are both given; keep one");
  }
  const std::string key = has_parameters ? "rope_parameters" : "rope_scaling";
  ConfigReader scaling = reader.object(key);
  RopeConfig rope = parse_rope_object(scaling, defaults, has_parameters || !has_scaling);

  const double theta = reader.positive_or("rope_theta", scaling.positive_or("rope_theta", defaults.theta));
  rope.theta = static_cast<float>(theta);
  if (scaling.has("rope_theta") && scaling.number_or("rope_theta", theta) != theta) {
    scaling.fail(ErrorCode::invalid_argument, "rope_theta",
                 fmt::format("is {} and the outer rope_theta is {}; keep one", scaling.written("rope_theta"),
                             reader.written("rope_theta")));
  }
  if (rope.theta <= 1) {
    reader.fail(ErrorCode::invalid_argument, "rope_theta",
                fmt::format("is {}; a number above 1 would do", reader.written("rope_theta")));
  }
  if (!defaults.partial && reader.number_or("partial_rotary_factor", 1) != 1) {
    reader.fail(
        ErrorCode::unsupported, "partial_rotary_factor",
        fmt::format("is {}; this family rotates whole heads (1)", reader.written("partial_rotary_factor")));
  }
  return rope;
}

}  // namespace tandem
