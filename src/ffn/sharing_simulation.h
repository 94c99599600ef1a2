// For tests: many clients on one FFN rank, with a simulated clock: TileQueue's rules (FfnScheduler,
// ShareClock) with clients that behave as told and calls that cost what experts and rows cost. Deterministic.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "ffn/client_share.h"
#include "ffn/ffn_scheduler.h"

namespace tandem::sharing_simulation {

struct SimulatedClient {
  uint32_t rows = 4;          // of a request
  uint32_t in_flight = 1;     // requests at once, each at a layer of its own
  double think_us = 100;      // mean time between an answer and the next request
  bool random_layer = false;  // instead of one layer after the other
  RowClass row_class = RowClass::decode;
  double starts_us = 0;
};

struct ClientOutcome {
  uint64_t tiles = 0, rows = 0;
  double used_us = 0, longest_wait_us = 0;
  std::vector<double> residence_us;
};

struct Outcome {
  std::vector<ClientOutcome> clients;
  uint64_t calls = 0, clients_in_calls = 0, rows = 0, sent = 0, answered = 0;
  double busy_us = 0, longest_call_us = 0, end_us = 0;
  double clients_per_call() const {
    return static_cast<double>(clients_in_calls) / static_cast<double>(calls);
  }
};

class Simulation {
 public:
  static constexpr uint32_t kLayers = 24;

  Simulation(std::vector<SimulatedClient> clients, const SchedulerPolicy& policy, uint32_t seed)
      : clients_(std::move(clients)), policy_(policy), random_(seed), shares_(clients_.size()) {
    outcome_.clients.resize(clients_.size());
    for (uint32_t c = 0; c < clients_.size(); ++c) {
      for (uint32_t i = 0; i < clients_[c].in_flight; ++i) {
        arrivals_.push_back(
            {clients_[c].starts_us + pause(c), c, static_cast<LayerIndex>(random_() % kLayers)});
      }
    }
  }

  // New requests until `stop_us`, then until all are answered.
  Outcome run(double stop_us) {
    while (true) {
      admit(stop_us);
      if (waiting_.empty()) {
        if (arrivals_.empty()) break;
        now_us_ = std::ranges::min_element(arrivals_, {}, &Arrival::at_us)->at_us;
        if (now_us_ >= stop_us) break;
        continue;
      }
      call();
    }
    outcome_.end_us = now_us_;
    return std::move(outcome_);
  }

  // What a call costs: reading the experts (50 us each), and some for every row.
  double cost_us(uint32_t rows) const { return 40 + 50 * expected_experts(policy_, rows) + 4.0 * rows; }

 private:
  struct Arrival {
    double at_us = 0;
    uint32_t client = 0;
    LayerIndex layer = 0;
  };
  struct Waiting {
    double at_us = 0;
    uint32_t client = 0;
    LayerIndex layer = 0;
    uint64_t request = 0;
  };

  double pause(uint32_t client) {
    return std::exponential_distribution<double>(1 / std::max(clients_[client].think_us, 1e-3))(random_);
  }

  bool prefill(uint32_t client) const { return is_prefill(clients_[client].row_class); }

  void admit(double stop_us) {
    std::ranges::sort(arrivals_, {}, &Arrival::at_us);
    size_t taken = 0;
    for (; taken < arrivals_.size() && arrivals_[taken].at_us <= now_us_; ++taken) {
      const Arrival& arrival = arrivals_[taken];
      if (arrival.at_us >= stop_us) continue;
      const bool in_prefill = prefill(arrival.client);
      clock_.arrive(shares_[arrival.client], in_prefill, FfnScheduler::credit(served_, in_prefill));
      waiting_.push_back({arrival.at_us, arrival.client, arrival.layer, next_request_++});
      ++outcome_.sent;
    }
    arrivals_.erase(arrivals_.begin(), arrivals_.begin() + static_cast<std::ptrdiff_t>(taken));
  }

  void view() {
    views_.clear();
    double least[2] = {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
    for (const Waiting& tile : waiting_) {
      const size_t column = prefill(tile.client) ? 1 : 0;
      const double used = shares_[tile.client].used_us[column];
      least[column] = std::min(least[column], used);
      QueuedTile made;
      made.layer = tile.layer;
      made.row_class = clients_[tile.client].row_class;
      made.rows = clients_[tile.client].rows;
      made.waited = std::chrono::duration_cast<Duration>(
          std::chrono::duration<double, std::micro>(now_us_ - tile.at_us));
      made.client = tile.client;
      made.request = tile.request;
      made.used_us = used;
      views_.push_back(made);
    }
    for (const bool in_prefill : {false, true}) {
      if (least[in_prefill] != std::numeric_limits<double>::infinity())
        clock_.advance(in_prefill, least[in_prefill]);
    }
  }

  void call() {
    view();
    FfnScheduler::next(views_, policy_, served_, picked_);
    uint32_t rows = 0;
    std::vector<bool> seen(clients_.size());
    for (const uint32_t index : picked_) {
      rows += views_[index].rows;
      outcome_.clients_in_calls += seen[views_[index].client] ? 0 : 1;
      seen[views_[index].client] = true;
    }
    const double cost = cost_us(rows);
    const bool in_prefill = is_prefill(views_[picked_.front()].row_class);
    const double began = now_us_;
    now_us_ += cost;
    ++outcome_.calls;
    outcome_.rows += rows;
    outcome_.busy_us += cost;
    outcome_.longest_call_us = std::max(outcome_.longest_call_us, cost);
    served_.add(in_prefill, cost, expected_experts(policy_, rows));
    for (const uint32_t index : picked_) {
      const Waiting& tile = waiting_[index];
      ClientOutcome& client = outcome_.clients[tile.client];
      const double part = cost * views_[index].rows / rows;
      ShareClock::charge(shares_[tile.client], in_prefill, part);
      client.used_us += part;
      ++client.tiles;
      client.rows += views_[index].rows;
      client.longest_wait_us = std::max(client.longest_wait_us, began - tile.at_us);
      client.residence_us.push_back(now_us_ - tile.at_us);
      ++outcome_.answered;
      const auto next = clients_[tile.client].random_layer ? random_() % kLayers : (tile.layer + 1) % kLayers;
      arrivals_.push_back({now_us_ + pause(tile.client), tile.client, static_cast<LayerIndex>(next)});
    }
    std::ranges::sort(picked_, std::greater<>());
    for (const uint32_t index : picked_) waiting_.erase(waiting_.begin() + index);
  }

  const std::vector<SimulatedClient> clients_;
  const SchedulerPolicy policy_;
  std::mt19937 random_;
  std::vector<ClientShare> shares_;
  ShareClock clock_;
  ServedTime served_;
  std::vector<Arrival> arrivals_;
  std::vector<Waiting> waiting_;
  std::vector<QueuedTile> views_;
  std::vector<uint32_t> picked_;
  uint64_t next_request_ = 1;
  double now_us_ = 0;
  Outcome outcome_;
};

inline double percentile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

}  // namespace tandem::sharing_simulation
