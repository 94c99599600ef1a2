#include "moe/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace tandem {
namespace {

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed route_rows(const RouterConfig& config, const std::vector<float>& logits,
                  const std::vector<float>& bias = {}) {
  EXPECT_TRUE(validate_router_config(config).has_value());
  const auto rows = static_cast<uint32_t>(logits.size() / config.num_experts);
  // Poisoned first: a width mix-up or a skipped slot would show.
  Routed routed{std::vector<int32_t>(rows * config.top_k, -999999),
                std::vector<float>(rows * config.top_k, std::numeric_limits<float>::quiet_NaN())};
  route(config, logits, bias, rows, routed.ids, routed.weights);
  return routed;
}

RouterConfig sigmoid_config(uint32_t experts, uint32_t top_k) {
  RouterConfig config;
  config.num_experts = experts;
  config.top_k = top_k;
  config.score = RouterScore::sigmoid;
  config.has_bias = true;
  config.group_score = GroupScore::top2_sum;
  config.renormalize = true;
  return config;
}

TEST(Router, BalancedRoutingGivesEveryExpertTheSameShare) {
  RouterConfig config = sigmoid_config(10, 4);
  config.scaling_factor = 2.0f;
  std::vector<int32_t> counts(config.num_experts);
  uint32_t first = 0;
  for (const uint32_t rows : {1u, 7u, 64u, 28u}) {  // 100 rows in calls of any size
    std::vector<int32_t> ids(size_t{rows} * config.top_k, -1);
    std::vector<float> weights(ids.size(), std::numeric_limits<float>::quiet_NaN());
    first = route_balanced(config, first, rows, ids, weights);
    ASSERT_TRUE(validate_routing(config.num_experts, config.top_k, ids, weights).has_value());
    for (uint32_t row = 0; row < rows; ++row) {
      const auto own = std::span(ids).subspan(size_t{row} * config.top_k, config.top_k);
      for (size_t k = 1; k < own.size(); ++k) ASSERT_NE(own[k], own[0]) << "an expert twice in a row";
    }
    for (const int32_t id : ids) ++counts[static_cast<size_t>(id)];
    EXPECT_EQ(weights[0], 0.5f);
  }
  EXPECT_EQ(counts, std::vector<int32_t>(config.num_experts, 40));
}

TEST(Router, LosingGroupsNeverWinAgainstNegativeScores) {
  RouterConfig config = sigmoid_config(4, 2);
  config.num_groups = 2;
  config.scaling_factor = 2.5f;
  // Every biased score is negative: a group masked with 0 would beat them.
  const Routed routed = route_rows(config, {0, 0, 0, 0}, {-1, -1, -2, -2});
  EXPECT_EQ(routed.ids, (std::vector<int32_t>{0, 1}));
  EXPECT_FLOAT_EQ(routed.weights[0], 1.25f);
  EXPECT_FLOAT_EQ(routed.weights[1], 1.25f);
}

TEST(Router, GroupsAreScoredByTheirTwoBestInV3AndByTheBestInV2) {
  // Group 0 has the best expert, group 1 the better pair.
  const std::vector<float> logits = {3.0f, -4.0f, 2.0f, 2.0f};
  RouterConfig v3 = sigmoid_config(4, 2);
  v3.num_groups = 2;
  EXPECT_EQ(route_rows(v3, logits, {0, 0, 0, 0}).ids, (std::vector<int32_t>{2, 3}));
  RouterConfig v2 = v3;
  v2.score = RouterScore::softmax;
  v2.has_bias = false;
  v2.group_score = GroupScore::max;
  EXPECT_EQ(route_rows(v2, logits).ids, (std::vector<int32_t>{0, 1}));
}

TEST(Router, WeightsComeFromTheUnbiasedScores) {
  const RouterConfig config = sigmoid_config(4, 2);
  const Routed routed = route_rows(config, {-18, -19, 5, 5}, {12, 12, 0, 0});
  EXPECT_EQ(routed.ids, (std::vector<int32_t>{0, 1}));
  EXPECT_NEAR(routed.weights[0], 0.7311, 1e-4);
  EXPECT_NEAR(routed.weights[1], 0.2689, 1e-4);
}

TEST(Router, VanishingScoresStayFinite) {
  const Routed routed = route_rows(sigmoid_config(4, 2), {-200, -200, -200, -200}, {0, 0, 0, 0});
  for (float weight : routed.weights) EXPECT_TRUE(std::isfinite(weight));
}

TEST(Router, ScalingFactorCountsOnce) {
  for (RouterScore score : {RouterScore::softmax, RouterScore::sigmoid, RouterScore::top_k_logits}) {
    for (bool renormalize : {false, true}) {
      RouterConfig config = sigmoid_config(8, 3);
      config.score = score;
      config.has_bias = false;
      config.renormalize = renormalize;
      const std::vector<float> logits = {0.1f, -1, 2, 0.4f, 0.3f, -2, 1.5f, 0.9f};
      const Routed plain = route_rows(config, logits);
      config.scaling_factor = 2.5f;
      const Routed scaled = route_rows(config, logits);
      config.scale_when_renormalized = false;
      const Routed v2 = route_rows(config, logits);
      for (size_t k = 0; k < plain.weights.size(); ++k) {
        EXPECT_FLOAT_EQ(scaled.weights[k], 2.5f * plain.weights[k]);
        EXPECT_FLOAT_EQ(v2.weights[k], (renormalize ? 1.0f : 2.5f) * plain.weights[k]);
      }
    }
  }
}

TEST(Router, TopKLogitsIsSoftmaxThenRenormalised) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(8 * 40);
  for (float& logit : logits) logit = normal(random);
  RouterConfig mixtral;
  mixtral.num_experts = 8;
  mixtral.top_k = 2;
  mixtral.score = RouterScore::top_k_logits;
  RouterConfig softmax = mixtral;
  softmax.score = RouterScore::softmax;
  softmax.renormalize = true;
  const Routed a = route_rows(mixtral, logits);
  const Routed b = route_rows(softmax, logits);
  EXPECT_EQ(a.ids, b.ids);
  for (size_t i = 0; i < a.weights.size(); ++i) EXPECT_NEAR(a.weights[i], b.weights[i], 1e-6);
}

TEST(Router, EqualScoresGoToTheLowerIdAndIdsAreDistinct) {
  EXPECT_EQ(route_rows(sigmoid_config(6, 3), std::vector<float>(6, 0.5f), std::vector<float>(6, 0.0f)).ids,
            (std::vector<int32_t>{0, 1, 2}));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  auto ids = route_rows(sigmoid_config(4, 4), {nan, nan, nan, nan}, {0, 0, 0, 0}).ids;
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 1, 2, 3}));
}

TEST(Router, RowsDoNotInfluenceEachOther) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  RouterConfig config = sigmoid_config(16, 4);
  config.num_groups = 4;
  config.groups_kept = 2;
  std::vector<float> logits(16 * 33);
  std::vector<float> bias(16);
  for (float& logit : logits) logit = normal(random);
  for (float& value : bias) value = normal(random);
  const Routed all = route_rows(config, logits, bias);
  for (size_t row = 0; row < 33; ++row) {
    const Routed one = route_rows(
        config,
        {logits.begin() + static_cast<long>(row) * 16, logits.begin() + static_cast<long>(row + 1) * 16},
        bias);
    for (size_t k = 0; k < 4; ++k) {
      EXPECT_EQ(one.ids[k], all.ids[row * 4 + k]);
      EXPECT_EQ(one.weights[k], all.weights[row * 4 + k]);
    }
  }
}

TEST(Router, RefusesConfigurationsByName) {
  RouterConfig config = sigmoid_config(8, 2);
  config.num_groups = 3;
  EXPECT_NE(validate_router_config(config).error().message.find("8 experts do not divide into 3 groups"),
            std::string::npos);
  config = sigmoid_config(8, 9);
  EXPECT_FALSE(validate_router_config(config).has_value());
  config = sigmoid_config(8, 3);
  config.num_groups = 4;  // one group of two experts cannot give three
  EXPECT_FALSE(validate_router_config(config).has_value());
}

TEST(ValidateRouting, RefusesEachDefectByName) {
  const float inf = std::numeric_limits<float>::infinity();
  const auto message = [](std::vector<int32_t> ids, std::vector<float> weights) {
    const Status status = validate_routing(4, 2, ids, weights);
    return status ? std::string() : status.error().message;
  };
  EXPECT_EQ(message({0, 3, 1, 1}, {0.5f, 0, 1, -1}), "");
  EXPECT_NE(message({0, 4}, {1, 1}).find("expert id 4 of row 0"), std::string::npos);
  EXPECT_NE(message({0, 1, -1, 2}, {1, 1, 1, 1}).find("expert id -1 of row 1"), std::string::npos);
  EXPECT_NE(message({0, 1}, {1, inf}).find("not finite"), std::string::npos);
  EXPECT_NE(message({0, 1}, {1, -std::numeric_limits<float>::quiet_NaN()}).find("not finite"),
            std::string::npos);
  EXPECT_NE(message({0, 1, 2, 3}, {1, 1, 0, 0}).find("row 1"), std::string::npos);
  EXPECT_NE(message({0, 1, 2}, {1, 1, 0}), "");
}

RouterConfig softplus_config() {
  RouterConfig config;
  config.num_experts = 4;
  config.top_k = 2;
  config.score = RouterScore::sqrt_softplus;
  config.has_bias = true;
  config.renormalize = true;
  config.scaling_factor = 1.5f;
  return config;
}

double softplus_score(double logit) {
  return std::sqrt(std::log1p(std::exp(logit)));
}

// DeepSeek-V4: the bias moves the selection, never a weight.
TEST(Router, SquareRootOfSoftplus) {
  const RouterConfig config = softplus_config();
  const std::vector<float> logits = {0.5f, -3.0f, 1.0f, 30.0f};
  const Routed plain = route_rows(config, logits, {0, 0, 0, 0});
  EXPECT_EQ(plain.ids, (std::vector<int32_t>{3, 2}));
  const double first = std::sqrt(30.0), second = softplus_score(1.0);
  EXPECT_NEAR(plain.weights[0], 1.5 * first / (first + second), 1e-6);
  EXPECT_NEAR(plain.weights[1], 1.5 * second / (first + second), 1e-6);
  const Routed biased = route_rows(config, logits, {0, 10, 0, 0});
  EXPECT_EQ(biased.ids, (std::vector<int32_t>{1, 3}));
  const double low = softplus_score(-3.0);
  EXPECT_NEAR(biased.weights[0], 1.5 * low / (first + low), 1e-6);
  // Scores of logits that e^x cannot hold, in either direction.
  const Routed far = route_rows(config, {500.0f, -60.0f, -70.0f, 400.0f}, {0, 0, 0, 0});
  EXPECT_EQ(far.ids, (std::vector<int32_t>{0, 3}));
  EXPECT_NEAR(far.weights[0], 1.5 * std::sqrt(500.0) / (std::sqrt(500.0) + 20), 1e-6);
}

TEST(Router, ByToken) {
  const RouterConfig config = softplus_config();
  const std::vector<int32_t> table = {0, 1, 2, 2, 3, 0};  // three tokens; the second names an expert twice
  const std::vector<int32_t> tokens = {1, 2};
  const std::vector<float> logits = {0.5f, -3.0f, 1.0f, 2.0f, 1.0f, 2.0f, 3.0f, -4.0f};
  std::vector<int32_t> ids(4, -1);
  std::vector<float> weights(4, std::numeric_limits<float>::quiet_NaN());
  route_by_token(config, logits, tokens, table, 2, ids, weights);
  EXPECT_EQ(ids, (std::vector<int32_t>{2, 2, 3, 0}));
  EXPECT_FLOAT_EQ(weights[0], 0.75f);
  EXPECT_FLOAT_EQ(weights[1], 0.75f);
  const double a = softplus_score(-4.0), b = softplus_score(1.0);
  EXPECT_NEAR(weights[2], 1.5 * a / (a + b), 1e-6);
  EXPECT_NEAR(weights[3], 1.5 * b / (a + b), 1e-6);
}

}  // namespace
}  // namespace tandem
