#include "model/weight_owners.h"

#include <gtest/gtest.h>

#include "base/buffer.h"
#include "base/thread_pool.h"
#include "kernels/kernel_table.h"

namespace tandem {
namespace {

OwnerPlan two_nodes(int threads) {
  const auto topology = NumaTopology::emulated("numa:2 core:4 pu:1");
  EXPECT_TRUE(topology.has_value());
  return plan_owners(topology->cpus(), threads);
}

// A layer: a projection, then the experts that a rank holds, each gate_up and down.
TEST(WeightOwners, ExpertsInRangesAndTheRestByRows) {
  std::vector<OwnedWeight> weights = {{0, UINT32_MAX, 40960}};
  for (uint32_t expert = 10; expert < 14; ++expert) {
    weights.push_back({0, expert, 2048});
    weights.push_back({0, expert, 1024});
  }
  weights.push_back({1, 3, 512});
  weights.push_back({1, UINT32_MAX, 64});
  const auto parts = own_weights(two_nodes(4), weights);
  using Parts = std::vector<OwnedBytes>;
  EXPECT_EQ(parts[0], (Parts{{0, 20480, 0}, {20480, 40960, 1}}));
  for (size_t i = 1; i <= 4; ++i) EXPECT_EQ(parts[i], (Parts{{0, weights[i].bytes, 0}})) << i;
  for (size_t i = 5; i <= 8; ++i) EXPECT_EQ(parts[i], (Parts{{0, weights[i].bytes, 1}})) << i;
  EXPECT_EQ(parts[9].size(), 1u);
  EXPECT_EQ(parts[10], (Parts{{0, 64, 1}}));  // less than a page
  const auto one = own_weights(plan_owners(std::vector<uint32_t>{4}, 4), weights);
  for (size_t i = 0; i < weights.size(); ++i) EXPECT_EQ(one[i], (Parts{{0, weights[i].bytes, 0}}));
}

class OwnedKernels : public ::testing::Test {
 protected:
  static constexpr uint32_t kHidden = 256, kIntermediate = 512, kExperts = 6;

  void SetUp() override {
    buffer_ = std::move(*OwnedBuffer::allocate(size_t{16} << 20));
    std::vector<OwnedWeight> weights;
    std::byte* at = buffer_.data();
    const auto make = [&](PackArrangement arrangement, uint32_t rows, uint32_t cols, uint32_t expert) {
      const size_t bytes = table_.packed_bytes(PackFormat::f32, arrangement, rows, cols);
      std::vector<float> values(size_t{rows} * cols);
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((i * 37 + expert) % 101) - 50;
      table_.pack(PackFormat::f32, arrangement, rows, cols, 0, rows, DType::f32, values.data(), at);
      PackedWeight weight{PackFormat::f32, arrangement, rows, cols, at, bytes};
      weights.push_back({0, expert, bytes});
      at += bytes;
      return weight;
    };
    dense_ = make(PackArrangement::plain, 1024, kHidden, UINT32_MAX);
    for (uint32_t e = 0; e < kExperts; ++e) {
      gate_up_.push_back(make(PackArrangement::gate_up, 2 * kIntermediate, kHidden, e));
      down_.push_back(make(PackArrangement::plain, kHidden, kIntermediate, e));
    }
    WeightNodes nodes{two_nodes(4),
                      std::make_shared<NumaTopology>(*NumaTopology::emulated("numa:2 core:4 pu:1"))};
    WeightBinder binder(nodes, weights);
    at = buffer_.data();
    for (size_t i = 0; i < weights.size(); at += weights[i++].bytes) binder.bind(i, at);
    owners_ = binder.finish();
    for (size_t i = 0; i < in_.size(); ++i) in_[i] = static_cast<float>(i % 23) - 11;
    // Experts 1 and 4 have rows: one of each node.
    groups_ = {{&gate_up_[1], &down_[1], rows_, slots_, 2},
               {&gate_up_[4], &down_[4], rows_ + 2, slots_ + 2, 1}};
  }

  MatmulArgs matmul(std::vector<float>& out) const {
    MatmulArgs args;
    args.weights = {&dense_, 1};
    args.in = {DType::f32, in_.data(), kHidden};
    args.out = {DType::f32, out.data(), 1024};
    args.rows = 1;
    return args;
  }
  GroupedGateUpArgs gate_up(std::vector<float>& out) const {
    GroupedGateUpArgs args;
    args.groups = groups_;
    args.in = {DType::f32, in_.data(), kHidden};
    args.intermediate = {DType::f32, out.data(), kIntermediate};
    return args;
  }

  const KernelTable& table_ = *runnable_kernel_tables().front();
  OwnedBuffer buffer_;
  PackedWeight dense_;
  std::vector<PackedWeight> gate_up_, down_;
  std::shared_ptr<const MemoryOwners> owners_;
  std::vector<float> in_ = std::vector<float>(3 * kHidden);
  const uint32_t rows_[3] = {0, 1, 2}, slots_[3] = {0, 1, 2};
  std::vector<ExpertGroup> groups_;
};

// A node's tasks are those whose weights it holds.
TEST_F(OwnedKernels, TasksGoWhereTheWeightsAre) {
  std::vector<float> out(3 * 1024);
  const MatmulArgs dense = matmul(out);
  const size_t tasks = table_.matmul.tasks(dense);
  ASSERT_GE(tasks, 4u);
  TaskOwners owners = task_owners(*owners_, dense, tasks);
  EXPECT_EQ(owners.count, 2u);
  EXPECT_EQ(owners.ends[0], tasks / 2);
  EXPECT_EQ(owners.ends[1], tasks);

  const GroupedGateUpArgs grouped = gate_up(out);
  const size_t all = table_.grouped_gate_up.tasks(grouped);
  owners = task_owners(*owners_, grouped, all, table_.grouped_gate_up.tasks);
  GroupedGateUpArgs first = grouped;
  first.groups = first.groups.first(1);
  EXPECT_EQ(owners.ends[0], table_.grouped_gate_up.tasks(first));
  EXPECT_EQ(owners.ends[1], all);

  // Both experts of the second node: it has all tasks.
  groups_[0].gate_up = &gate_up_[3];
  EXPECT_EQ(task_owners(*owners_, gate_up(out), all, table_.grouped_gate_up.tasks).ends[0], 0u);
  EXPECT_EQ(owners_->owner_of(&owners), 0u);
}

// Owners change who computes, not what.
TEST_F(OwnedKernels, SameBitsWithAndWithoutOwners) {
  std::vector<float> plain(3 * 1024), owned(3 * 1024), middle(3 * 1024), owned_middle(3 * 1024);
  ThreadPool alone(1), spread(4, {{0, 0, 1, 1}, {}});
  auto one = KernelRunner::create(table_, alone), two = KernelRunner::create(table_, spread);
  ASSERT_TRUE(one.has_value() && two.has_value());
  two->set_memory_owners(owners_);
  for (int round = 0; round < 20; ++round) {
    one->run(table_.matmul, matmul(plain));
    two->run(table_.matmul, matmul(owned));
    EXPECT_EQ(plain, owned);
    one->run(table_.grouped_gate_up, gate_up(middle));
    two->run(table_.grouped_gate_up, gate_up(owned_middle));
    EXPECT_EQ(middle, owned_middle);
  }
}

}  // namespace
}  // namespace tandem
