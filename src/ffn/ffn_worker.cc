#include "ffn/ffn_worker.h"

#include <fmt/format.h>

#include <algorithm>

#include "ffn/block_check.h"
#include "ffn/ffn_worker_impl.h"

namespace tandem {
FfnWorker::FfnWorker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FfnWorker::~FfnWorker() {
  stop(Duration::zero());
}

namespace {

MoeRun run_of(MoeBlock& block) {
  return [&block](const MoeRequest& request) { return block.run(request); };
}
MoeRoute route_of(MoeBlock& block) {
  return [&block](LayerIndex layer, uint32_t rows, ActivationView in, std::span<int32_t> ids,
                  std::span<float> weights, std::span<const int32_t> tokens) {
    return block.route_rows(layer, rows, in, ids, weights, tokens);
  };
}

}  // namespace

Result<std::unique_ptr<FfnWorker>> FfnWorker::create(const FfnWorkerOptions& options, MoeBlock& block,
                                                     MoeBlock* urgent) {
  TANDEM_TRY(check_block(options.settings, block));
  if (urgent != nullptr) TANDEM_TRY(check_block(options.settings, *urgent));
  return create(options, run_of(block), route_of(block), &block, urgent);
}

Result<std::unique_ptr<FfnWorker>> FfnWorker::create(const FfnWorkerOptions& options, MoeRun run,
                                                     MoeRoute route) {
  return create(options, std::move(run), std::move(route), nullptr, nullptr);
}

Status FfnWorker::Impl::start_exchange() {
  const SplitSettings& settings = options.settings;
  if (settings.num_ffn_ranks == 1 || settings.connector == "m2n") return {};
  if (!settings.gate_on_attention && !ordinary.route)
    return make_error(ErrorCode::invalid_argument, "FFN worker: the gate is here, and nothing routes");
  ExchangeLinksOptions links;
  links.addresses = options.ffn_addresses;
  links.rank = options.rank;
  links.pieces = options.pieces;
  links.settings = settings;
  links.slots_per_channel = options.slots_per_channel;
  links.max_in_flight = kMostHomeGroups;
  links.max_rows = max_group_rows();
  links.heartbeat_interval = options.heartbeat_interval;
  links.silence_limit = options.silence_limit;
  links.security = options.security;
  links.notify = [this] { queue.wake(); };
  TANDEM_ASSIGN(exchange, ExchangeLinks::start(links));
  TANDEM_ASSIGN(homes, HomeGroups::create(settings, options.exchange, options.replica_choice, *exchange,
                                          [](WaitingTile& tile) { let_go(tile); }));
  admission.ffn_ranks = true;
  admission.ffn_rank = [this](uint32_t rank) { return admit_ffn_rank(rank); };
  admission.attention = [this] { return exchange->ready(); };
  return {};
}

Result<std::unique_ptr<FfnWorker>> FfnWorker::create(const FfnWorkerOptions& options, MoeRun run,
                                                     MoeRoute route, const MoeBlock* counted,
                                                     MoeBlock* urgent) {
  TANDEM_TRY(options.settings.validate());
  if (options.rank > UINT16_MAX || options.slots_per_channel == 0 || options.quota.tiles == 0 ||
      options.quota.rows == 0 || options.max_sessions == 0) {
    return make_error(
        ErrorCode::invalid_argument,
        fmt::format(
            "FFN worker: rank {}, slots_per_channel {}, quota of {} tiles and {} rows, max_sessions {}",
            options.rank, options.slots_per_channel, options.quota.tiles, options.quota.rows,
            options.max_sessions));
  }
  EndpointOptions endpoint = options.settings.endpoint_options(options.slots_per_channel);
  endpoint.heartbeat_interval = options.heartbeat_interval;
  endpoint.silence_limit = options.silence_limit;
  endpoint.security = options.security;
  TANDEM_ASSIGN(std::unique_ptr<Listener> listener, listen(options.listen_address, endpoint));
  TANDEM_ASSIGN(Poller poller, Poller::create());
  TANDEM_TRY(poller.add(listener->fd(), Impl::kListenerKey));
  auto impl =
      std::make_unique<Impl>(options, std::move(run), counted, std::move(listener), std::move(poller));
  impl->ordinary.route = std::move(route);
  TANDEM_TRY(impl->start_exchange());
  const auto make_batch = [&] {
    return TileBatch::create(impl->options.settings, impl->max_group_rows(), impl->exchange.get());
  };
  TANDEM_ASSIGN(impl->ordinary.batch, make_batch());
  if (urgent != nullptr) {
    impl->urgent_block = urgent;
    impl->urgent.run = run_of(*urgent);
    impl->urgent.route = route_of(*urgent);
    TANDEM_ASSIGN(impl->urgent.batch, make_batch());
  }
  impl->counted_before = impl->counts_of_blocks();
  TANDEM_ASSIGN(impl->prepared, PreparedPrograms::create(impl->options.settings, impl->exchange.get()));
  const size_t most_tiles = Impl::most_tiles(options);
  impl->ordinary.tiles.reserve(most_tiles);
  impl->urgent.tiles.reserve(most_tiles);
  impl->words.reserve(most_tiles);
  impl->urgent_group.reserve(most_tiles);
  Impl& state = *impl;
  state.io = std::thread([&state] { state.serve(); });
  state.computing = std::thread([&state] { state.compute(); });
  return std::unique_ptr<FfnWorker>(new FfnWorker(std::move(impl)));
}

const std::string& FfnWorker::address() const {
  return impl_->listener->address();
}

void FfnWorker::stop(Duration drain_limit) {
  Impl& state = *impl_;
  if (!state.io.joinable()) return;
  state.drain_until = now() + drain_limit;
  state.stopping.store(true);
  state.poller.wake();
  state.io.join();
  state.queue.stop();
  state.computing.join();
}

std::optional<Error> FfnWorker::misfit() const {
  const std::lock_guard lock(impl_->stats_mutex);
  return impl_->misfit;
}

FfnStats FfnWorker::stats() const {
  const std::lock_guard lock(impl_->stats_mutex);
  impl_->count_wait();
  FfnStats stats = impl_->stats;
  const HoldStats holds = impl_->queue.holds();
  stats.holds = holds.holds;
  stats.holds_joined = holds.joined;
  stats.held_us = static_cast<uint64_t>(holds.held_us);
  return stats;
}

std::vector<FfnClientReport> FfnWorker::clients() const {
  std::vector<FfnClientReport> reports;
  const std::lock_guard lock(impl_->sessions_mutex);
  impl_->queue.locked([&] {
    for (const auto& session : impl_->sessions) {
      if (session->phase() != Session::Phase::serving) continue;
      const ClientLoad& load = session->load();
      reports.push_back({.peer = session->peer_text(),
                         .transport = std::string(session->endpoint().caps().transport),
                         .session = session->id(),
                         .tiles = load.tiles,
                         .rows = load.rows,
                         .refused = load.refused,
                         .computed_us = load.computed_us,
                         .waiting_tiles = load.waiting_tiles,
                         .waiting_rows = load.waiting_rows});
    }
  });
  return reports;
}

}  // namespace tandem
