#include "ffn/exchange_links.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"

namespace tandem {

Result<std::unique_ptr<ExchangeLinks>> ExchangeLinks::start(const ExchangeLinksOptions& options) {
  if (options.addresses.size() != options.settings.num_ffn_ranks ||
      options.rank >= options.addresses.size()) {
    return make_error(
        ErrorCode::invalid_argument,
        fmt::format("FFN rank {}: {} addresses of {} FFN ranks: ranks that exchange rows must know "
                    "all of them, in order of rank",
                    options.rank, options.addresses.size(), options.settings.num_ffn_ranks));
  }
  std::unique_ptr<ExchangeLinks> exchange(new ExchangeLinks(options));
  RemoteFfnOptions remote;
  remote.addresses = options.addresses;
  remote.role = "ffn";
  remote.attention_rank = options.rank;
  remote.settings = options.settings;
  remote.slots_per_channel = options.slots_per_channel;
  remote.max_in_flight = options.max_in_flight;
  remote.heartbeat_interval = options.heartbeat_interval;
  remote.silence_limit = options.silence_limit;
  remote.security = options.security;
  remote.notify = options.notify;
  exchange->scratch_.reserve(options.settings.num_ffn_ranks, options.max_rows, options.settings.top_k);
  TANDEM_TRY(exchange->links_.start(remote, options.rank));
  return exchange;
}

Status ExchangeLinks::ready() {
  if (is_ready()) return {};
  const std::optional<Status> started = links_.start_result();
  if (!started) return make_error(ErrorCode::unavailable, "waiting for " + links_.waiting_for());
  TANDEM_TRY(*started);
  FfnRankFacts own;
  own.rank = options_.rank;
  own.address = options_.addresses[options_.rank];
  own.pieces = options_.pieces;
  TANDEM_ASSIGN(ExpertDispatcher created, links_.assemble(options_.settings, std::move(own)));
  dispatcher_ = std::make_unique<ExpertDispatcher>(std::move(created));
  const auto ranks = dispatcher_->ranks();
  const auto at = std::ranges::find(ranks, options_.rank);
  if (at == ranks.end()) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("FFN rank {} holds no experts: it can be home to no rows", options_.rank));
  }
  own_part_ = static_cast<size_t>(at - ranks.begin());
  log_info(fmt::format("FFN rank {}: connected to the other {} FFN ranks, expert map {:#x}", options_.rank,
                       links_.size() - 1, map_epoch()));
  ready_.store(true, std::memory_order_release);
  return {};
}

Status ExchangeLinks::take_own(LayerIndex layer, uint32_t rows, const RoutingView& routing,
                               std::span<float> weights) {
  TANDEM_TRY(dispatcher_->prepare(layer, rows, routing, scratch_));
  std::ranges::fill(weights, 0.0f);
  const DispatchPart& part = scratch_.parts[own_part_];
  const uint32_t top_k = routing.top_k;
  for (size_t i = 0; i < part.rows.size(); ++i) {
    std::copy_n(part.weights.begin() + static_cast<std::ptrdiff_t>(i * top_k), top_k,
                weights.begin() + static_cast<std::ptrdiff_t>(size_t{part.rows[i]} * top_k));
  }
  return {};
}

ExchangeKind choose_exchange(ExchangeKind wanted, const Prepared& prepared, size_t own_part) {
  if (wanted != ExchangeKind::automatic) return wanted;
  uint64_t others = 0, rows = 0;
  for (size_t i = 0; i < prepared.parts.size(); ++i) {
    if (i == own_part) continue;
    ++others;
    rows += prepared.parts[i].rows.size();
  }
  const bool nearly_all = others > 0 && rows * 8 >= others * prepared.rows * 7;
  return nearly_all ? ExchangeKind::allgather : ExchangeKind::alltoall;
}

}  // namespace tandem
