// The split against the block itself: whatever the transport, the placement, the tiles and the neighbours,
// the same bits.
#include <thread>

#include "ffn/split_testing.h"

namespace tandem {
namespace {

using namespace split_testing;

struct Connected {
  Connected(const Placement& placement, const std::string& scheme, uint32_t slots = 8)
      : ffn(placement), reference(placement) {
    auto options = ffn.worker_options(fresh_address(scheme));
    options.slots_per_channel = slots;
    auto started = FfnWorker::create(options, ffn.block());
    EXPECT_TRUE(started.has_value()) << started.error().message;
    worker = std::move(*started);
    port = connect(0, slots);
  }
  std::unique_ptr<RemoteFfn> connect(uint32_t rank, uint32_t slots = 8) {
    auto options = reference.remote_options(worker->address());
    options.slots_per_channel = slots;
    options.attention_rank = rank;
    auto remote = RemoteFfn::create(options);
    EXPECT_TRUE(remote.has_value()) << remote.error().message;
    return remote ? std::move(*remote) : nullptr;
  }

  SplitModel ffn, reference;
  std::unique_ptr<FfnWorker> worker;
  std::unique_ptr<RemoteFfn> port;
};

class SplitOverTransport : public testing::TestWithParam<std::string> {};

TEST_P(SplitOverTransport, EqualsTheBlockBitForBitInEveryPlacement) {
  for (int mode = 0; mode < 12; ++mode) {
    Placement placement;
    placement.gate_on_attention = mode % 3 == 1;
    placement.token_ids = mode % 3 == 2;
    placement.shared_on_attention = (mode / 3) % 2 == 1;
    placement.dtype = mode / 6 == 0 ? DType::bf16 : DType::f32;
    placement.hashed = mode % 3 != 0 && mode / 3 % 3 != 0;
    placement.sum_mode = mode % 2 == 0 ? SumMode::plain : SumMode::deterministic;
    Connected split(placement, GetParam());
    ASSERT_NE(split.port, nullptr);
    EXPECT_EQ(split.port->traits().routes, !placement.gate_on_attention);
    uint32_t step = 0;
    for (const uint32_t rows : {1u, 7u, 64u, 65u, 200u}) {
      for (const LayerIndex layer : {1, 2}) {
        Work work(split.reference, layer, rows, ++step);
        const Status status = run_one(*split.port, work);
        ASSERT_TRUE(status.has_value()) << status.error().message;
        ASSERT_TRUE(work.output_is_exact()) << "mode " << mode << ", rows " << rows;
      }
    }
    EXPECT_EQ(split.worker->stats().tiles, split.port->stats().replies);
  }
}

// Shared experts behind the port get the quantised rows, those on attention the others: both places equal the
// block of the same placement.
TEST_P(SplitOverTransport, QuantizedRowsEqualTheBlockBitForBit) {
  for (const ActivationFormat format : kQuantizedFormats) {
    for (int mode = 0; mode < 4; ++mode) {
      Placement placement;
      placement.gate_on_attention = true;
      placement.shared_on_attention = mode % 2 == 1;
      placement.dtype = mode / 2 == 0 ? DType::bf16 : DType::f32;
      placement.sum_mode = mode % 2 == 0 ? SumMode::plain : SumMode::deterministic;
      placement.format = format;
      Connected split(placement, GetParam());
      ASSERT_NE(split.port, nullptr);
      EXPECT_EQ(split.port->traits().activation_format, format);
      uint32_t step = 0;
      for (const uint32_t rows : {1u, 7u, 64u, 65u, 200u}) {
        for (const LayerIndex layer : {1, 2}) {
          Work work(split.reference, layer, rows, ++step);
          const Status status = run_one(*split.port, work);
          ASSERT_TRUE(status.has_value()) << status.error().message;
          ASSERT_TRUE(work.output_is_exact())
              << activation_format_name(format) << ", mode " << mode << ", rows " << rows;
        }
      }
    }
  }
}

// What comes back for the same rows under another scaling factor. Rows are float32, and sums have no grid, so
// that a power of two commutes with every rounding.
std::vector<float> reply_under(Placement placement, float factor) {
  placement.dtype = DType::f32;
  placement.scaling_factor = factor;
  Connected split(placement, "inproc");
  Work work(split.reference, 1, 9, 5);
  const Status status = run_one(*split.port, work);
  EXPECT_TRUE(status.has_value()) << status.error().message;
  std::vector<float> out(work.output().size() / sizeof(float));
  std::memcpy(out.data(), work.output().data(), work.output().size());
  return out;
}

// Gate on either side, shared experts on either side, every activation dtype. The routed part alone is what
// comes back where the shared experts are on attention; what the shared experts add must be the same whatever
// the factor.
TEST(ScalingFactor, CountsOnceInTheRoutedPartAndNotInTheShared) {
  for (const ActivationFormat format :
       {ActivationFormat::plain, ActivationFormat::fp8, ActivationFormat::mxfp8, ActivationFormat::int8}) {
    for (const bool gate : {false, true}) {
      if (!gate && is_quantized(format)) continue;  // refused: the gate must see the rows as they were
      const auto replies = [&](bool shared, float factor) {
        return reply_under({.gate_on_attention = gate, .shared_on_attention = shared, .format = format},
                           factor);
      };
      const auto routed = replies(true, 1.0f), routed_double = replies(true, 2.0f),
                 routed_more = replies(true, 2.5f);
      const auto both = replies(false, 1.0f), both_double = replies(false, 2.0f),
                 both_more = replies(false, 2.5f);
      float largest_routed = 0, largest_shared = 0;
      for (size_t i = 0; i < routed.size(); ++i) {
        const std::string where = std::string(activation_format_name(format)) + ", gate on attention " +
                                  std::to_string(gate) + ", value " + std::to_string(i);
        largest_routed = std::max(largest_routed, std::abs(routed[i]));
        ASSERT_EQ(routed_double[i], 2 * routed[i]) << where;  // a power of two commutes with rounding
        // Otherwise each weight is rounded once more, and a sum at its own size.
        const float tolerance = 1e-5f * (1 + std::abs(routed_more[i]) + std::abs(both_more[i]));
        ASSERT_NEAR(routed_more[i], 2.5f * routed[i], tolerance) << where;
        const float shared = both[i] - routed[i];
        ASSERT_NEAR(both_double[i] - routed_double[i], shared, tolerance) << where;
        ASSERT_NEAR(both_more[i] - routed_more[i], shared, tolerance) << where;
        largest_shared = std::max(largest_shared, std::abs(shared));
      }
      EXPECT_GT(largest_routed, 0.1f) << "nothing to scale";
      EXPECT_GT(largest_shared, 0.1f) << "nothing to leave alone";
    }
  }
}

// With one credit, far more tiles than slots, both classes and both layers: everything ends.
TEST_P(SplitOverTransport, ManyRequestsWithOneCreditNeverHang) {
  Placement placement;
  placement.gate_on_attention = true;
  Connected split(placement, GetParam(), 1);
  ASSERT_NE(split.port, nullptr);
  std::vector<std::unique_ptr<Work>> works;
  std::vector<Completion> finished;
  for (uint32_t i = 0; i < 64; ++i) {
    works.push_back(std::make_unique<Work>(split.reference, static_cast<LayerIndex>(1 + i % 2),
                                           i % 5 == 0 ? 150 : 3 + i, i));
    works.back()->request.row_class = i % 3 == 0 ? RowClass::prefill : RowClass::decode;
    works.back()->request.lane = static_cast<LaneId>(i % 2);
    submit(*split.port, works.back()->request, finished);
  }
  for (Completion& completion : wait_for(*split.port, works.size() - finished.size())) {
    finished.push_back(std::move(completion));
  }
  for (const Completion& completion : finished)
    EXPECT_TRUE(completion.status.has_value()) << completion.status.error().message;
  for (const auto& work : works) EXPECT_TRUE(work->output_is_exact());
}

// Several clients at once, unequal rows, one of them silent: nobody waits for anybody, and merging changes no
// bit.
TEST_P(SplitOverTransport, ClientsOfUnequalLoadAreServedTogether) {
  Connected split({}, GetParam());
  auto second = split.connect(1);
  auto silent = split.connect(2);
  ASSERT_NE(second, nullptr);
  ASSERT_NE(silent, nullptr);
  const std::pair<uint32_t, uint32_t> rows[] = {{1, 7}, {7, 1}, {0, 8}, {8, 0}, {4, 4}, {0, 0}, {130, 2}};
  std::atomic<int> exact{0};
  // Works are made before: the reference block belongs to one thread.
  std::vector<std::unique_ptr<Work>> works[2];
  uint32_t step = 0;
  for (int round = 0; round < 5; ++round) {
    for (const auto& [first_rows, second_rows] : rows) {
      works[0].push_back(std::make_unique<Work>(split.reference, 1, first_rows, ++step));
      works[1].push_back(std::make_unique<Work>(split.reference, 1, second_rows, ++step));
    }
  }
  const auto client = [&](RemoteFfn& port, std::vector<std::unique_ptr<Work>>& mine) {
    for (auto& work : mine) {
      const Status status = run_one(port, *work);
      if (status.has_value() && work->output_is_exact()) ++exact;
    }
  };
  std::thread other([&] { client(*second, works[1]); });
  client(*split.port, works[0]);
  other.join();
  EXPECT_EQ(exact.load(), 70);
  EXPECT_EQ(split.worker->stats().sessions_opened, 3u);
  EXPECT_EQ(split.worker->clients().size(), 3u);
}

// Rows beyond `rows` are capacity only: poison in them reaches nobody.
TEST_P(SplitOverTransport, PaddedRowsAreNeitherSentNorWritten) {
  Placement placement;
  placement.gate_on_attention = true;
  Connected split(placement, GetParam());
  Work work(split.reference, 1, 5, 9);
  std::vector<bf16> padded(8 * kHidden, to_bf16(std::numeric_limits<float>::quiet_NaN()));
  std::memcpy(padded.data(), work.request.in.data, 5 * kHidden * sizeof(bf16));
  work.request.in.data = padded.data();
  work.request.capacity = 8;
  ASSERT_TRUE(run_one(*split.port, work).has_value());
  EXPECT_TRUE(work.output_is_exact());
  EXPECT_EQ(split.worker->stats().rows, 5u);
  ASSERT_TRUE(
      run_one(*split.port, work).has_value());  // what the block counted for the first is in the stats by now
  EXPECT_GE(split.worker->stats().expert_rows, 5u * kTopK);
  EXPECT_NE(describe(split.worker->stats()).find("2 tiles, 10 rows in 2 groups"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Transports, SplitOverTransport, testing::ValuesIn(all_schemes()),
                         [](const auto& param_info) { return param_info.param; });

// While the compute thread is held by a first group, tiles of several clients pile up; they then run as one
// group.
TEST(FfnWorker, MergesWaitingTilesOfSeveralClients) {
  SplitModel ffn({}), reference({});
  std::atomic<bool> hold{true};
  std::atomic<int> calls{0};
  auto worker =
      FfnWorker::create(ffn.worker_options(fresh_address("inproc")), [&](const MoeRequest& request) {
        if (calls.fetch_add(1) == 0) {
          while (hold.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return ffn.block().run(request);
      });
  ASSERT_TRUE(worker.has_value()) << worker.error().message;
  std::vector<std::unique_ptr<RemoteFfn>> ports;
  std::vector<std::unique_ptr<Work>> works;
  for (uint32_t i = 0; i < 4; ++i) {
    auto options = reference.remote_options((*worker)->address());
    options.attention_rank = i;
    ports.push_back(std::move(*RemoteFfn::create(options)));
    works.push_back(std::make_unique<Work>(reference, 2, 3 + i, i));
  }
  Work first(reference, 1, 2, 99);
  ASSERT_TRUE(ports[0]->submit(first.request).has_value());
  while (calls.load() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (size_t i = 0; i < 4; ++i) ASSERT_TRUE(ports[i]->submit(works[i]->request).has_value());
  const auto waiting = [&] {
    uint32_t tiles = 0;
    for (const auto& client : (*worker)->clients()) tiles += client.waiting_tiles;
    return tiles;
  };
  while (waiting() < 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  hold.store(false);
  wait_for(*ports[0], 2);
  for (size_t i = 1; i < 4; ++i) wait_for(*ports[i], 1);
  for (const auto& work : works) EXPECT_TRUE(work->output_is_exact());
  EXPECT_TRUE(first.output_is_exact());
  const FfnStats stats = (*worker)->stats();
  EXPECT_EQ(stats.groups, 2u);
  EXPECT_EQ(stats.max_clients_in_group, 4u);
  EXPECT_EQ(stats.clients_in_groups, 5u);
  EXPECT_EQ(stats.tiles, 5u);
}

TEST(RemoteFfn, ChecksARequestBeforeItIsSent) {
  Placement placement;
  placement.gate_on_attention = true;
  Connected split(placement, "inproc");
  Work work(split.reference, 1, 4, 1);
  const auto error = [&](auto change) {
    FfnRequest request = work.request;
    change(request);
    const auto ticket = split.port->submit(request);
    return ticket ? std::string("accepted") : ticket.error().message;
  };
  EXPECT_NE(error([](auto& r) { r.layer = 0; }).find("layer 0"), std::string::npos);
  EXPECT_NE(error([](auto& r) { r.layer = 77; }).find("layer 77"), std::string::npos);
  EXPECT_NE(error([](auto& r) { r.rows = 5; }).find("5 rows with capacity 4"), std::string::npos);
  EXPECT_NE(error([](auto& r) { r.in.dtype = DType::f32; }).find("f32"), std::string::npos);
  EXPECT_NE(error([](auto& r) { r.out.bytes -= 1; }).find("reply of 4 rows"), std::string::npos);
  EXPECT_NE(error([](auto& r) { r.out.space = MemorySpace::device; }).find("device"), std::string::npos);
  EXPECT_NE(error([](auto& r) { r.routing = NoRouting{}; }).find("no routing"), std::string::npos);
  std::vector<int32_t> ids(4 * kTopK, 1);
  std::vector<float> weights(4 * kTopK, 1);
  ids[5] = static_cast<int32_t>(kExperts);
  EXPECT_NE(error([&](auto& r) { r.routing = RoutingView{ids, weights, kTopK}; }).find("expert id 8"),
            std::string::npos);
  ids[5] = 1;
  weights[3] = weights[4] = weights[5] = 0;
  EXPECT_NE(error([&](auto& r) { r.routing = RoutingView{ids, weights, kTopK}; }).find("row 1"),
            std::string::npos);
  EXPECT_EQ(split.worker->stats().tiles_refused, 0u);
  EXPECT_EQ(split.port->stats().tiles_sent, 0u);
}

}  // namespace
}  // namespace tandem
