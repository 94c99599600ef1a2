// ExchangeLinks: what an FFN rank needs to send rows to the others: connections to them over
// Channel::exchange, the expert map of all FFN ranks, and the dispatcher over it. The map is assembled once,
// when all have shaken hands; afterwards a lost rank comes back by itself, with the experts that it had.
//
// Threads: `ready` and `start` belong to the I/O thread of the worker; `dispatcher`, `links` and `take_own`
// to its compute thread, once `is_ready`.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "afd/rank_links.h"

namespace tandem {

// How a home rank reaches the owners of its rows' experts.
//   alltoall   each owner gets its rows only, once each, and answers those
//   allgather  every rank gets all rows with their whole routing, takes its part by the same map and the same
//              function, and answers all rows
//   automatic  chosen for each group of rows: see choose_exchange
enum class ExchangeKind : uint8_t { automatic, alltoall, allgather };

struct ExchangeLinksOptions {
  std::vector<std::string> addresses;  // of all FFN ranks, in order; the own one is not used
  uint32_t rank = 0;
  std::vector<Piece> pieces;  // held here
  SplitSettings settings;
  uint32_t slots_per_channel = 8;
  uint32_t max_in_flight = 64;       // groups that wait for others
  uint32_t max_rows = kMaxTileRows;  // of one call of take_own
  Duration heartbeat_interval{}, silence_limit{};
  std::shared_ptr<const PeerSecurity> security = nullptr;  // as the worker's own
  std::function<void()> notify;                            // an answer came: see RemoteFfnOptions
};

class ExchangeLinks {
 public:
  static Result<std::unique_ptr<ExchangeLinks>> start(const ExchangeLinksOptions& options);

  // Why requests cannot be served yet: "waiting for FFN rank 1 at ...: ...", or what another try cannot mend.
  // A value from the first time on that all ranks were there.
  Status ready();
  bool is_ready() const { return ready_.load(std::memory_order_acquire); }

  const ExpertDispatcher& dispatcher() const { return *dispatcher_; }
  uint32_t map_epoch() const { return dispatcher_->map().epoch(); }
  size_t own_part() const { return own_part_; }  // index in Prepared::parts
  RankLinks& links() { return links_; }

  // Writes the weights of the slots that this rank computes, and 0 for the others. `routing` passed
  // check_routing_values; `weights` [rows, top_k]: may not be the routing's own. Allocates nothing.
  Status take_own(LayerIndex layer, uint32_t rows, const RoutingView& routing, std::span<float> weights);

 private:
  explicit ExchangeLinks(const ExchangeLinksOptions& options) : options_(options) {}

  const ExchangeLinksOptions options_;
  std::unique_ptr<ExpertDispatcher> dispatcher_;  // set before ready_
  size_t own_part_ = 0;
  std::atomic<bool> ready_{false};
  Prepared scratch_;
  RankLinks links_;
};

// alltoall sends the rows of the parts, allgather all rows to every other rank. allgather when the parts are
// nearly that much anyway (7/8): then rows travel as they lie, and the receiver shares the work of selecting.
ExchangeKind choose_exchange(ExchangeKind wanted, const Prepared& prepared, size_t own_part);

}  // namespace tandem
