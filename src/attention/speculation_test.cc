#include "attention/speculation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>
#include <string>

#include "attention/sampler.h"

namespace tandem {
namespace {

constexpr uint32_t kVocab = 5;
using Row = std::array<float, kVocab>;

// Logits of the next token by the last one. The drafter's are like the model's, but its best token differs in
// half of the rows.
constexpr std::array<Row, kVocab> kModel = {{{1.0f, 0.6f, -0.4f, 0.2f, -1.5f},
                                             {-0.3f, 1.4f, 0.9f, 0.1f, -0.8f},
                                             {0.7f, 0.5f, 0.3f, 0.0f, -0.2f},
                                             {-1.0f, 2.0f, -0.5f, 1.6f, 0.4f},
                                             {0.2f, 0.1f, 0.0f, 1.1f, 1.0f}}};
constexpr std::array<Row, kVocab> kDrafter = {{{0.6f, 1.0f, -0.4f, 0.3f, -1.0f},
                                               {-0.3f, 1.2f, 1.3f, 0.0f, -0.5f},
                                               {0.9f, 0.2f, 0.3f, 0.2f, -0.2f},
                                               {-0.6f, 1.6f, -0.5f, 1.8f, 0.1f},
                                               {0.2f, 0.4f, -0.3f, 1.2f, 0.7f}}};

SamplingParams plain_params() {
  SamplingParams params;
  params.temperature = 0.9f;
  return params;
}

// What SamplingParams make of a row of logits, worked out apart from the sampler.
std::array<double, kVocab> probabilities(const Row& logits, const SamplingParams& params,
                                         std::span<const int32_t> generated = {}) {
  std::array<double, kVocab> p{};
  std::array<double, kVocab> value{};
  for (uint32_t i = 0; i < kVocab; ++i) value[i] = logits[i];
  for (const auto& [token, bias] : params.logit_bias) value[static_cast<size_t>(token)] += bias;
  for (const int32_t token : generated) value[static_cast<size_t>(token)] -= params.frequency_penalty;
  double total = 0;
  for (uint32_t i = 0; i < kVocab; ++i) total += p[i] = std::exp(value[i] / params.temperature);
  std::array<uint32_t, kVocab> order{0, 1, 2, 3, 4};
  std::ranges::sort(order, [&](uint32_t a, uint32_t b) { return p[a] > p[b]; });
  const double best = p[order[0]];
  double sum = 0, kept = 0;
  for (uint32_t rank = 0; rank < kVocab; ++rank) {
    double& mine = p[order[rank]];
    const bool out = (params.top_k > 0 && rank >= static_cast<uint32_t>(params.top_k)) ||
                     sum >= params.top_p * total || mine < params.min_p * best;
    sum += mine;
    if (out) mine = 0;
    kept += mine;
  }
  for (double& each : p) each /= kept;
  return p;
}

using Pair = std::pair<int32_t, int32_t>;

struct Outcome {
  std::map<Pair, int> pairs;        // the first two tokens
  std::map<int32_t, int> rejected;  // the first token, where it is not the draft
  int accepted = 0;                 // first drafts
};

// The first two tokens behind token 0, of `draws` seeds, with two drafts drawn from the drafter's logits.
Outcome generate(const SamplingParams& params, int draws, bool with_drafts = true) {
  Sampler sampler;
  Outcome outcome;
  for (int seed = 0; seed < draws; ++seed) {
    const auto sample = [&](const std::array<Row, kVocab>& logits, std::span<const int32_t> text) {
      TokenHistory history;
      for (size_t i = 1; i < text.size(); ++i) ++history.generated[text[i]];
      return sampler
          .sample(logits[static_cast<size_t>(text.back())], params, static_cast<uint64_t>(seed), history, {},
                  static_cast<uint32_t>(text.size() - 1))
          ->token;
    };
    std::vector<int32_t> text = {0};
    while (text.size() < 3) {
      std::vector<int32_t> seen = text, drafts;
      for (int i = 0; with_drafts && i < 2; ++i) {
        drafts.push_back(sample(kDrafter, seen));
        seen.push_back(drafts.back());
      }
      const bool first = text.size() == 1;
      // The rows were computed before any of them is sampled: row i stands behind the drafts before it.
      const std::vector<int32_t> rows = seen;
      const size_t base = text.size();
      const uint32_t accepted = verify_drafts(drafts, [&](uint32_t row) {
        const std::vector<int32_t> before(rows.begin(), rows.begin() + static_cast<long>(base + row));
        text.push_back(sample(kModel, before));
        return text.back();
      });
      if (first && accepted == 0 && with_drafts) ++outcome.rejected[text[1]];
      if (first) outcome.accepted += accepted > 0 ? 1 : 0;
    }
    ++outcome.pairs[{text[1], text[2]}];
  }
  return outcome;
}

double chi_square(const std::map<Pair, int>& counts, const SamplingParams& params, int draws, int& cells) {
  double sum = 0;
  cells = -1;
  const auto first = probabilities(kModel[0], params);
  for (int32_t a = 0; a < static_cast<int32_t>(kVocab); ++a) {
    const int32_t said[] = {a};
    const auto second = probabilities(kModel[static_cast<size_t>(a)], params, said);
    for (int32_t b = 0; b < static_cast<int32_t>(kVocab); ++b) {
      const double expected = draws * first[static_cast<size_t>(a)] * second[static_cast<size_t>(b)];
      const auto found = counts.find({a, b});
      const double have = found == counts.end() ? 0 : found->second;
      if (expected == 0) {
        EXPECT_EQ(have, 0) << a << ", " << b << " cannot be drawn";
        continue;
      }
      ++cells;
      sum += (have - expected) * (have - expected) / expected;
    }
  }
  return sum;
}

// Beyond this a sum of squares with so many degrees of freedom comes by chance once in a thousand
// (Wilson and Hilferty 1931); the seeds are fixed.
double limit(int degrees) {
  const double k = degrees, z = 3.09;
  return k * std::pow(1 - 2 / (9 * k) + z * std::sqrt(2 / (9 * k)), 3);
}

constexpr int kDraws = 30000;

struct Named {
  std::string name;
  SamplingParams params;
};

std::vector<Named> sampling_cases() {
  std::vector<Named> cases;
  const auto add = [&](const std::string& name, auto change) {
    cases.push_back({name, plain_params()});
    change(cases.back().params);
  };
  add("temperature", [](SamplingParams&) {});
  add("top_k", [](SamplingParams& p) { p.top_k = 3; });
  add("top_p", [](SamplingParams& p) { p.top_p = 0.8f; });
  add("min_p", [](SamplingParams& p) { p.min_p = 0.3f; });
  add("bias and penalty", [](SamplingParams& p) {
    p.logit_bias = {{2, 1.0f}, {1, -0.5f}};
    p.frequency_penalty = 1.2f;
  });
  return cases;
}

TEST(VerifyDrafts, SampledTextHasTheModelsDistribution) {
  for (const auto& [name, params] : sampling_cases()) {
    const Outcome outcome = generate(params, kDraws);
    int degrees = 0;
    const double sum = chi_square(outcome.pairs, params, kDraws, degrees);
    EXPECT_LT(sum, limit(degrees)) << name;
    EXPECT_GT(outcome.accepted, kDraws / 2) << name;
    EXPECT_LT(outcome.accepted, kDraws) << name;
    // Not only in distribution: seed by seed.
    EXPECT_EQ(outcome.pairs, generate(params, kDraws, /*with_drafts=*/false).pairs) << name;
  }
}

// What is left when the draft is refused: p less what was accepted, of both draws with the same numbers.
TEST(VerifyDrafts, RefusedDraftsLeaveTheResidualDistribution) {
  const SamplingParams params = plain_params();
  const Outcome outcome = generate(params, kDraws);
  const auto p = probabilities(kModel[0], params), q = probabilities(kDrafter[0], params);
  double sum = 0, accepted = 0, distance = 0;
  for (uint32_t x = 0; x < kVocab; ++x) {
    double shares = 0;
    for (uint32_t j = 0; j < kVocab; ++j) shares += std::max(p[j] / p[x], q[j] / q[x]);
    accepted += 1 / shares;
    distance += std::abs(p[x] - q[x]) / 2;
    const double expected = kDraws * (p[x] - 1 / shares);
    const auto found = outcome.rejected.find(static_cast<int32_t>(x));
    const double have = found == outcome.rejected.end() ? 0 : found->second;
    sum += (have - expected) * (have - expected) / expected;
  }
  EXPECT_LT(sum, limit(kVocab));
  EXPECT_NEAR(outcome.accepted, kDraws * accepted, 4 * std::sqrt(kDraws));
  EXPECT_GE(accepted, (1 - distance) / (1 + distance));
}

TEST(VerifyDrafts, StopsAtTheFirstDifferenceAndAtTheEndOfTheText) {
  const std::vector<int32_t> text = {7, 8, 9, 4};
  const auto accepted = [&](std::vector<int32_t> drafts, uint32_t ends_after = 99) {
    std::vector<int32_t> said;
    const uint32_t count = verify_drafts(drafts, [&](uint32_t row) -> int32_t {
      EXPECT_EQ(row, said.size());
      said.push_back(text[row]);
      return said.size() == ends_after ? -1 : said.back();
    });
    EXPECT_EQ(said.size(), count + 1);  // one more token than accepted drafts, always
    return count;
  };
  EXPECT_EQ(accepted({}), 0u);
  EXPECT_EQ(accepted({1, 8}), 0u);
  EXPECT_EQ(accepted({7, 1, 9}), 1u);
  EXPECT_EQ(accepted({7, 8, 9}), 3u);
  EXPECT_EQ(accepted({7, 8, 9}, 2), 1u);
  EXPECT_EQ(accepted({7, 8, 9}, 1), 0u);
}

AcceptanceMeter meter(const std::vector<double>& rates) {
  AcceptanceMeter made;
  std::mt19937 random(1);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int i = 0; i < 4000; ++i) {
    uint32_t right = 0;
    while (right < rates.size() && uniform(random) < rates[right]) ++right;
    made.add(static_cast<uint32_t>(rates.size()), right);
  }
  return made;
}

TEST(AcceptanceMeter, RatesAreThoseOfDraftsThatWereTried) {
  const AcceptanceMeter made = meter({0.8, 0.5});
  EXPECT_NEAR(made.rate(0), 0.8, 0.1);
  EXPECT_NEAR(made.rate(1), 0.5, 0.1);
  EXPECT_EQ(made.rate(2), made.rate(1));
  EXPECT_EQ(AcceptanceMeter().rate(0), 0);
  EXPECT_NEAR(expected_tokens(made, 2), 1 + 0.8 + 0.4, 0.2);
  AcceptanceMeter changed = made;
  for (int i = 0; i < 2000; ++i) changed.add(2, 0);
  EXPECT_LT(changed.rate(0), 0.01);
}

TEST(DraftChoice, FollowsAcceptanceAndCosts) {
  struct Case {
    const char* what;
    CostLine step, draft;
    double sequences;
    std::vector<double> rates;
    uint32_t most, current, want;
  };
  const CostLine reads_weights{10, 0.1}, computes{1, 10}, cheap{0.5, 0.05}, dear{20, 0.1};
  const Case cases[] = {
      {"steps that read weights: a second row is nearly free", reads_weights, cheap, 1, {0.7}, 1, 0, 1},
      {"the same, and stays", reads_weights, cheap, 1, {0.7}, 1, 1, 1},
      {"nothing is right", reads_weights, cheap, 1, {0.0}, 1, 1, 0},
      {"rarely right: not begun", reads_weights, cheap, 1, {0.02}, 1, 0, 0},
      {"steps that compute: a second row costs as much as the first", computes, cheap, 8, {0.7}, 1, 1, 0},
      {"a drafter as dear as the model", reads_weights, dear, 1, {0.9}, 1, 1, 0},
      {"a large batch computes", {10, 1}, cheap, 64, {0.6}, 1, 1, 0},
      {"a gain below a twentieth changes nothing", {10, 18.5}, {0, 0}, 1, {0.7}, 1, 0, 0},
      {"and a loss below a twentieth neither", {10, 8.6}, {0, 0}, 1, {0.42}, 1, 1, 1},
      {"more drafts while they are right", reads_weights, cheap, 1, {0.9, 0.9, 0.9, 0.9}, 4, 0, 4},
      {"one of four when only the first is right", reads_weights, cheap, 1, {0.9, 0.01, 0.01, 0.01}, 4, 4, 1},
      {"not more than allowed", reads_weights, cheap, 1, {0.9, 0.9, 0.9, 0.9}, 2, 4, 2},
  };
  for (const Case& each : cases) {
    const DraftCosts costs{each.step, each.draft, DraftRows::kept, each.sequences, meter(each.rates)};
    EXPECT_EQ(draft_choice(costs, each.most, each.current), each.want) << each.what;
  }
}

TEST(DraftChoice, ABlockCostsTheSameHoweverManyDraftsAreKeptOfIt) {
  DraftCosts costs{{10, 1}, {2, 0.5}, DraftRows::block, 3, meter({0.9, 0.9, 0.9, 0.9})};
  EXPECT_DOUBLE_EQ(drafted_step_seconds(costs, 0), 13);
  EXPECT_DOUBLE_EQ(drafted_step_seconds(costs, 1), 10 + 6 + 3.5);
  EXPECT_DOUBLE_EQ(drafted_step_seconds(costs, 4), 10 + 15 + 3.5);
  EXPECT_EQ(draft_choice(costs, 4, 0), 4u);
  costs.draft.fixed = 100;
  EXPECT_EQ(draft_choice(costs, 4, 4), 0u);
}

// A drafter of blocks that is confident of nothing proposes nothing, and costs its blocks all the same.
TEST(DraftPolicy, BlocksOfWhichNothingIsProposedAreTurnedOff) {
  DraftPolicy policy({.num_tokens = 5, .automatic = true}, DraftRows::block);
  EXPECT_EQ(policy.tokens(), 5u);
  for (int i = 0; i < 64; ++i) {
    policy.plan();
    policy.add_step(2, 2, 1.0);
    policy.add_round(2, 0.3);
    for (int sequence = 0; sequence < 2; ++sequence) policy.add_verified(1, 0);
    policy.choose();
  }
  EXPECT_EQ(policy.tokens(), 0u);
}

// A model whose steps cost `fixed` + `per_row` * rows, with drafts of which `right` are right: what the
// policy makes of it. `begins`: whether sequences begin all the time, so that there are some to draft for.
struct Simulation {
  double fixed, per_row, right;
  bool begins = true;
  DraftPolicy policy{{.num_tokens = 1, .automatic = true}, DraftRows::kept};
  std::mt19937 random{3};
  int drafted_steps = 0;

  void run(int steps) {
    std::uniform_real_distribution<double> uniform(0, 1);
    for (int i = 0; i < steps; ++i) {
      const uint32_t sequences = 4, drafts = begins ? policy.plan() : 0;
      const uint32_t rows = sequences * (1 + drafts);
      policy.add_step(sequences, rows, fixed + per_row * rows);
      for (uint32_t s = 0; s < sequences && drafts > 0; ++s)
        policy.add_verified(drafts, uniform(random) < right ? 1 : 0);
      if (policy.tokens() > 0) policy.add_round(sequences, (fixed + per_row * sequences) / 20);
      drafted_steps += drafts > 0 ? 1 : 0;
      policy.choose();
    }
  }
};

TEST(DraftPolicy, StaysWhileItPaysAndStopsWhenItDoesNot) {
  Simulation pays{.fixed = 10, .per_row = 0.1, .right = 0.7};
  pays.run(2000);
  EXPECT_EQ(pays.policy.tokens(), 1u);
  EXPECT_GT(pays.drafted_steps, 1800);
  EXPECT_LT(pays.drafted_steps, 1900);  // some without, to see what they cost

  for (const auto& [per_row, right] : {std::pair(0.1, 0.0), std::pair(10.0, 0.7)}) {
    Simulation wrong{.fixed = 10, .per_row = per_row, .right = right};
    wrong.run(100);
    EXPECT_EQ(wrong.policy.tokens(), 0u) << per_row;
    wrong.run(20000);
    EXPECT_LT(wrong.drafted_steps, 6 * 64) << "it must try again ever more rarely";
    EXPECT_GT(wrong.drafted_steps, 3 * 60);
    wrong.right = 0.9;
    wrong.per_row = 0.1;
    wrong.run(40000);
    EXPECT_EQ(wrong.policy.tokens(), 1u) << "what is written has changed, and with it what pays";
  }
}

TEST(DraftPolicy, AProbeWithoutSequencesEndsAndOneThatIsNotAutomaticNeverChanges) {
  Simulation wrong{.fixed = 10, .per_row = 0.1, .right = 0.0};
  wrong.run(100);
  wrong.begins = false;
  int on = 0;
  for (int i = 0; i < 3000; ++i) {
    wrong.run(1);
    on += wrong.policy.tokens() > 0 ? 1 : 0;
  }
  EXPECT_GT(on, 400);
  EXPECT_LT(on, 600);
  DraftPolicy always({.num_tokens = 2, .automatic = false}, DraftRows::kept);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(always.plan(), 2u);
    always.add_step(1, 3, 100);
    always.add_verified(2, 0);
    EXPECT_FALSE(always.choose());
  }
}

}  // namespace
}  // namespace tandem
