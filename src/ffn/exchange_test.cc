// Connectors p2p and auto over several FFN ranks against the block itself: whoever is home, however rows
// reach the owners of their experts, over any transport, with one credit, and when a rank is lost.
#include <cstdlib>
#include <thread>

#include "ffn/rank_pool.h"

namespace tandem {
namespace {

using namespace split_testing;

Placement placed(bool gate, bool shared, DType dtype = DType::bf16, SumMode mode = SumMode::deterministic) {
  return {.gate_on_attention = gate, .shared_on_attention = shared, .dtype = dtype, .sum_mode = mode};
}

constexpr ExchangeKind kKinds[] = {ExchangeKind::alltoall, ExchangeKind::allgather, ExchangeKind::automatic};

class Exchange : public testing::TestWithParam<std::string> {};

TEST_P(Exchange, EqualsTheBlockBitForBitInEveryPlacement) {
  for (int mode = 0; mode < 24; ++mode) {
    // Every mode over inproc, every second one over the others: starting ranks takes longer there.
    if (GetParam() != "inproc" && mode / 2 % 2 != mode / 8 % 2) continue;
    const bool gate = mode % 2 == 1, shared = mode / 2 % 2 == 1;
    const std::string connector = mode / 4 % 2 == 0 ? "p2p" : "auto";
    const ExchangeKind kind = kKinds[mode / 8];
    const uint32_t ranks = 2 + static_cast<uint32_t>(mode % 3);
    Placement placement = placed(gate, shared, mode % 5 == 0 ? DType::f32 : DType::bf16);
    placement.hashed = mode % 5 == 1 || mode % 5 == 4;
    placement.token_ids = !gate && (mode % 3 == 0 || placement.hashed);
    Pool pool({.placement = placement,
               .scheme = GetParam(),
               .ranks = ranks,
               .connector = connector,
               .exchange = kind});
    const auto port = pool.connect();
    ASSERT_NE(port, nullptr);
    uint32_t step = 0;
    for (const uint32_t rows : {1u, 7u, 65u, 200u}) {
      for (const RowClass row_class : {RowClass::decode, RowClass::prefill}) {
        ++step;
        Work work(pool.reference, static_cast<LayerIndex>(1 + step % 2), rows, step);
        work.request.row_class = row_class;
        const Status status = run_one(*port, work);
        ASSERT_TRUE(status.has_value()) << status.error().message;
        ASSERT_TRUE(work.output_is_exact())
            << connector << ", " << ranks << " ranks, gate " << gate << ", shared " << shared << ", kind "
            << static_cast<int>(kind) << ", " << rows << " rows";
      }
    }
    ExchangeStats sum;
    for (const auto& worker : pool.workers) {
      const ExchangeStats one = worker->stats().exchange;
      sum.alltoall += one.alltoall;
      sum.allgather += one.allgather;
      sum.exchange_us += one.exchange_us;
      EXPECT_EQ(one.failed_tiles, 0u);
    }
    EXPECT_GT(sum.alltoall + sum.allgather, 0u) << "nothing was exchanged";
    EXPECT_GT(sum.exchange_us, 0u) << "exchanging took no time";
    EXPECT_TRUE(kind != ExchangeKind::allgather || sum.alltoall == 0);
    EXPECT_TRUE(kind != ExchangeKind::alltoall || sum.allgather == 0);
  }
}

// Quantised rows travel on as they came.
TEST_P(Exchange, QuantisedRowsReachTheOwnersWithTheirScales) {
  for (const ActivationFormat format : kQuantizedFormats) {
    Placement placement = placed(true, true);
    placement.format = format;
    Pool pool({.placement = placement, .scheme = GetParam(), .ranks = 3, .connector = "p2p"});
    const auto port = pool.connect();
    ASSERT_NE(port, nullptr);
    Work work(pool.reference, 1, 70, 5);
    const Status status = run_one(*port, work);
    ASSERT_TRUE(status.has_value()) << status.error().message;
    EXPECT_TRUE(work.output_is_exact());
  }
}

// Slices, and replicas: the home asks nobody but the dispatcher.
TEST_P(Exchange, EqualsTheBlockForAnyPlacementOfTheExperts) {
  for (const ExchangeKind kind : {ExchangeKind::alltoall, ExchangeKind::allgather}) {
    for (const auto& [experts, choice] :
         {std::pair{ExpertPlacement{PlacementKind::slice}, ReplicaChoice::by_row},
          {ExpertPlacement{PlacementKind::expert, 1, 2}, ReplicaChoice::by_row},
          {ExpertPlacement{PlacementKind::expert, 1, 2}, ReplicaChoice::by_experts}}) {
      Pool pool({.placement = placed(false, false),
                 .scheme = GetParam(),
                 .ranks = 2,
                 .connector = "p2p",
                 .exchange = kind,
                 .experts = experts,
                 .replica_choice = choice});
      const auto port = pool.connect();
      ASSERT_NE(port, nullptr);
      for (uint32_t step = 1; step < 4; ++step) {
        Work work(pool.reference, 1, 20 * step, step);
        const Status status = run_one(*port, work);
        ASSERT_TRUE(status.has_value()) << status.error().message;
        EXPECT_TRUE(work.output_is_exact());
      }
    }
  }
}

// (4, 0), (0, 4), (4, 4), (1, 7), (0, 8) rows over two attention ranks; a third stays silent.
TEST_P(Exchange, AttentionRanksShareTheFfnRanksAndNobodyWaitsForAnybody) {
  for (const char* connector : {"p2p", "auto", "m2n"}) {
    Pool pool({.placement = placed(true, false), .scheme = GetParam(), .ranks = 3, .connector = connector});
    std::vector<std::unique_ptr<MultiRankFfn>> ports;
    for (uint32_t rank = 0; rank < 3; ++rank) ports.push_back(pool.connect(rank));
    std::vector<std::vector<std::unique_ptr<Work>>> works(2);
    const std::pair<uint32_t, uint32_t> rows[] = {{4, 0}, {0, 4}, {4, 4}, {1, 7}, {0, 8}, {130, 2}};
    uint32_t step = 0;
    for (const auto& [first, second] : rows) {
      works[0].push_back(std::make_unique<Work>(pool.reference, 1, first, ++step));
      works[1].push_back(std::make_unique<Work>(pool.reference, 1, second, ++step));
    }
    std::atomic<int> exact{0};
    const auto client = [&](size_t rank) {
      for (auto& work : works[rank]) {
        const Status status = run_one(*ports[rank], *work);
        if (status.has_value() && work->output_is_exact()) ++exact;
      }
    };
    std::thread other([&] { client(1); });
    client(0);
    other.join();
    EXPECT_EQ(exact.load(), 12) << connector;
  }
}

// Random traffic with one credit each way on every connection, homes and owners in every direction at once:
// if any rank waited for another one, this would stop. TANDEM_TRAFFIC_SECONDS makes it longer.
TEST_P(Exchange, RandomTrafficWithOneCreditNeverHangs) {
  const char* variable = std::getenv("TANDEM_TRAFFIC_SECONDS");
  const int seconds = variable != nullptr ? std::atoi(variable) : 0;
  const Instant end = now() + std::chrono::seconds(seconds);
  uint32_t round = 0;
  do {
    const bool gate = round % 2 == 1;
    Pool pool({.placement = placed(gate, round % 3 == 0),
               .scheme = GetParam(),
               .ranks = 3,
               .connector = gate && round % 4 == 1 ? "auto" : "p2p",
               .exchange = kKinds[round % 3],
               .slots = 1});
    std::vector<std::unique_ptr<MultiRankFfn>> ports;
    for (uint32_t rank = 0; rank < 2; ++rank) ports.push_back(pool.connect(rank));
    std::vector<std::vector<std::unique_ptr<Work>>> works(2);
    std::mt19937 random(round + 1);
    for (uint32_t i = 0; i < 60; ++i) {
      auto work = std::make_unique<Work>(pool.reference, static_cast<LayerIndex>(1 + random() % 2),
                                         random() % 4 == 0 ? random() % 400 : random() % 9, i);
      work->request.row_class = random() % 3 == 0 ? RowClass::prefill : RowClass::decode;
      work->request.lane = static_cast<LaneId>(random() % 2);
      works[i % 2].push_back(std::move(work));
    }
    std::atomic<int> exact{0};
    const auto client = [&](size_t rank) {
      std::vector<Completion> finished;
      for (auto& work : works[rank]) submit(*ports[rank], work->request, finished);
      for (Completion& completion : wait_for(*ports[rank], works[rank].size() - finished.size()))
        finished.push_back(std::move(completion));
      for (const Completion& completion : finished)
        EXPECT_TRUE(completion.status.has_value()) << completion.status.error().message;
      for (const auto& work : works[rank]) exact += work->output_is_exact() ? 1 : 0;
    };
    std::thread other([&] { client(1); });
    client(0);
    other.join();
    ASSERT_EQ(exact.load(), 60) << "round " << round;
  } while (++round < 2 || now() < end);
}

INSTANTIATE_TEST_SUITE_P(Transports, Exchange, testing::ValuesIn(all_schemes()),
                         [](const auto& param_info) { return param_info.param; });

TEST(ExchangeStart, AnFfnRankWaitsForTheOthersAndSaysForWhich) {
  Pool pool({.placement = placed(false, false), .scheme = "shm", .ranks = 3, .connector = "p2p"});
  pool.workers[1].reset();
  pool.workers[0].reset();
  pool.start(0);  // knows rank 2 and not rank 1
  const std::string words = "waiting for FFN rank 1 at " + pool.addresses[1];
  const Error early = start_refusal<MultiRankFfn>(pool.remote_options(), words);
  EXPECT_EQ(early.code, ErrorCode::deadline_exceeded);
  EXPECT_NE(early.message.find(words), std::string::npos) << early.message;
  std::unique_ptr<MultiRankFfn> port;
  std::thread late([&] { port = pool.connect(); });  // attention first: it waits, too
  pool.start(1);
  late.join();
  ASSERT_NE(port, nullptr);
  Work work(pool.reference, 1, 30, 1);
  ASSERT_TRUE(run_one(*port, work).has_value());
  EXPECT_TRUE(work.output_is_exact());
}

TEST(ExchangeStart, WhatDoesNotFitIsRefusedByName) {
  Pool pool({.placement = placed(false, false), .scheme = "inproc", .ranks = 2, .connector = "p2p"});
  // Without the others' addresses.
  auto lone = pool.worker_options(1);
  lone.listen_address = fresh_address("inproc");
  lone.ffn_addresses.clear();
  const auto blind = FfnWorker::create(lone, pool.models[1]->block());
  ASSERT_FALSE(blind.has_value());
  EXPECT_NE(blind.error().message.find("0 addresses of 2 FFN ranks"), std::string::npos);
  // Another connector than attention's, another number of ranks.
  RemoteFfnOptions options = pool.remote_options();
  options.settings.connector = "auto";
  const auto other = MultiRankFfn::create(options);
  ASSERT_FALSE(other.has_value());
  EXPECT_NE(other.error().message.find("connector is p2p on FFN rank "), std::string::npos)
      << other.error().message;
  options = pool.remote_options();
  options.settings.num_ffn_ranks = 3;
  const auto more = MultiRankFfn::create(options);
  ASSERT_FALSE(more.has_value());
  EXPECT_NE(more.error().message.find("num_ffn_ranks is 2 on FFN rank "), std::string::npos)
      << more.error().message;
}

TEST(ExchangeLoss, ALostFfnPeerFailsWhatNeedsItByNameAndComesBack) {
  Pool pool({.placement = placed(true, true),
             .scheme = "shm",
             .ranks = 2,
             .connector = "p2p",
             .exchange = ExchangeKind::alltoall});
  const auto port = pool.connect();
  ASSERT_NE(port, nullptr);
  pool.workers[1].reset();
  ASSERT_TRUE(eventually([&] { return !port->health().has_value(); }));
  EXPECT_NE(port->health().error().message.find("FFN rank 1 at"), std::string::npos);
  const auto spread = [](uint32_t row, uint32_t slot) {
    return static_cast<int32_t>((row + 3 * slot) % kExperts);
  };
  Work needs_it(pool.reference, 1, 8, 1, spread);
  const Status failed = run_one(*port, needs_it);
  ASSERT_FALSE(failed.has_value());
  EXPECT_NE(failed.error().message.find("FFN rank 0 at"), std::string::npos) << failed.error().message;
  EXPECT_NE(failed.error().message.find("FFN rank 1 at"), std::string::npos) << failed.error().message;
  // A rank that is down is home to nothing.
  for (uint32_t i = 0; i < 4; ++i) {
    Work does_not(pool.reference, 1, 8, 2 + i,
                  [](uint32_t, uint32_t slot) { return static_cast<int32_t>(slot); });
    const Status served = run_one(*port, does_not);
    ASSERT_TRUE(served.has_value()) << served.error().message;
    EXPECT_TRUE(does_not.output_is_exact());
  }
  pool.start(1);
  ASSERT_TRUE(eventually([&] { return port->health().has_value(); }));
  // The connection between the ranks comes back by itself, too.
  ASSERT_TRUE(eventually([&] {
    needs_it.reset_output();
    return run_one(*port, needs_it).has_value() && needs_it.output_is_exact();
  }));
}

// An owner that never answers: the home goes on, and can be stopped.
TEST(ExchangeLoss, AHomeThatWaitsTakesPartsAndStops) {
  Pool pool({.placement = placed(true, true),
             .scheme = "inproc",
             .ranks = 2,
             .connector = "p2p",
             .exchange = ExchangeKind::alltoall,
             .slots = 1});
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
  const auto port = pool.connect();
  ASSERT_NE(port, nullptr);
  const auto spread = [](uint32_t row, uint32_t slot) {
    return static_cast<int32_t>((row + 3 * slot) % kExperts);
  };
  Work waits(pool.reference, 1, 8, 1, spread);
  ASSERT_TRUE(port->submit(waits.request).has_value());  // home 0, needs rank 1
  ASSERT_TRUE(eventually([&] { return pool.workers[0]->stats().exchange.groups == 1; }));
  pool.workers[0].reset();  // does not wait for rank 1
  const auto ended = wait_for(*port, 1);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_FALSE(ended.front().status.has_value());
}

TEST(ExchangeKinds, AutomaticTakesAllgatherWhenNearlyAllRowsGoEverywhere) {
  Prepared prepared;
  prepared.rows = 16;
  prepared.parts.resize(3);
  prepared.parts[0].rows.resize(2);
  prepared.parts[1].rows.resize(14);
  prepared.parts[2].rows.resize(14);
  EXPECT_EQ(choose_exchange(ExchangeKind::automatic, prepared, 0), ExchangeKind::allgather);
  prepared.parts[2].rows.resize(13);
  EXPECT_EQ(choose_exchange(ExchangeKind::automatic, prepared, 0), ExchangeKind::alltoall);
  EXPECT_EQ(choose_exchange(ExchangeKind::allgather, prepared, 0), ExchangeKind::allgather);
}

}  // namespace
}  // namespace tandem
