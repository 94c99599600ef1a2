// Connector m2n against the block itself: any number of attention and FFN ranks, uneven shares of the
// experts, one credit, ranks that get no rows: the same bits in deterministic mode.
#include <chrono>
#include <thread>

#include "ffn/rank_pool.h"

namespace tandem {
namespace {

using namespace split_testing;

Placement on_attention(SumMode mode = SumMode::deterministic, DType dtype = DType::bf16) {
  return {.gate_on_attention = true, .shared_on_attention = true, .dtype = dtype, .sum_mode = mode};
}

class M2nOverTransport : public testing::TestWithParam<std::string> {};

TEST_P(M2nOverTransport, EqualsTheBlockBitForBitForAnyNumberOfFfnRanks) {
  for (const uint32_t ranks : {1u, 2u, 3u, 5u, 8u}) {
    for (const bool shared_on_attention : {false, true}) {
      Placement placement =
          on_attention(SumMode::deterministic, shared_on_attention ? DType::bf16 : DType::f32);
      placement.shared_on_attention = shared_on_attention;
      placement.hashed = ranks % 2 == 1;  // rows that name an expert twice
      Pool pool({.placement = placement, .scheme = GetParam(), .ranks = ranks});
      const auto port = pool.connect();
      ASSERT_NE(port, nullptr);
      EXPECT_EQ(port->map().owners().size(), ranks);
      uint32_t step = 0;
      for (const uint32_t rows : {1u, 7u, 64u, 65u, 200u}) {
        for (const LayerIndex layer : {1, 2}) {
          Work work(pool.reference, layer, rows, ++step);
          const Status status = run_one(*port, work);
          ASSERT_TRUE(status.has_value()) << status.error().message;
          ASSERT_TRUE(work.output_is_exact()) << ranks << " ranks, " << rows << " rows";
        }
      }
    }
  }
}

// Each rank gets some of the rows: their scales must come under the same permutation.
TEST_P(M2nOverTransport, QuantizedRowsEqualTheBlockBitForBit) {
  for (const ActivationFormat format : kQuantizedFormats) {
    for (const uint32_t ranks : {2u, 3u, 8u}) {
      Placement placement = on_attention();
      placement.format = format;
      Pool pool({.placement = placement, .scheme = GetParam(), .ranks = ranks});
      const auto port = pool.connect();
      ASSERT_NE(port, nullptr);
      uint32_t step = 0;
      for (const uint32_t rows : {1u, 7u, 64u, 200u}) {
        Work work(pool.reference, static_cast<LayerIndex>(1 + rows % 2), rows, ++step);
        const Status status = run_one(*port, work);
        ASSERT_TRUE(status.has_value()) << status.error().message;
        ASSERT_TRUE(work.output_is_exact())
            << activation_format_name(format) << ", " << ranks << " ranks, " << rows << " rows";
      }
    }
  }
}

// Slices, groups of ranks that slice their experts, and replicas of both: one bit pattern. The carrier does
// not know what it carries: one in the process and one between processes.
TEST(M2n, EqualsTheBlockBitForBitForAnyPlacementOfTheExperts) {
  using Kind = PlacementKind;
  const std::pair<ExpertPlacement, uint32_t> placements[] = {
      {{Kind::slice}, 2},     {{Kind::slice}, 3},        {{Kind::slice}, 5},       {{Kind::hybrid, 2}, 4},
      {{Kind::hybrid, 2}, 5}, {{Kind::hybrid, 2, 2}, 4}, {{Kind::expert, 2, 2}, 3}};
  uint32_t step = 0, round = 0;
  for (const auto& [experts, ranks] : placements) {
    for (const ReplicaChoice choice : {ReplicaChoice::by_row, ReplicaChoice::by_experts}) {
      if (choice == ReplicaChoice::by_experts && experts.replicas == 1) continue;
      const DType dtype = ++round % 2 == 0 ? DType::f32 : DType::bf16;
      Placement placement = on_attention(SumMode::deterministic, dtype);
      placement.hashed = true;
      Pool pool({.placement = placement,
                 .scheme = round / 2 % 2 == 0 ? "inproc" : "tcp",
                 .ranks = ranks,
                 .experts = experts,
                 .replica_choice = choice});
      const auto port = pool.connect();
      ASSERT_NE(port, nullptr);
      for (const uint32_t rows : {1u, 7u, 65u}) {
        ++step;
        Work work(pool.reference, static_cast<LayerIndex>(1 + step % 2), rows, step);
        const Status status = run_one(*port, work);
        ASSERT_TRUE(status.has_value()) << status.error().message;
        ASSERT_TRUE(work.output_is_exact())
            << static_cast<int>(experts.kind) << " on " << ranks << " ranks, " << rows << " rows";
      }
      for (const auto& worker : pool.workers) EXPECT_GT(worker->stats().rows, 0u) << "a rank without work";
    }
  }
}

// Two ranks that both have all experts, and six rows that ask for six of them: each is read once, three by
// each.
TEST(M2n, ReplicasAreSharedOutByTheExpertsThatFewRowsAskFor) {
  for (const ReplicaChoice choice : {ReplicaChoice::by_row, ReplicaChoice::by_experts}) {
    Pool pool({.placement = on_attention(),
               .ranks = 2,
               .experts = {PlacementKind::expert, 1, 2},
               .replica_choice = choice});
    const auto port = pool.connect();
    ASSERT_NE(port, nullptr);
    for (uint32_t step = 1; step <= 8; ++step) {
      Work work(pool.reference, 1, 6, step,
                [&](uint32_t row, uint32_t slot) { return static_cast<int32_t>((step + row + slot) % 6); });
      ASSERT_TRUE(run_one(*port, work).has_value());
      EXPECT_TRUE(work.output_is_exact());
    }
    // A rank counts a call when it has answered it: looked at until the last ones are in.
    uint64_t most = 0, all = 0;
    for (int look = 0; look < 2000 && all < 8 * 6; ++look) {
      if (look > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const uint64_t first = pool.workers[0]->stats().experts_read,
                     second = pool.workers[1]->stats().experts_read;
      all = first + second;
      most = std::max(first, second);
    }
    if (choice == ReplicaChoice::by_experts) {
      EXPECT_EQ(all, 8u * 6);
      EXPECT_EQ(most, 8u * 3);
    } else {
      EXPECT_GT(all, 8u * 6 * 5 / 4) << "rows of one expert go to both";
    }
  }
}

// (4, 0), (0, 4) and mixtures: rows all to one rank, and a rank that hears nothing.
TEST_P(M2nOverTransport, ARankWithoutRowsIsNotAsked) {
  Pool pool({.placement = on_attention(), .scheme = GetParam(), .ranks = 2});  // experts 0-3 and 4-7
  const auto port = pool.connect();
  ASSERT_NE(port, nullptr);
  for (const uint32_t owner : {0u, 1u}) {
    Work work(pool.reference, 1, 4, owner, [&](uint32_t row, uint32_t slot) {
      return static_cast<int32_t>(owner * 4 + (row + slot) % 4);
    });
    const uint64_t other = pool.workers[1 - owner]->stats().tiles;
    ASSERT_TRUE(run_one(*port, work).has_value());
    EXPECT_TRUE(work.output_is_exact());
    EXPECT_EQ(pool.workers[1 - owner]->stats().tiles, other) << "the other rank was asked";
    EXPECT_EQ(pool.workers[owner]->stats().rows, 4u) << "a row must go to a rank once";
  }
  // Two hundred requests to one rank, and then one to the other.
  for (uint32_t i = 0; i <= 200; ++i) {
    const int32_t first = i < 200 ? 0 : 4;
    Work work(pool.reference, 2, 1, i,
              [&](uint32_t, uint32_t slot) { return first + static_cast<int32_t>(slot); });
    ASSERT_TRUE(run_one(*port, work).has_value());
    ASSERT_TRUE(work.output_is_exact());
  }
  Work both(pool.reference, 1, 5, 77, [](uint32_t row, uint32_t slot) {
    return row == 4 ? static_cast<int32_t>(3 + slot) : static_cast<int32_t>(row % 2 * 4 + slot);
  });
  ASSERT_TRUE(run_one(*port, both).has_value());
  EXPECT_TRUE(both.output_is_exact());
  Work none(pool.reference, 1, 0, 1);
  ASSERT_TRUE(run_one(*port, none).has_value());
}

// With one credit, far more tiles than slots, both classes and both layers: everything ends.
TEST_P(M2nOverTransport, ManyRequestsWithOneCreditNeverHang) {
  Pool pool({.placement = on_attention(), .scheme = GetParam(), .ranks = 3, .slots = 1});
  const auto port = pool.connect();
  ASSERT_NE(port, nullptr);
  std::vector<std::unique_ptr<Work>> works;
  std::vector<Completion> finished;
  for (uint32_t i = 0; i < 48; ++i) {
    works.push_back(std::make_unique<Work>(pool.reference, static_cast<LayerIndex>(1 + i % 2),
                                           i % 5 == 0 ? 150 : 3 + i, i));
    works.back()->request.row_class = i % 3 == 0 ? RowClass::prefill : RowClass::decode;
    works.back()->request.lane = static_cast<LaneId>(i % 2);
    submit(*port, works.back()->request, finished);
  }
  for (Completion& completion : wait_for(*port, works.size() - finished.size()))
    finished.push_back(std::move(completion));
  for (const Completion& completion : finished)
    EXPECT_TRUE(completion.status.has_value()) << completion.status.error().message;
  for (const auto& work : works) EXPECT_TRUE(work->output_is_exact());
}

// 2A2F and 3A3F with unequal rows, one attention rank silent: nobody waits for anybody.
TEST_P(M2nOverTransport, SeveralAttentionRanksShareTheFfnRanks) {
  for (const uint32_t ffn_ranks : {2u, 3u}) {
    Pool pool({.placement = on_attention(), .scheme = GetParam(), .ranks = ffn_ranks});
    std::vector<std::unique_ptr<MultiRankFfn>> ports;
    std::vector<std::vector<std::unique_ptr<Work>>> works(2);
    for (uint32_t rank = 0; rank < 3; ++rank)
      ports.push_back(pool.connect(rank));  // the last one stays silent
    const std::pair<uint32_t, uint32_t> rows[] = {{1, 7}, {7, 1}, {0, 8}, {8, 0},
                                                  {4, 0}, {0, 4}, {4, 4}, {130, 2}};
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
    EXPECT_EQ(exact.load(), 16);
    EXPECT_EQ(pool.workers[0]->stats().sessions_opened, 3u);
  }
}

// Two hundred requests from one attention rank while the other has none, and then one from the other: a rank
// without tokens costs nobody anything, and its own first request finds the FFN ranks as they were. Then all
// rows to the experts of one FFN rank and of the other. Here for every connector.
TEST_P(M2nOverTransport, ARankWithoutRowsHoldsNobodyUp) {
  for (const char* connector : {"m2n", "p2p", "auto"}) {
    Pool pool({.placement = on_attention(), .scheme = GetParam(), .ranks = 2, .connector = connector});
    const auto busy = pool.connect(0), silent = pool.connect(1);
    ASSERT_NE(busy, nullptr);
    ASSERT_NE(silent, nullptr);
    const auto run = [&](MultiRankFfn& port, Work& work) {
      const Status status = run_one(port, work);
      EXPECT_TRUE(status.has_value()) << connector << ": " << status.error().message;
      return status.has_value() && work.output_is_exact();
    };
    for (uint32_t i = 0; i < 200; ++i) {
      Work work(pool.reference, static_cast<LayerIndex>(1 + i % 2), 1 + i % 3, i);
      ASSERT_TRUE(run(*busy, work)) << connector << ", request " << i;
    }
    Work first(pool.reference, 1, 1, 1000);
    ASSERT_TRUE(run(*silent, first)) << connector;
    for (const int32_t owner : {0, 1, 0}) {
      Work work(pool.reference, 2, 4, 7, [owner](uint32_t row, uint32_t slot) {
        return owner * 4 + static_cast<int32_t>((row + slot) % 4);
      });
      ASSERT_TRUE(run(*silent, work)) << connector << ", all rows to FFN rank " << owner;
    }
    for (const auto& worker : pool.workers) EXPECT_EQ(worker->stats().sessions_closed, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, M2nOverTransport, testing::ValuesIn(all_schemes()),
                         [](const auto& param_info) { return param_info.param; });

// x and y are free, whether y divides the experts or not: 64, 10 and 7 over one to four FFN ranks.
TEST(M2n, AnyShapeWithAnyNumberOfExperts) {
  const std::pair<uint32_t, uint32_t> shapes[] = {{1, 1}, {2, 1}, {1, 3}, {1, 4}, {3, 2}, {4, 4}};
  for (const uint32_t experts : {64u, 10u, 7u}) {
    Placement placement = on_attention();
    placement.num_experts = experts;
    for (const auto& [attention, ffn] : shapes) {
      const std::string shape = std::to_string(attention) + "A" + std::to_string(ffn) + "F, " +
                                std::to_string(experts) + " experts";
      Pool pool({.placement = placement, .ranks = ffn});
      std::vector<std::unique_ptr<MultiRankFfn>> ports;
      std::vector<std::unique_ptr<Work>> works;
      for (uint32_t rank = 0; rank < attention; ++rank) {
        ports.push_back(pool.connect(rank));
        ASSERT_NE(ports.back(), nullptr) << shape;
        for (const uint32_t rows : {1u, 70u, 0u, 5u + rank})
          works.push_back(std::make_unique<Work>(pool.reference,
                                                 static_cast<LayerIndex>(1 + works.size() % 2), rows,
                                                 static_cast<uint32_t>(works.size() + 1)));
      }
      std::atomic<size_t> exact{0};
      std::vector<std::thread> clients;
      for (uint32_t rank = 0; rank < attention; ++rank) {
        clients.emplace_back([&, rank] {
          for (size_t i = 0; i < 4; ++i) {
            Work& work = *works[rank * 4 + i];
            if (run_one(*ports[rank], work).has_value() && work.output_is_exact()) ++exact;
          }
        });
      }
      for (std::thread& client : clients) client.join();
      EXPECT_EQ(exact.load(), works.size()) << shape;
      uint64_t rows = 0;
      for (const auto& worker : pool.workers) {
        EXPECT_EQ(worker->stats().sessions_opened, attention) << shape;
        rows += worker->stats().rows;
      }
      EXPECT_GE(rows, attention * 76u) << shape;  // each row to one owner at least
    }
  }
}

TEST(M2n, PlainSumsAreWithinRounding) {
  Pool pool({.placement = on_attention(SumMode::plain, DType::f32), .scheme = "inproc", .ranks = 3});
  const auto port = pool.connect();
  ASSERT_NE(port, nullptr);
  Work work(pool.reference, 1, 40, 3);
  ASSERT_TRUE(run_one(*port, work).has_value());
  EXPECT_LT(work.largest_error(), 1e-4f);
}

TEST(M2n, ALostRankFailsWhatNeedsItByNameAndComesBack) {
  Pool pool({.placement = on_attention(), .scheme = "shm", .ranks = 2});
  const auto port = pool.connect();
  ASSERT_NE(port, nullptr);
  ASSERT_TRUE(port->health().has_value());
  pool.workers[1].reset();
  ASSERT_TRUE(eventually([&] { return !port->health().has_value(); }));
  const std::string health = port->health().error().message;
  EXPECT_NE(health.find("FFN rank 1 at " + pool.addresses[1]), std::string::npos) << health;

  Work needs_it(pool.reference, 1, 8, 1,
                [](uint32_t row, uint32_t slot) { return static_cast<int32_t>(row % 3 + slot * 2); });
  const Status failed = run_one(*port, needs_it);
  ASSERT_FALSE(failed.has_value());
  EXPECT_NE(failed.error().message.find("FFN rank 1"), std::string::npos) << failed.error().message;
  EXPECT_TRUE(needs_it.output_is_untouched());
  Work does_not(pool.reference, 1, 8, 2, [](uint32_t, uint32_t slot) { return static_cast<int32_t>(slot); });
  ASSERT_TRUE(run_one(*port, does_not).has_value());
  EXPECT_TRUE(does_not.output_is_exact());

  pool.start(1);
  ASSERT_TRUE(eventually([&] { return port->health().has_value(); }));
  ASSERT_TRUE(run_one(*port, needs_it).has_value());
  EXPECT_TRUE(needs_it.output_is_exact());

  // Back with another share: the map would be wrong.
  pool.workers[1].reset();
  pool.models[1] = std::make_unique<SplitModel>(on_attention(), ExpertShare{{{5, 8}}, {}});
  pool.start(1);
  ASSERT_TRUE(eventually([&] {
    const Status now_health = port->health();
    return !now_health.has_value() &&
           now_health.error().message.find("came back with other experts") != std::string::npos;
  })) << port->health().error().message;
}

// One rank holds its answer back: the request waits for it, and a cancelled or late one leaves its place
// untouched.
TEST(M2n, ARequestEndsWhenAllItsOwnersHaveAnswered) {
  Pool pool({.placement = on_attention(), .scheme = "inproc", .ranks = 2});
  std::atomic<bool> hold{true};
  std::atomic<int> asked{0};
  pool.workers[1].reset();
  SplitModel& model = *pool.models[1];
  auto slow = FfnWorker::create(pool.worker_options(1), [&](const MoeRequest& request) {
    ++asked;
    while (hold.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return model.block().run(request);
  });
  ASSERT_TRUE(slow.has_value()) << slow.error().message;
  const auto port = pool.connect();
  ASSERT_NE(port, nullptr);
  struct Release {  // whatever fails below: the worker's thread must come to an end
    std::atomic<bool>& held;
    ~Release() { held.store(false); }
  } release{hold};
  const auto spread = [](uint32_t row, uint32_t slot) {
    return static_cast<int32_t>((row + 3 * slot) % kExperts);
  };
  Work waiting(pool.reference, 1, 6, 1, spread), cancelled(pool.reference, 2, 6, 2, spread),
      late(pool.reference, 2, 6, 3, spread);
  ASSERT_TRUE(port->submit(waiting.request).has_value());
  ASSERT_TRUE(eventually([&] { return asked.load() == 1; }));
  const Ticket unwanted = port->submit(cancelled.request).value();
  late.request.deadline = now() + std::chrono::milliseconds(30);
  const Ticket missed = port->submit(late.request).value();
  const auto ended = wait_for(*port, 1);  // rank 0 has answered long before
  ASSERT_EQ(ended.size(), 1u);
  const Completion& completion = ended.front();
  EXPECT_EQ(completion.ticket, missed);
  ASSERT_FALSE(completion.status.has_value());
  EXPECT_EQ(completion.status.error().code, ErrorCode::deadline_exceeded);
  EXPECT_NE(completion.status.error().message.find("FFN rank 1"), std::string::npos);
  port->cancel(unwanted);
  hold.store(false);
  const auto finished = wait_for(*port, 1);
  ASSERT_TRUE(finished.front().status.has_value());
  EXPECT_TRUE(waiting.output_is_exact());
  EXPECT_TRUE(cancelled.output_is_untouched());
  EXPECT_TRUE(late.output_is_untouched());
}

TEST(M2n, MissingExpertsStopTheStartByName) {
  Pool pool({.placement = on_attention(), .scheme = "inproc", .ranks = 2});
  pool.workers[1].reset();
  pool.models[1] = std::make_unique<SplitModel>(on_attention(), ExpertShare{{{5, 7}}, {}});
  pool.start(1);
  const auto port = MultiRankFfn::create(pool.remote_options());
  ASSERT_FALSE(port.has_value());
  EXPECT_NE(port.error().message.find("layer 1: experts 4, 7; layer 2: experts 4, 7"), std::string::npos)
      << port.error().message;
}

// Slices of 40 rows in granules of 8 on three ranks: 0-8, 8-24, 24-40. The second has less than it should.
TEST(M2n, AMissingSliceStopsTheStartByName) {
  Pool pool({.placement = on_attention(), .scheme = "inproc", .ranks = 3, .experts = {PlacementKind::slice}});
  pool.workers[1].reset();
  pool.models[1] = std::make_unique<SplitModel>(on_attention(), ExpertShare{{{0, 8}}, {8, 16}});
  pool.start(1);
  const auto port = MultiRankFfn::create(pool.remote_options());
  ASSERT_FALSE(port.has_value());
  EXPECT_NE(port.error().message.find("layer 1: experts 0-7, rows 16..24; layer 2: experts 0-7, rows 16..24"),
            std::string::npos)
      << port.error().message;
}

TEST(M2n, RanksOutOfOrderAndAbsentOnesAreNamed) {
  Pool pool({.placement = on_attention(), .scheme = "inproc", .ranks = 2});
  RemoteFfnOptions options = pool.remote_options();
  std::swap(options.addresses[0], options.addresses[1]);
  const auto swapped = MultiRankFfn::create(options);
  ASSERT_FALSE(swapped.has_value());
  EXPECT_NE(swapped.error().message.find("list FFN addresses in order of rank"), std::string::npos);
  pool.workers[1].reset();
  const Error absent = start_refusal<MultiRankFfn>(pool.remote_options(), "FFN rank 1 at", "FFN rank 0 at");
  EXPECT_EQ(absent.code, ErrorCode::deadline_exceeded);
  EXPECT_NE(absent.message.find("FFN rank 1 at"), std::string::npos) << absent.message;
  EXPECT_EQ(absent.message.find("FFN rank 0 at"), std::string::npos) << absent.message;
}

// A routing for experts of another rank is refused by the rank that gets it: its sum would lack them.
TEST(M2n, AWeightForAnExpertOfAnotherRankIsRefused) {
  Pool pool({.placement = on_attention(), .scheme = "inproc", .ranks = 2});
  RemoteFfnOptions options = pool.remote_options();
  options.addresses = {pool.addresses[1]};
  options.ffn_rank = 1;
  options.holds_part = true;
  const auto port = RemoteFfn::create(options);
  ASSERT_TRUE(port.has_value()) << port.error().message;
  Work work(pool.reference, 1, 3, 1, [](uint32_t row, uint32_t slot) {
    return static_cast<int32_t>(row == 2 && slot == 1 ? 3 : 5 + slot);
  });
  ASSERT_TRUE((*port)->submit(work.request, {.flags = kFramePartial}).has_value());
  const Status status = wait_for(**port, 1).front().status;
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().message.find("row 2: expert 3 of layer 1 is not on this rank"), std::string::npos)
      << status.error().message;
}

}  // namespace
}  // namespace tandem
