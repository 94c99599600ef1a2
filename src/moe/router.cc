#include "moe/router.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

namespace tandem {
namespace {

// More experts than any published model has; bounds the stack buffers below.
constexpr uint32_t kMaxExperts = 1024;
constexpr float kNever = -std::numeric_limits<float>::infinity();
// transformers and the reference add it so that a row of vanishing scores stays finite.
constexpr float kDenominatorGuard = 1e-20f;

using Scores = std::array<float, kMaxExperts>;

void softmax(std::span<const float> logits, std::span<float> out) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  float sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) sum += out[i] = std::exp(logits[i] - largest);
  for (float& value : out) value /= sum;
}

// log(1 + e^x). From 20 on, x itself in float32.
float softplus(float x) {
  return x > 20.0f ? x : std::log1p(std::exp(x));
}

// What each expert is worth as a weight, before selection.
void score_row(RouterScore kind, std::span<const float> logits, std::span<float> scores) {
  switch (kind) {
    case RouterScore::softmax:
      softmax(logits, scores);
      return;
    case RouterScore::sigmoid:
      for (size_t i = 0; i < logits.size(); ++i) scores[i] = 1.0f / (1.0f + std::exp(-logits[i]));
      return;
    case RouterScore::sqrt_softplus:
      for (size_t i = 0; i < logits.size(); ++i) scores[i] = std::sqrt(softplus(logits[i]));
      return;
    case RouterScore::top_k_logits:
      std::copy(logits.begin(), logits.end(), scores.begin());
      return;
  }
}

float group_value(GroupScore kind, std::span<const float> members) {
  float best = kNever;
  float second = kNever;
  for (float value : members) {
    if (value > best) {
      second = best;
      best = value;
    } else if (value > second) {
      second = value;
    }
  }
  // A group of one expert has no second best.
  return kind == GroupScore::max || members.size() < 2 ? best : best + second;
}

// Losing groups become unselectable: -inf, not 0, which could win against negative biased scores.
void drop_groups(const RouterConfig& config, std::span<float> selection) {
  const uint32_t size = config.num_experts / config.num_groups;
  Scores values;
  std::array<bool, kMaxExperts> kept{};
  for (uint32_t g = 0; g < config.num_groups; ++g)
    values[g] = group_value(config.group_score, selection.subspan(g * size, size));
  for (uint32_t round = 0; round < config.groups_kept; ++round) {
    uint32_t best = config.num_groups;
    for (uint32_t g = 0; g < config.num_groups; ++g) {
      if (!kept[g] && (best == config.num_groups || values[g] > values[best])) best = g;
    }
    kept[best] = true;
  }
  for (uint32_t g = 0; g < config.num_groups; ++g) {
    if (!kept[g]) std::fill_n(selection.begin() + g * size, size, kNever);
  }
}

// NaN compares false with everything and would never be chosen; a row of NaN still gets top_k distinct ids.
void select(std::span<float> selection, std::span<int32_t> ids) {
  std::array<bool, kMaxExperts> taken{};
  for (int32_t& id : ids) {
    size_t best = selection.size();
    for (size_t e = 0; e < selection.size(); ++e) {
      if (!taken[e] && (best == selection.size() || selection[e] > selection[best])) best = e;
    }
    taken[best] = true;
    id = static_cast<int32_t>(best);
  }
}

void weigh(const RouterConfig& config, std::span<const float> scores, std::span<const int32_t> ids,
           std::span<float> weights) {
  for (size_t k = 0; k < ids.size(); ++k) weights[k] = scores[static_cast<size_t>(ids[k])];
  if (config.score == RouterScore::top_k_logits) {
    softmax(std::span<const float>(weights), weights);
  } else if (config.renormalize) {
    float sum = 0;
    for (float weight : weights) sum += weight;
    for (float& weight : weights) weight /= sum + kDenominatorGuard;
  }
  if (config.renormalize && !config.scale_when_renormalized) return;
  for (float& weight : weights) weight *= config.scaling_factor;
}

}  // namespace

void route(const RouterConfig& config, std::span<const float> logits, std::span<const float> bias,
           uint32_t rows, std::span<int32_t> ids, std::span<float> weights) {
  Scores score_storage;
  Scores selection_storage;
  const size_t experts = config.num_experts;
  const std::span<float> scores(score_storage.data(), experts);
  const std::span<float> selection(selection_storage.data(), experts);
  for (uint32_t r = 0; r < rows; ++r) {
    score_row(config.score, logits.subspan(r * experts, experts), scores);
    std::copy(scores.begin(), scores.end(), selection.begin());
    if (config.has_bias) {
      for (size_t e = 0; e < experts; ++e) selection[e] += bias[e];
    }
    if (config.num_groups > 1) drop_groups(config, selection);
    const auto row_ids = ids.subspan(size_t{r} * config.top_k, config.top_k);
    select(selection, row_ids);
    weigh(config, scores, row_ids, weights.subspan(size_t{r} * config.top_k, config.top_k));
  }
}

void route_by_token(const RouterConfig& config, std::span<const float> logits,
                    std::span<const int32_t> tokens, std::span<const int32_t> table, uint32_t rows,
                    std::span<int32_t> ids, std::span<float> weights) {
  Scores storage;
  const size_t experts = config.num_experts, top_k = config.top_k;
  const std::span<float> scores(storage.data(), experts);
  for (uint32_t r = 0; r < rows; ++r) {
    score_row(config.score, logits.subspan(r * experts, experts), scores);
    const auto chosen = ids.subspan(r * top_k, top_k);
    std::ranges::copy(table.subspan(static_cast<size_t>(tokens[r]) * top_k, top_k), chosen.begin());
    weigh(config, scores, chosen, weights.subspan(r * top_k, top_k));
  }
}

uint32_t route_balanced(const RouterConfig& config, uint32_t first, uint32_t rows, std::span<int32_t> ids,
                        std::span<float> weights) {
  const float weight = config.scaling_factor / static_cast<float>(config.top_k);
  for (size_t i = 0; i < size_t{rows} * config.top_k; ++i) {
    ids[i] = static_cast<int32_t>(first);
    weights[i] = weight;
    first = first + 1 == config.num_experts ? 0 : first + 1;
  }
  return first;
}

Status validate_router_config(const RouterConfig& config) {
  const auto refuse = [](const std::string& what) {
    return make_error(ErrorCode::invalid_argument, "router: " + what);
  };
  if (config.num_experts == 0 || config.num_experts > kMaxExperts) {
    return refuse("num_experts " + std::to_string(config.num_experts) + " is not in 1.." +
                  std::to_string(kMaxExperts));
  }
  if (config.top_k == 0 || config.top_k > config.num_experts) {
    return refuse("top_k " + std::to_string(config.top_k) + " is not in 1.." +
                  std::to_string(config.num_experts));
  }
  if (config.num_groups == 0 || config.num_experts % config.num_groups != 0) {
    return refuse(std::to_string(config.num_experts) + " experts do not divide into " +
                  std::to_string(config.num_groups) + " groups");
  }
  if (config.groups_kept == 0 || config.groups_kept > config.num_groups) {
    return refuse("topk_group " + std::to_string(config.groups_kept) + " is not in 1.." +
                  std::to_string(config.num_groups));
  }
  if (config.groups_kept * (config.num_experts / config.num_groups) < config.top_k) {
    return refuse("top_k " + std::to_string(config.top_k) + " is more than the experts of the groups kept");
  }
  return {};
}

Status validate_routing(uint32_t num_experts, uint32_t top_k, std::span<const int32_t> ids,
                        std::span<const float> weights, EmptyRows empty_rows) {
  if (top_k == 0 || ids.size() % top_k != 0 || ids.size() != weights.size()) {
    return make_error(ErrorCode::invalid_argument, "routing of " + std::to_string(ids.size()) + " ids and " +
                                                       std::to_string(weights.size()) +
                                                       " weights with top_k " + std::to_string(top_k));
  }
  for (size_t row = 0; row < ids.size() / top_k; ++row) {
    bool any = false;
    for (size_t i = row * top_k; i < (row + 1) * top_k; ++i) {
      if (ids[i] < 0 || static_cast<uint32_t>(ids[i]) >= num_experts) {
        return make_error(ErrorCode::invalid_argument,
                          "routing: expert id " + std::to_string(ids[i]) + " of row " + std::to_string(row) +
                              " is not in 0.." + std::to_string(num_experts - 1));
      }
      if (!std::isfinite(weights[i])) {
        return make_error(ErrorCode::invalid_argument, "routing: the weight of expert " +
                                                           std::to_string(ids[i]) + " in row " +
                                                           std::to_string(row) + " is not finite");
      }
      any = any || weights[i] != 0.0f;
    }
    if (!any && empty_rows == EmptyRows::refused) {
      return make_error(ErrorCode::invalid_argument,
                        "routing: all weights of row " + std::to_string(row) + " are 0");
    }
  }
  return {};
}

}  // namespace tandem
