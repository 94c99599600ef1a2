// Graph mode on an FFN rank: a program is chosen by the rows that came from all clients together, and what
// stands in its spare rows reaches nobody.
#include <limits>
#include <thread>

#include "afd/multi_rank_ffn.h"
#include "ffn/split_testing.h"

namespace tandem {
namespace {

using namespace split_testing;

SplitSettings in_graph_mode(SplitSettings settings) {
  settings.graph = true;
  settings.capture_sizes = {8, 16};
  return settings;
}

// y FFN ranks whose first group waits until the test lets it go, so that tiles of several clients meet in one
// group.
class HeldRanks {
 public:
  HeldRanks(const Placement& placement, uint32_t ranks, const std::string& connector = "m2n")
      : reference(placement), connector_(connector) {
    for (uint32_t rank = 0; rank < ranks; ++rank) addresses_.push_back(fresh_address("inproc"));
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const auto share = held_share(reference.settings().map_shape(), {}, rank, ranks);
      EXPECT_TRUE(share.has_value()) << share.error().message;
      models_.push_back(std::make_unique<SplitModel>(placement, *share));
      SplitModel& model = *models_.back();
      auto options = model.worker_options(addresses_[rank], static_cast<uint16_t>(rank));
      options.settings = settings_of(options.settings);
      options.ffn_addresses = addresses_;
      // Whatever the routing, the other ranks get all rows.
      options.exchange = ExchangeKind::allgather;
      const auto compute = [this, &model](const MoeRequest& request) {
        held_.fetch_add(1);
        while (hold_.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return model.block().run(request);
      };
      const auto route = [&model](LayerIndex layer, uint32_t rows, ActivationView in, std::span<int32_t> ids,
                                  std::span<float> weights, std::span<const int32_t> tokens) {
        return model.block().route_rows(layer, rows, in, ids, weights, tokens);
      };
      auto worker = FfnWorker::create(options, compute, route);
      EXPECT_TRUE(worker.has_value()) << worker.error().message;
      workers.push_back(std::move(*worker));
    }
  }
  ~HeldRanks() { hold_.store(false); }

  std::unique_ptr<FfnPort> connect(uint32_t attention_rank) {
    auto options = reference.remote_options("");
    options.settings = settings_of(options.settings);
    options.addresses = addresses_;
    options.attention_rank = attention_rank;
    if (addresses_.size() == 1) {
      auto port = RemoteFfn::create(options);
      EXPECT_TRUE(port.has_value()) << port.error().message;
      return port ? std::move(*port) : nullptr;
    }
    auto port = MultiRankFfn::create(options);
    EXPECT_TRUE(port.has_value()) << port.error().message;
    return port ? std::move(*port) : nullptr;
  }

  void hold() {
    held_.store(0);
    hold_.store(true);
  }
  void release() { hold_.store(false); }
  void wait_until_held() {
    while (held_.load() < static_cast<int>(workers.size()))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  uint32_t waiting_tiles() const {
    uint32_t tiles = 0;
    for (const auto& worker : workers) {
      for (const auto& client : worker->clients()) tiles += client.waiting_tiles;
    }
    return tiles;
  }

  SplitModel reference;
  std::vector<std::unique_ptr<FfnWorker>> workers;

 private:
  SplitSettings settings_of(SplitSettings settings) const {
    if (addresses_.size() > 1) {
      settings.connector = connector_;
      settings.num_ffn_ranks = static_cast<uint32_t>(addresses_.size());
    }
    return in_graph_mode(settings);
  }

  const std::string connector_;
  std::vector<std::unique_ptr<SplitModel>> models_;
  std::vector<std::string> addresses_;
  std::atomic<bool> hold_{false};
  std::atomic<int> held_{0};
};

struct Shape {
  const char* connector;
  uint32_t ffn_ranks;
  std::vector<uint32_t> rows;  // of each attention rank
  uint32_t program;            // that must run them; 0: none holds them, the group runs eager
};

// Rows spread over all experts, so that every FFN rank has a part in every row.
int32_t spread(uint32_t row, uint32_t slot) {
  return static_cast<int32_t>((row + 3 * slot) % kExperts);
}

// 2A1F, 3A1F and 3A2F. The word of every tile is that of its own client, which knows nothing of the others.
// Under p2p FFN rank 0 is home to all of them, and the other rank gets one part with the rows of all.
TEST(FfnGraphMode, AProgramIsChosenByTheRowsOfAllClientsTogether) {
  const Shape shapes[] = {{"p2p", 1, {1, 7}, 8},     {"p2p", 1, {7, 1}, 8},     {"p2p", 1, {0, 8}, 8},
                          {"p2p", 1, {8, 8}, 16},    {"p2p", 1, {1, 8}, 16},    {"p2p", 1, {7, 2, 7}, 16},
                          {"p2p", 1, {8, 8, 8}, 0},  {"m2n", 2, {1, 7, 0}, 8},  {"m2n", 2, {7, 1, 0}, 8},
                          {"m2n", 2, {0, 8, 0}, 8},  {"m2n", 2, {8, 1, 7}, 16}, {"p2p", 2, {1, 7, 0}, 8},
                          {"p2p", 2, {8, 1, 7}, 16}, {"p2p", 2, {8, 8, 8}, 0}};
  for (const bool gate : {false, true}) {
    for (const Shape& shape : shapes) {
      const bool exchanges = shape.ffn_ranks > 1 && shape.connector == std::string("p2p");
      if (shape.ffn_ranks > 1 && !exchanges && !gate) continue;  // m2n needs it
      std::string what = std::string(shape.connector) + ", " + std::to_string(shape.ffn_ranks) +
                         " FFN ranks, gate on attention " + std::to_string(gate) + ":";
      for (const uint32_t rows : shape.rows) what += " " + std::to_string(rows);
      const Placement placement{.gate_on_attention = gate,
                                .shared_on_attention = gate,
                                .token_ids = !gate,
                                .hashed = true,
                                .sum_mode = SumMode::deterministic};
      HeldRanks ranks(placement, shape.ffn_ranks, shape.connector);
      std::vector<std::unique_ptr<FfnPort>> ports;
      std::vector<std::unique_ptr<Work>> works;
      const auto expert_of = gate ? std::function<int32_t(uint32_t, uint32_t)>(spread) : nullptr;
      for (uint32_t rank = 0; rank < shape.rows.size(); ++rank) {
        ports.push_back(ranks.connect(rank * shape.ffn_ranks));  // their first home is FFN rank 0
        ASSERT_NE(ports.back(), nullptr) << what;
        works.push_back(std::make_unique<Work>(ranks.reference, 2, shape.rows[rank], rank + 1, expert_of));
        works.back()->request.program = 8;
      }
      Work first(ranks.reference, 1, 8, 99, expert_of);  // eager; it holds every FFN rank
      const auto blocker = ranks.connect(static_cast<uint32_t>(shape.rows.size()) * shape.ffn_ranks);
      ASSERT_NE(blocker, nullptr) << what;
      ranks.hold();
      ASSERT_TRUE(blocker->submit(first.request).has_value());
      ranks.wait_until_held();
      uint32_t tiles = 0;
      for (size_t i = 0; i < works.size(); ++i) {
        ASSERT_TRUE(ports[i]->submit(works[i]->request).has_value()) << what;
        // One row has three experts: over two ranks it goes to both, from its home or from here.
        if (shape.rows[i] != 0) tiles += exchanges ? 1 : shape.ffn_ranks;
      }
      while (ranks.waiting_tiles() < tiles) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ranks.release();
      for (size_t i = 0; i < works.size(); ++i) {
        const auto ended = wait_for(*ports[i], 1);
        ASSERT_TRUE(ended.size() == 1 && ended.front().status.has_value()) << what;
        EXPECT_TRUE(works[i]->output_is_exact()) << what << ", client " << i;
      }
      wait_for(*blocker, 1);
      EXPECT_TRUE(first.output_is_exact()) << what;
      uint32_t all = 0;
      for (const uint32_t rows : shape.rows) all += rows;
      for (const auto& worker : ranks.workers) {
        const FfnStats stats = worker->stats();
        EXPECT_EQ(stats.groups, 2u) << what;
        EXPECT_EQ(stats.graph_replays, shape.program == 0 ? 0u : 1u) << what;
        // A home that misses asks its peers for no replay: no program holds the rows there, either.
        const bool asked = !exchanges || worker == ranks.workers.front();
        EXPECT_EQ(stats.graph_misses, shape.program == 0 && asked ? 1u : 0u) << what;
        EXPECT_EQ(stats.eager_groups, shape.program == 0 ? 2u : 1u) << what;
        EXPECT_EQ(stats.graph_padded_replays, all < shape.program ? 1u : 0u) << what;
      }
    }
  }
}

// A capture of eight rows with five live ones: attention's spare rows hold poison, and the program's spare
// rows hold what a full replay of poison left there.
TEST(FfnGraphMode, SpareRowsOfAReplayReachNobody) {
  for (const bool gate : {false, true}) {
    for (const float poison : {std::numeric_limits<float>::quiet_NaN(), 1e30f}) {
      const std::string what = "gate on attention " + std::to_string(gate) + ", " + std::to_string(poison);
      HeldRanks ranks({.gate_on_attention = gate}, 1);
      FfnWorker& worker = *ranks.workers[0];
      const auto port = ranks.connect(0);
      ASSERT_NE(port, nullptr);
      Work work(ranks.reference, 1, 5, 9), full(ranks.reference, 1, 8, 10);
      ASSERT_TRUE(run_one(*port, work).has_value());  // eager
      ASSERT_TRUE(work.output_is_exact()) << what;

      const std::vector<bf16> rows_of_poison(8 * kHidden, to_bf16(poison));
      full.request.in.data = rows_of_poison.data();
      full.request.program = 8;
      (void)run_one(*port, full);  // whatever comes of it

      std::vector<bf16> rows(rows_of_poison);
      std::memcpy(rows.data(), work.request.in.data, 5 * kHidden * sizeof(bf16));
      const std::vector<std::byte> expected(work.output().begin(), work.output().end());
      std::vector<std::byte> out(expected.size() / 5 * 8, std::byte{0xee});
      FfnRequest request = work.request;
      request.in.data = rows.data();
      request.capacity = request.program = 8;
      request.out = {out.data(), expected.size(), MemorySpace::host};
      const FfnStats before = worker.stats();
      const auto ticket = port->submit(request);
      ASSERT_TRUE(ticket.has_value()) << ticket.error().message;
      ASSERT_TRUE(wait_for(*port, 1).front().status.has_value()) << what;
      const FfnStats after = worker.stats();
      EXPECT_EQ(after.graph_padded_replays - before.graph_padded_replays, 1u) << what;
      EXPECT_EQ(after.rows - before.rows, 5u) << "sent: " << what;
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), out.begin())) << what;
      EXPECT_TRUE(std::all_of(out.begin() + static_cast<std::ptrdiff_t>(expected.size()), out.end(),
                              [](std::byte byte) { return byte == std::byte{0xee}; }))
          << what;
    }
  }
}

}  // namespace
}  // namespace tandem
