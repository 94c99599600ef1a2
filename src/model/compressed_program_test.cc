// DeepSeek-V4's state: whatever way a prompt is cut, whoever steps back, and however often a sequence is
// computed again, logits have the bits of token by token. Lengths pass the window, the pools of 4 and 128
// tokens, and the number of entries that the indexer takes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/compressed_state.h"
#include "model/model_test_support.h"

namespace tandem::test {
namespace {

struct Case {
  const char* fixture;
  DType compute_dtype;
};

class CompressedProgram : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    model_ = load_fixture(GetParam().fixture, GetParam().compute_dtype);
    options_.capacity = 513;
    options_.tokens_per_sequence = 513;
    options_.gate_on_attention = true;
  }
  void use(std::vector<size_t> lengths) {
    sequences_ = make_sequences(model_.config.vocab_size, std::move(lengths));
    options_.sequences = static_cast<uint32_t>(sequences_.size());
  }
  AllLogits run(const Steps& steps, const float* poison = nullptr) {
    return run_steps(*model_.model, options_, steps, poison);
  }

  TestModel model_;
  std::vector<std::vector<int32_t>> sequences_;
  OfflineOptions options_;
};

TEST_P(CompressedProgram, AnyChunkingGivesTheBitsOfTokenByToken) {
  use({1, 127, 128, 129, 513});
  const AllLogits reference = run(chunked(sequences_, 1));
  for (const uint32_t chunk : {3u, 64u, 127u, 128u, 129u, 513u}) {
    expect_same_bits(run(chunked(sequences_, chunk)), reference, "chunks of " + std::to_string(chunk));
  }
  const float poison = std::numeric_limits<float>::quiet_NaN();
  for (const uint32_t seed : {1u, 2u}) {
    expect_same_bits(run(mixed(sequences_, options_.capacity, seed), &poison), reference,
                     "mixture " + std::to_string(seed));
  }
}

// As a verifier of drafts does it: some tokens that turn out wrong are computed, and then others in their
// place. At every distance from the ends of the pools of 4 and 128.
TEST_P(CompressedProgram, TokensThatAreTakenBackLeaveNoTrace) {
  use({300});
  const AllLogits reference = run(chunked(sequences_, 1));
  const std::vector<int32_t>& tokens = sequences_[0];
  for (const uint32_t drafts : {1u, 3u, 5u, 8u}) {
    Steps steps;
    for (uint32_t position = 0; position < 300; ++position) {
      steps.push_back({{0, position, tokens[position]}});
      for (uint32_t i = 1; i <= drafts && position + i < 300; ++i) {
        const int32_t wrong = (tokens[position + i] + 1) % static_cast<int32_t>(model_.config.vocab_size);
        steps.back().push_back({0, position + i, wrong});
      }
    }
    const AllLogits all = run(steps);
    // Later steps compute a position's logits again; those of its right token come last.
    expect_same_bits(all, reference, std::to_string(drafts) + " drafts");
  }
}

// A sequence whose state was given back is computed again over whatever others left in its blocks.
TEST_P(CompressedProgram, ASequenceThatIsComputedAgainIsTheSame) {
  use({300, 260});
  const AllLogits reference = run(chunked(sequences_, 1));
  Steps steps;
  const auto compute = [&](uint32_t sequence, uint32_t begin, uint32_t end, uint32_t chunk) {
    for (; begin < end; begin += chunk) {
      steps.push_back(rows_of(sequences_, sequence, begin, std::min(begin + chunk, end)));
    }
  };
  for (const uint32_t preempted : {1u, 125u, 130u, 255u, 259u}) {
    compute(0, 0, preempted, 50);
    compute(1, 0, 260, 33);
    compute(0, 0, preempted, preempted);
    compute(0, preempted, 300, 1);
  }
  expect_same_bits(run(steps), reference, "preempted");
}

// The rows of one step over two lanes: the second reads what the first writes, layer by layer.
TEST_P(CompressedProgram, AStepThatIsSplitOverLanesIsTheSame) {
  use({300});
  const AllLogits reference = run(chunked(sequences_, 1));
  const std::span<const StateGroupSpec> specs = model_.model->state_groups();
  std::vector<OwnedBuffer> memory;
  std::vector<std::vector<int32_t>> tables;
  StateCaches caches;
  for (uint32_t group = 0; group < specs.size(); ++group) {
    const auto blocks = static_cast<uint32_t>(specs[group].blocks_for(300));
    memory.push_back(allocate_state_group(specs[group], group, blocks, caches).value());
    tables.emplace_back();
    for (uint32_t block = 0; block < blocks; ++block) tables.back().push_back(static_cast<int32_t>(block));
  }
  MoeBlockOptions block;
  block.compute_dtype = block.reply_dtype = GetParam().compute_dtype;
  block.routes = false;
  const auto experts =
      MoeBlock::create(moe_shape(model_.config), moe_layers(model_.config, *model_.weights), block, kernels())
          .value();
  block.routes = true;
  block.runs_shared_experts = false;
  const auto local =
      MoeBlock::create(moe_shape(model_.config), moe_layers(model_.config, *model_.weights), block, kernels())
          .value();
  LocalFfn port(*experts);
  const auto program = model_.model->build({100, 100}, port.traits(), caches, local.get()).value();
  Executor executor(kernels(), port);
  std::unique_ptr<Lane> lanes[] = {executor.create_lane(program, 0).value(),
                                   executor.create_lane(program, 1).value()};
  for (const uint32_t cut : {1u, 30u, 90u}) {
    for (uint32_t begin = 0; begin < 300; begin += 100) {
      const uint32_t ends[] = {begin, begin + cut, begin + 100};
      std::vector<std::vector<AttentionRow>> rows[2];
      std::vector<std::span<const AttentionRow>> groups[2];
      std::vector<uint32_t> wanted[2];
      for (uint32_t lane = 0; lane < 2; ++lane) {
        for (const std::vector<int32_t>& table : tables) {
          rows[lane].emplace_back();
          for (uint32_t position = ends[lane]; position < ends[lane + 1]; ++position)
            rows[lane].back().push_back({table.data(), position});
        }
        for (const auto& of_group : rows[lane]) groups[lane].emplace_back(of_group);
        for (uint32_t row = 0; row < groups[lane][0].size(); ++row) wanted[lane].push_back(row);
        StepBatch batch;
        batch.row_class = RowClass::prefill;
        batch.token_ids = std::span(sequences_[0]).subspan(ends[lane], wanted[lane].size());
        batch.rows = groups[lane][0];
        batch.group_rows = groups[lane];
        batch.logit_rows = wanted[lane];
        ASSERT_TRUE(executor.start(*lanes[lane], batch, 0, lane == 1 ? lanes[0].get() : nullptr));
      }
      // The second lane as far as it comes, first; and again after each exchange of the first one.
      for (int turn = 0; lanes[0]->active() || lanes[1]->active(); ++turn) {
        for (const uint32_t lane : {1u, 0u}) {
          if (!lanes[lane]->active()) continue;
          const Advance advance = executor.advance(*lanes[lane]);
          ASSERT_NE(advance.state, AdvanceState::failed) << advance.error.message;
        }
        ASSERT_LT(turn, 1000);
      }
      for (uint32_t lane = 0; lane < 2; ++lane) {
        for (uint32_t row = 0; row < wanted[lane].size(); ++row) {
          const std::vector<float>& want = reference.at({0, ends[lane] + row});
          ASSERT_EQ(std::memcmp(lanes[lane]->logits(row).data(), want.data(), want.size() * sizeof(float)), 0)
              << "position " << ends[lane] + row << ", cut at " << cut;
        }
      }
    }
  }
}

// Of every fixture whose indexer allows it: another model, and still the same bits however it is cut.
TEST_P(CompressedProgram, QatSimulationIsInvariantAndRefusedWhereItMeansNothing) {
  const Result<Model> simulated = Model::create(model_.config, *model_.weights, {.qat_simulation = true});
  if (model_.config.compressed.index_head_dim == 24) {
    ASSERT_FALSE(simulated);
    EXPECT_NE(simulated.error().message.find("engine.qat_simulation: true with index_head_dim 24"),
              std::string::npos)
        << simulated.error().message;
    return;
  }
  ASSERT_TRUE(simulated) << simulated.error().message;
  use({200, 130});
  const AllLogits plain = run(chunked(sequences_, 64));
  const AllLogits reference = run_steps(*simulated, options_, chunked(sequences_, 1));
  expect_same_bits(run_steps(*simulated, options_, chunked(sequences_, 129)), reference, "chunks of 129");
  double most = 0;
  for (const auto& [row, logits] : plain) {
    for (size_t i = 0; i < logits.size(); ++i) {
      most = std::max(most,
                      std::fabs(static_cast<double>(logits[i]) - static_cast<double>(reference.at(row)[i])));
    }
  }
  EXPECT_GT(most, 1e-2) << "nothing was rounded";
  const TestModel other = load_fixture("qwen3_moe", DType::bf16);
  const Result<Model> refused = Model::create(other.config, *other.weights, {.qat_simulation = true});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("engine.qat_simulation: true with qwen3_moe"), std::string::npos)
      << refused.error().message;
}

TEST_P(CompressedProgram, StateGroupsAreThoseOfTheLayers) {
  const std::span<const StateGroupSpec> groups = model_.model->state_groups();
  ASSERT_EQ(groups.size(), 5u);
  const CompressedGroups numbers = compressed_groups(model_.config);
  EXPECT_EQ(groups[numbers.window].name, "window");
  EXPECT_EQ(groups[numbers.window].layers.size(), model_.config.num_layers);
  EXPECT_EQ(groups[numbers.window].retain_tokens, model_.config.compressed.window);
  EXPECT_EQ(groups[numbers.csa_pending].retain_tokens, 8u);
  EXPECT_EQ(groups[numbers.hca_pending].retain_tokens, 128u);
  EXPECT_TRUE(groups[numbers.csa_entries].keeps_all() && groups[numbers.hca_entries].keeps_all());
  for (const StateGroupSpec& group : groups) {
    EXPECT_EQ(kStateAlignment % group.tokens_per_block, 0u) << group.name;
    EXPECT_EQ(group.snapshot_every, kStateAlignment) << group.name;
  }
  for (uint32_t layer = 0; layer < model_.config.num_layers; ++layer) {
    const uint32_t ratio = model_.config.compressed.ratios[layer];
    for (const uint32_t other : {kSparseRatio, kHeavyRatio}) {
      const auto& layers = groups[numbers.entries(other)].layers;
      EXPECT_EQ(std::ranges::find(layers, layer) != layers.end(), ratio == other) << "layer " << layer;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, CompressedProgram,
                         testing::Values(Case{"deepseek_v4", DType::f32}, Case{"deepseek_v4", DType::bf16},
                                         Case{"deepseek_v4_pro", DType::bf16}),
                         [](const auto& parameter) {
                           return std::string(parameter.param.fixture) + "_" +
                                  std::string(dtype_name(parameter.param.compute_dtype));
                         });

}  // namespace
}  // namespace tandem::test
