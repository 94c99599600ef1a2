// Properties of the scheduler with many clients, on a simulated clock: nothing here depends on the machine.
#include "ffn/sharing_simulation.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

using namespace sharing_simulation;

SchedulerPolicy policy_of(GroupOrder order) {
  SchedulerPolicy policy;
  policy.order = order;
  policy.num_experts = 32;
  policy.top_k = 4;
  return policy;
}

std::vector<SimulatedClient> equal_clients(size_t count, double think_us = 200) {
  return std::vector<SimulatedClient>(count, SimulatedClient{.rows = 4, .think_us = think_us});
}

Outcome simulate(std::vector<SimulatedClient> clients, GroupOrder order = GroupOrder::grouped,
                 uint32_t seed = 1, double seconds = 5) {
  return Simulation(std::move(clients), policy_of(order), seed).run(seconds * 1e6);
}

// Everything that sixteen clients of four rows can do to each other.
TEST(SharingSimulation, MergingBeatsFifoAndOldestFirst) {
  const Outcome merged = simulate(equal_clients(16)),
                oldest = simulate(equal_clients(16), GroupOrder::oldest),
                alone = simulate(equal_clients(16), GroupOrder::fifo);
  EXPECT_GE(merged.clients_per_call(), 2.0);
  EXPECT_EQ(alone.clients_per_call(), 1.0);
  EXPECT_GT(merged.clients_per_call(), oldest.clients_per_call());
  EXPECT_GE(static_cast<double>(merged.rows), 1.3 * static_cast<double>(alone.rows));
  EXPECT_GE(merged.rows, oldest.rows);
}

TEST(SharingSimulation, EqualClientsGetEqualShares) {
  const Outcome outcome = simulate(equal_clients(16));
  const auto [least, most] = std::ranges::minmax(outcome.clients, {}, &ClientOutcome::rows);
  EXPECT_LE(static_cast<double>(most.rows), 1.15 * static_cast<double>(least.rows));
}

SimulatedClient flooder() {
  return {.rows = 64, .in_flight = 8, .think_us = 0, .random_layer = true};
}

// A flood has its own share of the time, and what it takes from the others is little more than that share.
TEST(SharingSimulation, AFloodTakesItsShareAndNoMore) {
  for (const size_t others : {2, 8, 16}) {
    std::vector<SimulatedClient> clients = equal_clients(others);
    const Outcome before = simulate(clients);
    clients.push_back(flooder());
    const Outcome flooded = simulate(clients);
    uint64_t rows_before = 0, rows_flooded = 0;
    std::vector<double> residence_before, residence_flooded;
    for (size_t c = 0; c < others; ++c) {
      rows_before += before.clients[c].rows;
      rows_flooded += flooded.clients[c].rows;
      const auto append = [c](const Outcome& from, std::vector<double>& to) {
        to.insert(to.end(), from.clients[c].residence_us.begin(), from.clients[c].residence_us.end());
      };
      append(before, residence_before);
      append(flooded, residence_flooded);
    }
    // The flood takes what is left over, so a lightly loaded rank gives it more than an even share.
    EXPECT_GE(static_cast<double>(rows_flooded), 0.5 * static_cast<double>(rows_before)) << others;
    // Nobody meets more than the call under way and one more of the flood's.
    const double call = Simulation(clients, policy_of(GroupOrder::grouped), 1).cost_us(64);
    EXPECT_LE(percentile(residence_flooded, 0.99), percentile(residence_before, 0.99) + 2.5 * call) << others;
    EXPECT_GT(flooded.clients.back().rows, 0u);
    // First come first served gives the flood the rank.
    const Outcome unfair = simulate(clients, GroupOrder::oldest);
    EXPECT_GT(flooded.clients.front().rows, unfair.clients.front().rows) << others;
  }
}

// Two that both want everything: one in tiles of 64 rows, one in tiles of 4 whose calls are as many as it
// likes.
TEST(SharingSimulation, BackloggedClientsShareTimeEvenly) {
  std::vector<SimulatedClient> clients = {flooder(), flooder(), flooder()};
  clients[1].rows = 4;
  clients[2].rows = 16;
  const Outcome outcome = simulate(clients);
  const auto [least, most] = std::ranges::minmax(outcome.clients, {}, &ClientOutcome::used_us);
  EXPECT_LE(most.used_us, 1.15 * least.used_us);
}

// A client that comes late, or comes back, neither pays for what others did before nor is paid for it.
TEST(SharingSimulation, WhoComesLateStartsEven) {
  std::vector<SimulatedClient> clients = {flooder(), flooder()};
  clients[1].starts_us = 4e6;
  const Outcome outcome = simulate(clients, GroupOrder::grouped, 1, 8);
  EXPECT_NEAR(outcome.clients[1].used_us, 2e6, 0.1e6);
  EXPECT_NEAR(outcome.clients[0].used_us, 6e6, 0.1e6);
}

// Decode before prefill, which keeps its share, whoever asks for it.
TEST(SharingSimulation, PrefillOfManyClientsDoesNotStopDecode) {
  std::vector<SimulatedClient> clients = equal_clients(4);
  for (int i = 0; i < 8; ++i) {
    clients.push_back(flooder());
    clients.back().row_class = RowClass::prefill;
  }
  const Outcome outcome = simulate(clients);
  std::vector<double> residence;
  double prefill_us = 0;
  for (size_t c = 0; c < clients.size(); ++c) {
    const ClientOutcome& client = outcome.clients[c];
    if (c < 4) residence.insert(residence.end(), client.residence_us.begin(), client.residence_us.end());
    if (c >= 4) prefill_us += client.used_us;
  }
  EXPECT_GE(prefill_us, 0.2 * outcome.busy_us);  // and what decode leaves
  EXPECT_LE(percentile(residence, 0.99), 4 * outcome.longest_call_us);
}

// Any mixture: everything is answered, nobody waits beyond a bound that the number of clients gives.
TEST(SharingSimulation, RandomClientsAllEndWithinABound) {
  std::mt19937 random(7);
  for (uint32_t round = 0; round < 60; ++round) {
    std::vector<SimulatedClient> clients(1 + random() % 24);
    double requests = 0;
    for (SimulatedClient& client : clients) {
      client.rows = 1 + random() % 64;
      client.in_flight = 1 + random() % 8;
      client.think_us = static_cast<double>(random() % 3000);
      client.random_layer = random() % 2 == 0;
      client.starts_us = static_cast<double>(random() % 500000);
      if (random() % 4 == 0) client.row_class = random() % 2 == 0 ? RowClass::prefill : RowClass::draft;
      requests += client.in_flight;
    }
    const Outcome outcome = simulate(clients, GroupOrder::grouped, round, 1);
    ASSERT_EQ(outcome.answered, outcome.sent) << round;
    // At worst every request that can wait goes before, at the prefill share's pace; and the age of who is
    // ahead.
    const double bound =
        (requests * outcome.longest_call_us) * 5 + 16 * std::max(500e3, 8 * outcome.longest_call_us);
    for (size_t c = 0; c < clients.size(); ++c) {
      EXPECT_LE(outcome.clients[c].longest_wait_us, bound) << round << ", client " << c;
      if (!is_prefill(clients[c].row_class)) {
        EXPECT_LE(outcome.clients[c].longest_wait_us,
                  16 * std::max(20e3, 8 * outcome.longest_call_us) + 5 * requests * outcome.longest_call_us)
            << round << ", client " << c;
      }
    }
  }
}

}  // namespace
}  // namespace tandem
