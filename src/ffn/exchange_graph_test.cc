// Graph mode under p2p with several FFN ranks: a home and its peers replay on attention's word alone, count
// what they did, and allocate nothing when they replay, the first time included.
#include <thread>

#include "ffn/rank_pool.h"
#include "program/allocation_counter.h"

namespace tandem {
namespace {

using namespace split_testing;

int32_t spread(uint32_t row, uint32_t slot) {
  return static_cast<int32_t>((row + 3 * slot) % kExperts);
}

std::function<int32_t(uint32_t, uint32_t)> spread_if(bool gate) {
  return gate ? std::function<int32_t(uint32_t, uint32_t)>(spread) : nullptr;
}

Placement placed(bool gate, bool shared) {
  // Layer 1 takes its experts by token id.
  return {.gate_on_attention = gate,
          .shared_on_attention = shared,
          .token_ids = !gate,
          .hashed = true,
          .sum_mode = SumMode::deterministic};
}

struct Ran {
  uint64_t groups = 0, replays = 0, padded = 0, misses = 0, eager = 0, warmups = 0, failed = 0;
};

Ran ran_on(const FfnWorker& worker) {
  const FfnStats stats = worker.stats();
  return {stats.groups,
          stats.graph_replays,
          stats.graph_padded_replays,
          stats.graph_misses,
          stats.eager_groups,
          stats.graph_warmups,
          stats.tiles_failed + stats.exchange.failed_tiles};
}

// Over all ranks.
Ran ran_on(const Pool& pool) {
  Ran sum;
  for (const auto& worker : pool.workers) {
    const Ran one = ran_on(*worker);
    sum.groups += one.groups;
    sum.replays += one.replays;
    sum.padded += one.padded;
    sum.misses += one.misses;
    sum.eager += one.eager;
    sum.warmups += one.warmups;
    sum.failed += one.failed;
  }
  return sum;
}

Ran operator-(Ran later, const Ran& earlier) {
  later.groups -= earlier.groups;
  later.replays -= earlier.replays;
  later.padded -= earlier.padded;
  later.misses -= earlier.misses;
  later.eager -= earlier.eager;
  later.warmups -= earlier.warmups;
  later.failed -= earlier.failed;
  return later;
}

struct Mode {
  bool gate, shared, slices;
  ExchangeKind kind;
  uint32_t ranks;
  const char* connector = "p2p";

  std::string text() const {
    return connector + std::string(", ") + std::to_string(ranks) + " ranks, gate " + std::to_string(gate) +
           ", shared " + std::to_string(shared) + (slices ? ", slices" : ", experts") +
           (kind == ExchangeKind::allgather ? ", allgather" : ", alltoall");
  }
  PoolOptions options(std::vector<uint32_t> capture_sizes) const {
    return {.placement = placed(gate, shared),
            .ranks = ranks,
            .connector = connector,
            .exchange = kind,
            .experts = {slices ? PlacementKind::slice : PlacementKind::expert},
            .capture_sizes = std::move(capture_sizes)};
  }
};

std::vector<Mode> all_modes() {
  std::vector<Mode> modes;
  for (uint32_t bits = 0; bits < 16; ++bits) {
    modes.push_back({.gate = bits % 2 == 1,
                     .shared = bits / 2 % 2 == 1,
                     .slices = bits / 4 % 2 == 1,
                     .kind = bits / 8 == 1 ? ExchangeKind::allgather : ExchangeKind::alltoall,
                     .ranks = 2 + (bits / 2 + bits) % 2});
  }
  return modes;
}

TEST(ExchangeGraph, AHomeAndItsPeersReplayOnAttentionsWordAlone) {
  struct Step {
    uint32_t rows, word;
    bool padded;  // where a rank gets all rows
    RowClass row_class = RowClass::decode;
  };
  const Step steps[] = {{5, 8, true},
                        {8, 8, false},
                        {12, 16, true},
                        {3, 0, false},
                        {16, 16, false},
                        {3, 16, true},  // a program of 8 is enough for them
                        {8, 8, false, RowClass::profile}};
  for (const Mode& mode : all_modes()) {
    Pool pool(mode.options({8, 16}));
    const auto port = pool.connect();
    ASSERT_NE(port, nullptr);
    uint32_t number = 0;
    for (const Step& step : steps) {
      const std::string what =
          mode.text() + ": " + std::to_string(step.rows) + " rows, program " + std::to_string(step.word);
      Work work(pool.reference, static_cast<LayerIndex>(1 + number % 2), step.rows, number + 1,
                spread_if(mode.gate));
      ++number;
      work.request.program = step.word;
      work.request.row_class = step.row_class;
      const Ran before = ran_on(pool);
      const Status status = run_one(*port, work);
      ASSERT_TRUE(status.has_value()) << what << ": " << status.error().message;
      EXPECT_TRUE(work.output_is_exact()) << what;
      // One request is one group of its home, and one of each rank that it asks.
      const Ran ran = ran_on(pool) - before;
      const bool everywhere =
          mode.slices || mode.kind == ExchangeKind::allgather || (mode.gate && mode.ranks == 2);
      const bool profile = step.row_class == RowClass::profile;
      if (everywhere) {
        EXPECT_EQ(ran.groups, mode.ranks) << what;
        EXPECT_EQ(ran.padded, step.padded && step.word != 0 ? ran.groups : 0) << what;
      }
      EXPECT_EQ(ran.replays, step.word == 0 || profile ? 0 : ran.groups) << what;
      EXPECT_EQ(ran.warmups, profile ? ran.groups : 0) << what;
      EXPECT_EQ(ran.eager, step.word == 0 ? ran.groups : 0) << what;
      EXPECT_EQ(ran.misses + ran.failed, 0u) << what;
    }
  }
}

// Groups are parked until the test lets the other rank compute: one more of them than are prepared.
TEST(ExchangeGraph, AGroupThatFindsNoPreparedOneRunsEagerAndIsTheOnlyMiss) {
  const Mode mode{.gate = true, .shared = true, .slices = false, .kind = ExchangeKind::alltoall, .ranks = 2};
  Pool pool(mode.options({8, 64}));
  std::atomic<bool> hold{true};
  pool.workers[1].reset();
  SplitModel& model = *pool.models[1];
  auto slow = FfnWorker::create(pool.worker_options(1), [&](const MoeRequest& request) {
    while (hold.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return model.block().run(request);
  });
  ASSERT_TRUE(slow.has_value()) << slow.error().message;
  struct Release {
    std::atomic<bool>& held;
    ~Release() { held.store(false); }
  } release{hold};
  // Rank 0 was ready with the old rank 1: attention may come before it has found the new one.
  ASSERT_TRUE(eventually([&] { return (*slow)->clients().size() == 1; }));
  std::vector<std::unique_ptr<MultiRankFfn>> ports;
  std::vector<std::unique_ptr<Work>> works;
  for (uint32_t i = 0; i <= kPreparedHomeGroups; ++i) {
    ports.push_back(pool.connect(2 * i));  // home is rank 0
    ASSERT_NE(ports.back(), nullptr);
    works.push_back(std::make_unique<Work>(pool.reference, 1, 2, i + 1, spread));
    works.back()->request.program = 8;
    ASSERT_TRUE(ports.back()->submit(works.back()->request).has_value());
    // Each is a group of its own.
    ASSERT_TRUE(eventually([&] { return pool.workers[0]->stats().exchange.groups == i + 1; }));
  }
  hold.store(false);
  for (uint32_t i = 0; i < ports.size(); ++i) {
    const auto ended = wait_for(*ports[i], 1);
    ASSERT_TRUE(ended.size() == 1 && ended.front().status.has_value());
    EXPECT_TRUE(works[i]->output_is_exact()) << i;
  }
  const Ran ran = ran_on(*pool.workers[0]);
  EXPECT_EQ(ran.replays, kPreparedHomeGroups);
  EXPECT_EQ(ran.misses, 1u);
  EXPECT_EQ(ran.eager, 1u);
}

// The first replays of a start, several at once and merged as it comes: together they have as many rows as
// the largest program at most. One process, so that one counter sees attention, all FFN ranks and all
// threads.
TEST(ExchangeGraph, NoReplayAllocatesAnythingOnAnyRankNotEvenTheFirst) {
  std::vector<Mode> modes = all_modes();
  for (const char* connector : {"m2n", "auto"}) {  // attention dispatches
    modes.push_back(
        {.gate = true, .shared = false, .slices = false, .kind = {}, .ranks = 3, .connector = connector});
  }
  for (const Mode& mode : modes) {
    Pool pool(mode.options({8, 64}));
    const auto port = pool.connect();
    ASSERT_NE(port, nullptr);
    // Eager, one to each home: every connection has served, and nobody has anything left to say about it.
    for (uint32_t i = 0; i < mode.ranks; ++i) {
      Work first(pool.reference, 1, 4, i + 1, spread_if(mode.gate));
      ASSERT_TRUE(run_one(*port, first).has_value());
    }
    const uint32_t rows[] = {5, 8, 1, 16, 3, 12};
    std::vector<std::unique_ptr<Work>> works;
    for (size_t i = 0; i < std::size(rows); ++i) {
      works.push_back(std::make_unique<Work>(pool.reference, 2, rows[i], static_cast<uint32_t>(10 + i),
                                             spread_if(mode.gate)));
      works.back()->request.lane = static_cast<LaneId>(i);
      works.back()->request.program = rows[i] <= 8 ? 8 : 64;
    }
    const Ran before = ran_on(pool);
    const size_t allocated = test::allocations_so_far();
    bool served = true;
    for (uint32_t round = 0; round < 4 && served; ++round) {
      for (const auto& work : works) served = served && port->submit(work->request).has_value();
      for (size_t ended = 0; ended < works.size() && served;) {
        Completion some[8];
        const size_t got = port->poll(some);
        for (size_t i = 0; i < got; ++i) served = served && some[i].status.has_value();
        ended += got;
        pollfd wait{.fd = port->wait_fd(), .events = POLLIN, .revents = 0};
        if (ended < works.size()) served = served && ::poll(&wait, 1, 30000) == 1;
      }
    }
    const size_t now_allocated = test::allocations_so_far();
    ASSERT_TRUE(served) << mode.text();
    EXPECT_EQ(now_allocated - allocated, 0u) << mode.text();
    for (const auto& work : works) EXPECT_TRUE(work->output_is_exact()) << mode.text();
    const Ran ran = ran_on(pool) - before;
    EXPECT_EQ(ran.replays, ran.groups) << mode.text();
    EXPECT_GE(ran.replays, 2 * mode.ranks) << mode.text();
    EXPECT_EQ(ran.misses + ran.eager + ran.failed, 0u) << mode.text();
  }
}

}  // namespace
}  // namespace tandem
