// For tests: y FFN ranks with a share of the experts each, in this process, and attention ranks as they are
// wanted.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "afd/multi_rank_ffn.h"
#include "ffn/split_testing.h"
#include "transport/reserved_port.h"

namespace tandem::split_testing {

struct PoolOptions {
  Placement placement;
  std::string scheme = "inproc";
  uint32_t ranks = 2;
  std::string connector = "m2n";
  ExchangeKind exchange = ExchangeKind::automatic;
  uint32_t slots = 8;
  ExpertPlacement experts = {};
  std::vector<uint32_t> capture_sizes = {};  // graph mode, unless empty
  ReplicaChoice replica_choice = ReplicaChoice::by_row;
  uint32_t max_sessions = 64;
};

struct Pool {
  explicit Pool(const PoolOptions& wanted) : options(wanted), reference(wanted.placement) {
    for (uint32_t rank = 0; rank < options.ranks; ++rank) {
      const auto share = held_share(reference.settings().map_shape(), options.experts, rank, options.ranks);
      EXPECT_TRUE(share.has_value()) << share.error().message;
      models.push_back(std::make_unique<SplitModel>(options.placement, *share));
      addresses.push_back(known_address());
      workers.emplace_back();
    }
    for (uint32_t rank = 0; rank < options.ranks; ++rank) start(rank);
  }

  FfnWorkerOptions worker_options(uint32_t rank) const {
    auto worker = models[rank]->worker_options(addresses[rank], static_cast<uint16_t>(rank));
    worker.slots_per_channel = options.slots;
    worker.max_sessions = options.max_sessions;
    worker.settings.connector = options.connector;
    worker.settings.num_ffn_ranks = options.ranks;
    set_graph_mode(worker.settings);
    worker.ffn_addresses = addresses;
    worker.exchange = options.exchange;
    worker.replica_choice = options.replica_choice;
    return worker;
  }
  void start(uint32_t rank) {
    auto worker = FfnWorker::create(worker_options(rank), models[rank]->block());
    ASSERT_TRUE(worker.has_value()) << worker.error().message;
    workers[rank] = std::move(*worker);
  }
  RemoteFfnOptions remote_options(uint32_t attention_rank = 0) const {
    RemoteFfnOptions remote = reference.remote_options("");
    remote.settings.connector = options.connector;
    remote.settings.num_ffn_ranks = options.ranks;
    set_graph_mode(remote.settings);
    remote.addresses = addresses;
    remote.attention_rank = attention_rank;
    remote.slots_per_channel = options.slots;
    remote.replica_choice = options.replica_choice;
    return remote;
  }
  std::unique_ptr<MultiRankFfn> connect(uint32_t attention_rank = 0) const {
    auto port = MultiRankFfn::create(remote_options(attention_rank));
    EXPECT_TRUE(port.has_value()) << port.error().message;
    return port ? std::move(*port) : nullptr;
  }

  const PoolOptions options;
  SplitModel reference;
  std::vector<std::unique_ptr<SplitModel>> models;
  std::vector<std::string> addresses;
  std::vector<ReservedPort> ports;
  std::vector<std::unique_ptr<FfnWorker>> workers;

 private:
  void set_graph_mode(SplitSettings& settings) const {
    settings.graph = !options.capture_sizes.empty();
    settings.capture_sizes = options.capture_sizes;
  }
  // Ranks must know each other's addresses before they listen.
  std::string known_address() {
    const std::string address = fresh_address(options.scheme);
    if (!address.ends_with(":0")) return address;
    ports.push_back(std::move(*ReservedPort::create()));
    return address.substr(0, address.size() - 1) + std::to_string(ports.back().port());
  }
};

}  // namespace tandem::split_testing
