// Clients of bench/sharing_bench.h: each has one request under way, asks for one layer after the other, and
// may pause between them. All clients of an FFN rank are driven by one thread, so that driving costs little
// beside what is measured; colocated ones have a thread each, as processes of their own would.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "afd/remote_ffn.h"
#include "bench/sharing_bench.h"
#include "bench/sharing_pool.h"

namespace tandem::bench {

// What the clients of an arm did.
struct ClientTimes {
  std::vector<std::vector<float>> milliseconds;  // of each client: from request to answer
  double seconds = 0;

  void add(const ClientTimes& more);
};

// Requests that are sent again and again: rows, and routings that are drawn evenly.
class SharedRequests {
 public:
  SharedRequests(const SharingOptions& options, uint32_t rows, uint64_t seed);
  // The n-th, to be answered into `out` [rows, hidden] of bf16.
  MoeRequest at(size_t n, LayerIndex layer, std::span<std::byte> out) const;
  uint32_t rows() const { return rows_; }
  size_t answer_bytes() const { return size_t{rows_} * hidden_ * sizeof(uint16_t); }

 private:
  uint32_t rows_, hidden_, top_k_;
  std::vector<uint16_t> values_;  // [rows, hidden] of bf16
  std::vector<int32_t> ids_;      // [routings, rows, top_k]
  std::vector<float> weights_;
};

class PoolClients {
 public:
  // Connects them all. data_loss: an answer is not what `pool`'s reference says.
  static Result<std::unique_ptr<PoolClients>> connect(const SharingOptions& options, SharingPool& pool,
                                                      FfnWorker& worker);
  ~PoolClients();
  // For `seconds`, and until nothing is under way.
  Result<ClientTimes> run(double seconds);

 private:
  struct Client;
  explicit PoolClients(const SharingOptions& options);
  Status check(SharingPool& pool);
  Status submit(Client& client);
  Result<bool> collect(Client& client, Instant until);
  void sleep(Instant until);

  const SharingOptions& options_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::mt19937 random_{7};
};

class ColocatedClients {
 public:
  static Result<std::unique_ptr<ColocatedClients>> create(const SharingOptions& options);
  ~ColocatedClients();
  Result<ClientTimes> run(double seconds);

 private:
  struct Client;
  explicit ColocatedClients(const SharingOptions& options);
  const SharingOptions& options_;
  std::vector<std::unique_ptr<Client>> clients_;
};

}  // namespace tandem::bench
