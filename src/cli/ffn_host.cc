#include "cli/ffn_host.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "afd/topology.h"
#include "base/log.h"
#include "cli/compute.h"
#include "cli/drafts.h"
#include "cli/model_folder.h"
#include "cli/peer_settings.h"
#include "cli/rank_listener.h"
#include "cli/trace_file.h"
#include "ffn/ffn_worker.h"
#include "model/model.h"
#include "serving/ffn_metrics.h"

namespace tandem {

Result<ExpertShare> held_experts(const ModelConfig& config, const Settings& settings, int64_t rank,
                                 int64_t ranks) {
  const int64_t default_slices = std::min<int64_t>(2, ranks);  // one rank has nobody to share an expert with
  ExpertMapShape shape;
  shape.num_experts = config.router.num_experts;
  shape.intermediate_size = config.moe_intermediate_size;
  ExpertPlacement placement;
  placement.kind = settings.afd.placement == "slice"    ? PlacementKind::slice
                   : settings.afd.placement == "hybrid" ? PlacementKind::hybrid
                                                        : PlacementKind::expert;
  placement.slices =
      static_cast<uint32_t>(settings.afd.expert_slices == 0 ? default_slices : settings.afd.expert_slices);
  placement.replicas = static_cast<uint32_t>(settings.afd.expert_replicas);
  return held_share(shape, placement, static_cast<uint32_t>(rank), static_cast<uint32_t>(ranks));
}

namespace {

// Decode groups are some rows of a few clients; more rows are processed in several parts.
constexpr size_t kUrgentScratchBytes = size_t{16} << 20;

}  // namespace

namespace {

GroupOrder group_order(const std::string& name) {
  if (name == "fifo") return GroupOrder::fifo;
  return name == "oldest" ? GroupOrder::oldest : GroupOrder::grouped;
}

ExchangeKind exchange_kind(const std::string& name) {
  if (name == "alltoall") return ExchangeKind::alltoall;
  return name == "allgather" ? ExchangeKind::allgather : ExchangeKind::automatic;
}

// Before the weights are read.
Status check_addresses(const AfdSettings& afd) {
  if (afd.num_ffn_ranks == 1 || afd.connector == "m2n" || !afd.ffn.empty()) return {};
  return make_error(ErrorCode::invalid_argument, "afd.ffn: FFN ranks of connector " + afd.connector +
                                                     " exchange rows and need the addresses of "
                                                     "all " +
                                                     std::to_string(afd.num_ffn_ranks) +
                                                     " of them, in order of rank: --ffn ADDRESS,...");
}

}  // namespace

struct FfnHost::Impl {
  ModelConfig config;
  std::unique_ptr<Compute> compute;
  ModelWeights weights;
  std::unique_ptr<MoeBlock> block;
  std::unique_ptr<MoeBlock> urgent;       // of the same weights: decode between two pieces of prefill
  std::unique_ptr<TraceRing> trace;       // null: nothing is recorded
  std::unique_ptr<FfnWorker> worker;      // it stops before what it uses goes
  std::unique_ptr<RankListener> metrics;  // asks the worker and `trace`
  RankFacts facts;

  Status serve_metrics(const Settings& settings);
};

Status FfnHost::Impl::serve_metrics(const Settings& settings) {
  TraceSource source{trace.get(), false, [this](const TraceWindow& window) {
                       return trace_text(*trace, window, {"ffn", facts.rank});
                     }};
  TANDEM_ASSIGN(metrics,
                RankListener::start(
                    settings, [this] { return ffn_metrics_text(worker->stats(), worker->clients()); },
                    std::move(source)));
  facts.metrics = metrics->metrics_url();
  return {};
}

FfnHost::FfnHost(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FfnHost::~FfnHost() = default;
const RankFacts& FfnHost::facts() const {
  return impl_->facts;
}
std::optional<Error> FfnHost::misfit() const {
  return impl_->worker->misfit();
}
void FfnHost::stop(Duration drain_limit) {
  if (impl_->metrics) impl_->metrics->stop_traces();  // its answer leaves while requests do
  impl_->worker->stop(drain_limit);
}

RankCounters FfnHost::counters() const {
  return counters_of(impl_->facts.rank, impl_->worker->stats());
}

std::string FfnHost::report() const {
  const FfnStats stats = impl_->worker->stats();
  const auto per_group = [&](uint64_t count) {
    return stats.groups == 0 ? 0.0 : static_cast<double>(count) / static_cast<double>(stats.groups);
  };
  char text[256];
  std::snprintf(text, sizeof(text),
                "%llu rows in %llu tiles, %llu groups of %.1f rows and %.2f clients; computed %.1f s decode, "
                "%.1f s prefill",
                static_cast<unsigned long long>(stats.rows), static_cast<unsigned long long>(stats.tiles),
                static_cast<unsigned long long>(stats.groups), per_group(stats.rows),
                per_group(stats.clients_in_groups), static_cast<double>(stats.decode_us) * 1e-6,
                static_cast<double>(stats.prefill_us) * 1e-6);
  const std::string exchange = describe_exchange(stats.exchange);
  return std::string(text) + "; " + describe_execution(stats) + (exchange.empty() ? "" : "; " + exchange);
}

Result<std::unique_ptr<FfnHost>> FfnHost::create(const Settings& settings, const std::string& address,
                                                 int roles) {
  auto impl = std::make_unique<Impl>();
  const Placement placement = Placement::from(settings);
  TANDEM_TRY(check_addresses(settings.afd));
  TANDEM_ASSIGN(const auto security, peer_security(settings.afd));  // before the weights are read
  TANDEM_ASSIGN(impl->config, read_model_config(settings.model));
  TANDEM_TRY(settle_drafts(settings, impl->config));
  TANDEM_ASSIGN(impl->compute, Compute::create(settings, threads_for(settings, roles)));

  const auto rank =
      static_cast<uint16_t>(std::max<int64_t>(0, settings.afd.ffn_rank));  // auto, settled nowhere: 0
  LoadOptions load;
  load.compute_dtype = placement.compute_dtype;
  load.storage = placement.weights;
  load.cache_folder = weights_cache_folder(settings);
  load.nodes = &impl->compute->nodes();
  load.held.attention = false;
  TANDEM_ASSIGN(load.held.share, held_experts(impl->config, settings, rank, settings.afd.num_ffn_ranks));
  load.held.router = !placement.gate_on_attention;
  load.held.shared_experts = !placement.shared_experts_on_attention;
  TANDEM_ASSIGN(impl->weights, load_model_weights(settings.model, impl->config, impl->compute->table(),
                                                  impl->compute->pool(), load));
  impl->compute->runner().set_memory_owners(impl->weights.owners);
  TANDEM_TRY(report_weights(settings, placement, impl->weights, ".ffn" + std::to_string(rank)));
  TANDEM_ASSIGN(impl->block, make_moe_block(impl->config, impl->weights, placement, /*on_attention=*/false,
                                            impl->compute->runner()));

  TANDEM_ASSIGN(impl->urgent, make_moe_block(impl->config, impl->weights, placement, /*on_attention=*/false,
                                             impl->compute->runner(), kUrgentScratchBytes));

  FfnWorkerOptions options;
  options.listen_address = address;
  options.rank = rank;
  options.policy.order = group_order(settings.afd.ffn_scheduler);
  options.max_sessions = static_cast<uint32_t>(settings.afd.max_clients);
  options.quota.tiles = static_cast<uint32_t>(settings.afd.client_waiting_tiles);
  options.quota.rows = static_cast<uint32_t>(settings.afd.client_waiting_rows);
  options.client_unit = settings.afd.client_unit == "host" ? ClientUnit::host : ClientUnit::connection;
  TANDEM_ASSIGN(options.settings,
                split_settings(settings.model, impl->config, placement, impl->compute->table()));
  options.ffn_addresses = settings.afd.ffn;
  options.on_start = [compute = impl->compute.get()] { compute->pool().bind_caller(); };
  options.security = security;
  options.exchange = exchange_kind(settings.afd.exchange);
  options.replica_choice =
      settings.chooses_replicas_by_experts() ? ReplicaChoice::by_experts : ReplicaChoice::by_row;
  options.pieces = held_pieces(moe_layers(impl->config, impl->weights), {rank, 0});
  options.may_spin = io_may_spin(impl->compute->pool().threads(), roles, 1);
  if (settings.serving.trace_requests && !settings.afd.metrics_listen.empty()) {
    impl->trace = std::make_unique<TraceRing>(static_cast<size_t>(settings.engine.trace_events));
    options.trace = impl->trace.get();
  }
  TANDEM_ASSIGN(impl->worker, FfnWorker::create(options, *impl->block, impl->urgent.get()));

  impl->facts.role = "ffn";
  impl->facts.rank = rank;
  if (!settings.afd.metrics_listen.empty()) {
    TANDEM_TRY(impl->serve_metrics(settings));
  }
  impl->facts.pid = ::getpid();
  impl->facts.address = impl->worker->address();
  impl->facts.transport = impl->facts.address.substr(0, impl->facts.address.find(':'));
  impl->facts.bytes_held = impl->weights.resident_bytes;
  impl->facts.isa = impl->compute->table().name;
  impl->facts.threads = impl->compute->pool().threads();
  return std::unique_ptr<FfnHost>(new FfnHost(std::move(impl)));
}

}  // namespace tandem
