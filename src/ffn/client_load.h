// ClientLoad: what an FFN rank's queue knows of one client: how much waits, what it has used, how it moves
// through the layers. Made with its session, shared with the queue; every field is guarded by the queue's
// mutex.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "ffn/client_share.h"
#include "moe/ffn_port.h"

namespace tandem {

// Whose share and quota is one: each connection's, or all connections' of one host over tcp and ucx (over
// shm: of one process).
enum class ClientUnit : uint8_t { connection, host };

// What one client may have waiting. More is answered with resource_exhausted, by name.
struct ClientQuota {
  uint32_t tiles = 64;
  uint32_t rows = 4096;
};

// When a client comes with the next layer after it had an answer: mean and mean deviation, as a
// retransmission timer estimates a round trip.
class ArrivalEstimate {
 public:
  void observe(double microseconds) {
    if (mean_us_ < 0) {
      mean_us_ = microseconds;
      deviation_us_ = microseconds / 2;
      return;
    }
    deviation_us_ += kDeviationWeight * (std::abs(microseconds - mean_us_) - deviation_us_);
    mean_us_ += kMeanWeight * (microseconds - mean_us_);
  }
  // From `elapsed` after the answer on: when it should be there. Nothing: unknown, or it is late already, and
  // then nobody knows.
  std::optional<double> expected_in(double elapsed_us) const {
    const double by = mean_us_ + deviation_us_;
    if (mean_us_ < 0 || elapsed_us >= by) return std::nullopt;
    return by - elapsed_us;
  }

 private:
  static constexpr double kMeanWeight = 1.0 / 8, kDeviationWeight = 1.0 / 4;  // as RFC 6298 has them
  double mean_us_ = -1, deviation_us_ = 0;
};

// What is weighed: of one session, or shared by those of one host.
struct ClientAccount {
  uint32_t number = 0;  // different for every account of the rank
  uint32_t waiting_tiles = 0, waiting_rows = 0;
  ClientShare share;
};

struct ClientLoad {
  uint32_t number = 0;  // different for every session of the rank
  bool exempt = false;  // another FFN rank
  std::shared_ptr<ClientAccount> account = std::make_shared<ClientAccount>();

  uint32_t waiting_tiles = 0, waiting_rows = 0;
  uint64_t tiles = 0, rows = 0, refused = 0;  // since the start; refused: over its quota
  double computed_us = 0;                     // its part of the calls that it was in

  Instant last_arrival{};
  double mean_interval_us = 0;  // between tiles: its pace

  // The decode request that was computed last, and when it was done; nothing while one waits or is computed.
  LayerIndex last_layer = 0;
  uint32_t last_rows = 0;
  uint64_t last_group = 0;  // of the queue's, to add up the rows of one
  bool listed = false;      // among those that the queue may expect
  std::optional<Instant> answered;
  ArrivalEstimate next_layer;
};

}  // namespace tandem
