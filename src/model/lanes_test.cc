// Two lanes of one model over one port that is slow, out of order and short of credits: same bits as one lane
// alone. And a step allocates nothing.
#include <gtest/gtest.h>

#include <random>

#include "model/model_test_support.h"
#include "program/allocation_counter.h"

namespace tandem::test {
namespace {

// Holds requests back, passes one on at a time in any order, and refuses a second request of the same moment.
class UnevenPort final : public FfnPort {
 public:
  UnevenPort(FfnPort& inner, uint32_t seed) : inner_(inner), random_(seed) {}
  const FfnTraits& traits() const override { return inner_.traits(); }
  Result<Ticket> submit(const FfnRequest& request) override {
    if (waiting_.size() == 2 || random_() % 3 == 0) return make_error(ErrorCode::would_block, {});
    waiting_.push_back({next_ticket_, request});
    return next_ticket_++;
  }
  size_t poll(std::span<Completion> out) override {
    if (waiting_.empty() || random_() % 3 == 0) return 0;
    const size_t index = random_() % waiting_.size();
    const Result<Ticket> ticket = inner_.submit(waiting_[index].request);
    EXPECT_TRUE(ticket);
    EXPECT_EQ(inner_.poll(out.first(1)), 1u);
    out[0].ticket = waiting_[index].ticket;
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(index));
    return 1;
  }
  void cancel(Ticket ticket) override {
    std::erase_if(waiting_, [ticket](const Waiting& entry) { return entry.ticket == ticket; });
  }
  int wait_fd() const override { return -1; }
  Status health() const override { return {}; }

 private:
  struct Waiting {
    Ticket ticket;
    FfnRequest request;
  };
  FfnPort& inner_;
  std::mt19937 random_;
  std::vector<Waiting> waiting_;
  Ticket next_ticket_ = 1000;
};

// A cache for two sequences and everything that runs over it.
class TwoLanes : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    model_ = load_fixture(GetParam(), DType::bf16);
    sequences_ = make_sequences(model_.config.vocab_size, {kTokens, kTokens});
    memory_ = allocate_state_group(model_.model->state_groups()[0], 0, 2 * kBlocks, caches_).value();
    for (int32_t block = 0; block < static_cast<int32_t>(kBlocks); ++block) {
      tables_[0].push_back(2 * block + 1);
      tables_[1].push_back(2 * block);
    }
    MoeBlockOptions options;
    experts_ = MoeBlock::create(moe_shape(model_.config), moe_layers(model_.config, *model_.weights), options,
                                kernels())
                   .value();
    local_ = std::make_unique<LocalFfn>(*experts_);
  }

  StepBatch batch(uint32_t sequence, uint32_t begin, uint32_t end) {
    std::vector<AttentionRow>& rows = rows_[sequence];
    rows.clear();
    for (uint32_t position = begin; position < end; ++position)
      rows.push_back({tables_[sequence].data(), position});
    StepBatch out;
    out.token_ids = std::span(sequences_[sequence]).subspan(begin, end - begin);
    out.rows = rows;
    wanted_[sequence] = end - begin - 1;
    out.logit_rows = {&wanted_[sequence], 1};
    return out;
  }

  std::shared_ptr<const Program> program(uint32_t capacity) {
    return model_.model->build({capacity, 1}, local_->traits(), caches_, nullptr).value();
  }

  static constexpr uint32_t kTokens = 30, kBlocks = 2;
  TestModel model_;
  std::vector<std::vector<int32_t>> sequences_;
  OwnedBuffer memory_;
  StateCaches caches_;
  std::vector<int32_t> tables_[2];
  std::vector<AttentionRow> rows_[2];
  uint32_t wanted_[2] = {};
  std::unique_ptr<MoeBlock> experts_;
  std::unique_ptr<LocalFfn> local_;
};

TEST_P(TwoLanes, OverAnUnevenPortGiveTheBitsOfOneLaneAlone) {
  // Lane 0 decodes token by token, lane 1 prefills in chunks of 11.
  constexpr uint32_t kChunk[2] = {1, 11};
  std::vector<std::vector<float>> alone[2];
  {
    Executor executor(kernels(), *local_);
    const auto lane = executor.create_lane(program(11), 0).value();
    for (uint32_t sequence = 0; sequence < 2; ++sequence) {
      for (uint32_t begin = 0; begin < kTokens; begin += kChunk[sequence]) {
        ASSERT_TRUE(
            executor.start(*lane, batch(sequence, begin, std::min(kTokens, begin + kChunk[sequence]))));
        ASSERT_EQ(executor.advance(*lane).state, AdvanceState::done);
        alone[sequence].emplace_back(lane->logits().begin(), lane->logits().end());
      }
    }
  }
  for (const uint32_t seed : {1u, 2u, 3u}) {
    UnevenPort port(*local_, seed);
    Executor executor(kernels(), port);
    const std::shared_ptr<const Program> shared_program = program(11);
    std::unique_ptr<Lane> lanes[2] = {executor.create_lane(shared_program, 0).value(),
                                      executor.create_lane(shared_program, 1).value()};
    uint32_t begin[2] = {0, 0};
    size_t finished[2] = {0, 0};
    uint64_t waits = 0;
    while (finished[0] < alone[0].size() || finished[1] < alone[1].size()) {
      for (uint32_t i = 0; i < 2; ++i) {
        if (!lanes[i]->active()) {
          if (begin[i] >= kTokens) continue;
          ASSERT_TRUE(executor.start(*lanes[i], batch(i, begin[i], std::min(kTokens, begin[i] + kChunk[i]))));
          begin[i] += kChunk[i];
        }
        const Advance advance = executor.advance(*lanes[i]);
        ASSERT_NE(advance.state, AdvanceState::failed) << advance.error.message;
        if (advance.state == AdvanceState::waiting) ++waits;
        if (advance.state != AdvanceState::done) continue;
        const std::vector<float>& want = alone[i][finished[i]++];
        ASSERT_EQ(std::memcmp(lanes[i]->logits().data(), want.data(), want.size() * sizeof(float)), 0)
            << "lane " << i << " step " << finished[i];
      }
    }
    EXPECT_GT(waits, 10u);
  }
}

TEST_P(TwoLanes, AStepAllocatesNothing) {
  Executor executor(kernels(), *local_);
  const auto lane = executor.create_lane(program(11), 0).value();
  const auto step = [&](uint32_t begin, uint32_t end) {
    const StepBatch work = batch(0, begin, end);
    const size_t before = allocations_so_far();
    const bool started = executor.start(*lane, work).has_value();
    const AdvanceState state = executor.advance(*lane).state;
    const size_t allocations = allocations_so_far() - before;
    EXPECT_TRUE(started && state == AdvanceState::done);
    return allocations;
  };
  EXPECT_GT(step(0, 11), 0u);  // the first step warms the port's list of completions: the counter counts
  for (uint32_t position = 11; position < 20; ++position) EXPECT_EQ(step(position, position + 1), 0u);
  EXPECT_EQ(step(20, 30), 0u);
}

INSTANTIATE_TEST_SUITE_P(Families, TwoLanes, testing::Values("deepseek_v3", "qwen3_moe"),
                         [](const auto& parameter) { return std::string(parameter.param); });

}  // namespace
}  // namespace tandem::test
