#include "base/numa.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <numeric>
#include <thread>

#include "base/buffer.h"
#include "base/thread_pool.h"

namespace tandem {
namespace {

TEST(Numa, TopologyComesFromADescription) {
  const auto two = NumaTopology::emulated("numa:2 core:4 pu:2");
  ASSERT_TRUE(two.has_value()) << two.error().message;
  EXPECT_EQ(std::vector<uint32_t>(two->cpus().begin(), two->cpus().end()), (std::vector<uint32_t>{8, 8}));
  EXPECT_FALSE(two->can_bind());
  const auto none = NumaTopology::emulated("two nodes, please");
  ASSERT_FALSE(none.has_value());
  EXPECT_NE(none.error().message.find("'two nodes, please' describes no machine"), std::string::npos);
}

TEST(Numa, ThisMachineHasNodesAndTakesBindings) {
  const auto machine = NumaTopology::detect();
  ASSERT_TRUE(machine.has_value()) << machine.error().message;
  ASSERT_FALSE(machine->cpus().empty());
  if (!machine->can_bind()) GTEST_SKIP() << "an emulated machine";
  auto buffer = OwnedBuffer::allocate(4 << 20);
  ASSERT_TRUE(buffer.has_value());
  // A container may forbid it; that has a reason in words and no other effect.
  const Status memory = machine->bind_memory(buffer->data(), buffer->size(), 0);
  if (!memory) {
    EXPECT_EQ(memory.error().message.find("NUMA: memory cannot be bound: "), 0u) << memory.error().message;
  }
  std::thread([&] {
    const Status bound = machine->bind_thread(0);
    cpu_set_t set;
    CPU_ZERO(&set);
    ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
    if (bound) {
      EXPECT_LE(static_cast<uint32_t>(CPU_COUNT(&set)), machine->cpus()[0]);
    } else {
      EXPECT_EQ(bound.error().message.find("NUMA: a thread cannot be bound: "), 0u) << bound.error().message;
    }
  }).join();
}

TEST(Numa, WorkersAreSpreadByCpus) {
  using List = std::vector<uint32_t>;
  const auto plan = [](List cpus, int threads) { return plan_owners(cpus, threads); };
  EXPECT_EQ(plan({4}, 3).owner_of_worker, (List{0, 0, 0}));
  EXPECT_EQ(plan({4, 4}, 8).owner_of_worker, (List{0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(plan({4, 4}, 2).owner_of_worker, (List{0, 1}));
  EXPECT_EQ(plan({6, 2}, 4).owner_of_worker, (List{0, 0, 0, 1}));
  EXPECT_EQ(plan({6, 2}, 4).threads, (List{3, 1}));
  // More threads than CPUs, and nodes that get none.
  EXPECT_EQ(plan({1, 1}, 5).threads.size(), 2u);
  EXPECT_EQ(plan({2, 2, 2, 2}, 2).node_of_owner, (List{1, 3}));
  EXPECT_EQ(plan({4, 4}, 1).threads, (List{1}));
  EXPECT_EQ(plan({}, 2).threads, (List{2}));
  const List many(40, 1);
  const OwnerPlan most = plan_owners(many, 40);
  EXPECT_EQ(most.owners(), kMaxOwners);
  EXPECT_EQ(std::accumulate(most.threads.begin(), most.threads.end(), 0u), 40u);
}

TEST(Numa, PartsAreContiguousAndByThreads) {
  const OwnerPlan plan = plan_owners(std::vector<uint32_t>{6, 2}, 4);
  std::vector<uint32_t> counts(2);
  uint32_t last = 0;
  for (uint64_t item = 0; item < 32; ++item) {
    const uint32_t owner = owner_of_item(plan, item, 32);
    EXPECT_GE(owner, last);
    last = owner;
    ++counts[owner];
  }
  EXPECT_EQ(counts, (std::vector<uint32_t>{24, 8}));
  EXPECT_EQ(owner_of_item(plan, 0, 1), 0u);
  EXPECT_EQ(owner_ends(plan, 40960, 4096), (std::vector<uint64_t>{32768, 40960}));
  EXPECT_EQ(owner_ends(plan, 100, 4096), (std::vector<uint64_t>{0, 100}));
  EXPECT_EQ(owner_ends(plan, 0, 4096), (std::vector<uint64_t>{0, 0}));
}

TEST(Numa, EveryTaskRunsOnceWhoeverOwnsIt) {
  ThreadPool pool(3, {{0, 0, 1}, {}});
  for (const TaskOwners& tasks :
       {TaskOwners{{50, 100}, 2}, TaskOwners{{0, 100}, 2}, TaskOwners{{100, 100}, 2},
        TaskOwners{{10, 10, 70, 100}, 4}, TaskOwners{{0, 0}, 2}}) {
    for (int round = 0; round < 50; ++round) {
      std::vector<std::atomic<int>> runs(100);
      pool.run(tasks, [&](size_t task, int) { ++runs[task]; });
      for (size_t task = 0; task < runs.size(); ++task)
        ASSERT_EQ(runs[task].load(), task < tasks.tasks() ? 1 : 0) << task;
    }
  }
}

// Worker 0 belongs to the second owner: it begins there, whatever comes first in the order of tasks.
TEST(Numa, WorkersBeginWithTheirOwnersTasks) {
  std::atomic<int> bound{0};
  ThreadPool pool(2, {{1, 0}, [&](int worker) { bound += worker + 1; }});
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> begun{0};
    int ran_by[2] = {-1, -1};
    pool.run(TaskOwners{{1, 2}, 2}, [&](size_t task, int worker) {
      ran_by[task] = worker;
      // Nobody takes a second task before both have one.
      for (++begun; begun.load() < 2;) std::this_thread::yield();
    });
    EXPECT_EQ(ran_by[0], 1);
    EXPECT_EQ(ran_by[1], 0);
  }
  pool.bind_caller();
  EXPECT_EQ(bound.load(), 3);
}

}  // namespace
}  // namespace tandem
