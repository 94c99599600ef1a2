#include "cli/engine_host.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "afd/connector.h"
#include "attention/attention_worker.h"
#include "attention/state_pool_size.h"
#include "base/checksum.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory_budget.h"
#include "cli/compute.h"
#include "cli/drafts.h"
#include "cli/model_folder.h"
#include "cli/peer_settings.h"
#include "cli/stop_signal.h"
#include "cli/synthetic_kv.h"
#include "cli/trace_file.h"
#include "model/model.h"
#include "moe/local_ffn.h"
#include "serving/served_model.h"
#include "tokenizer/tokenizer.h"
#include "transport/address.h"

namespace tandem {
namespace {

// What `micro_batches: auto` may choose: two lanes keep both sides busy; more only cut them into smaller
// parts.
constexpr uint32_t kMostAutomaticLanes = 2;

// A model may claim a context of a million tokens; serving one wants a decision of its user.
constexpr uint32_t kDefaultMaxContext = 32768;
// Of the free memory that the KV pool takes when nobody says otherwise: the rest is for weights, lanes and
// other ranks.
constexpr uint64_t kKvShareOfMemory = 4;

StatePoolLimits pool_limits(const Settings& settings, const ModelConfig& config) {
  StatePoolLimits limits;
  limits.max_num_seqs = static_cast<uint32_t>(settings.serving.max_num_seqs);
  limits.max_num_batched_tokens = static_cast<uint32_t>(settings.serving.max_num_batched_tokens);
  limits.max_context_tokens = max_context_tokens(settings, config);
  return limits;
}

// [groups]
Result<std::vector<uint32_t>> pool_sizes(const Settings& settings, const ModelConfig& config,
                                         std::span<const StateGroupSpec> groups) {
  const uint64_t tokens = settings.serving.kv_cache_tokens > 0
                              ? static_cast<uint64_t>(settings.serving.kv_cache_tokens)
                              : default_kv_tokens(settings, config, /*ranks=*/1);
  std::vector<uint32_t> sizes;
  for (const uint64_t blocks : blocks_for_tokens(groups, tokens, pool_limits(settings, config))) {
    if (blocks > INT32_MAX) {
      return make_error(ErrorCode::invalid_argument,
                        "serving.kv_cache_tokens: " + std::to_string(blocks) + " blocks; lower it");
    }
    sizes.push_back(static_cast<uint32_t>(blocks));
  }
  return sizes;
}

// "400 blocks of 16 tokens", or so for each group by name.
std::string pools_text(const StatePools& pools) {
  std::string text;
  for (uint32_t group = 0; group < pools.num_groups(); ++group) {
    const BlockPool& pool = pools.pool(group);
    text += (group == 0 ? "" : "; ") + (pools.num_groups() == 1 ? std::string() : pool.spec().name + " ") +
            std::to_string(pool.num_blocks()) + " blocks of " + std::to_string(pool.spec().tokens_per_block) +
            " tokens";
  }
  return text;
}

LaneOptions lane_options(const AfdSettings& afd) {
  LaneOptions lanes;
  lanes.automatic = afd.micro_batches == "auto";
  lanes.micro_batches =
      lanes.automatic ? kMostAutomaticLanes : static_cast<uint32_t>(std::stoul(afd.micro_batches));
  lanes.split = afd.micro_batch_split == "token" ? LaneSplit::by_token : LaneSplit::by_request;
  return lanes;
}

}  // namespace

uint32_t max_context_tokens(const Settings& settings, const ModelConfig& config) {
  if (settings.serving.max_context_tokens == 0)
    return std::min(config.max_position_embeddings, kDefaultMaxContext);
  return static_cast<uint32_t>(settings.serving.max_context_tokens);
}

uint64_t default_kv_tokens(const Settings& settings, const ModelConfig& config, int64_t ranks) {
  const uint64_t bytes = MemoryBudget::detect().available() / kKvShareOfMemory / static_cast<uint64_t>(ranks);
  return tokens_within(state_groups(config, kv_cache_dtype(settings)), bytes, pool_limits(settings, config));
}

struct EngineHost::Impl {
  ModelConfig config;
  std::unique_ptr<Compute> compute;
  ModelWeights weights;
  std::unique_ptr<MoeBlock> experts;  // behind LocalFfn
  std::unique_ptr<MoeBlock> local;    // what attention runs of a MoE layer itself
  std::unique_ptr<FfnPort> port;
  std::unique_ptr<Model> model;
  std::string trace_path;                   // empty: what is recorded is not written when this ends
  std::unique_ptr<TraceRing> trace;         // null: nothing is recorded
  std::unique_ptr<AttentionWorker> worker;  // last: it stops before what it uses goes
  RankFacts facts;
  std::shared_ptr<const PeerSecurity> security;  // of the connections to FFN ranks

  ~Impl() {
    if (!trace || trace_path.empty()) return;
    worker.reset();  // it writes no more events
    const Status written = write_trace(trace_path, *trace, {facts.role, facts.rank});
    written ? log_info("trace: written to " + trace_path) : log_error(written.error().message);
  }

  Status load(const Settings& settings, const Placement& placement, bool colocated) {
    LoadOptions options;
    options.compute_dtype = placement.compute_dtype;
    options.storage = placement.weights;
    options.cache_folder = weights_cache_folder(settings);
    options.nodes = &compute->nodes();
    options.held.experts = colocated;
    options.held.router = colocated || placement.gate_on_attention;
    options.held.shared_experts = colocated || placement.shared_experts_on_attention;
    TANDEM_ASSIGN(weights,
                  load_model_weights(settings.model, config, compute->table(), compute->pool(), options));
    compute->runner().set_memory_owners(weights.owners);
    const std::string rank =
        colocated ? "" : ".attention" + std::to_string(std::max<int64_t>(0, settings.afd.attention_rank));
    return report_weights(settings, placement, weights, rank);
  }

  Status make_port(const Settings& settings, const Placement& placement,
                   const std::vector<std::string>& ffn_addresses, int roles) {
    if (ffn_addresses.empty()) {
      TANDEM_ASSIGN(experts,
                    make_moe_block(config, weights, placement, /*on_attention=*/false, compute->runner()));
      port = std::make_unique<LocalFfn>(*experts);
      facts.role = "colocated";
      facts.transport = "local";
      return {};
    }
    ConnectorOptions options;
    options.name = settings.afd.connector;
    options.remote.addresses = ffn_addresses;
    options.remote.attention_rank = static_cast<uint32_t>(facts.rank);
    TANDEM_ASSIGN(options.remote.settings,
                  split_settings(settings.model, config, placement, compute->table()));
    options.remote.security = security;
    options.remote.replica_choice =
        settings.chooses_replicas_by_experts() ? ReplicaChoice::by_experts : ReplicaChoice::by_row;
    options.remote.start_limit = std::chrono::seconds(settings.afd.connect_timeout_s);
    options.remote.give_up = &StopSignal::requested();
    options.remote.may_spin =
        io_may_spin(compute->pool().threads(), roles, static_cast<int>(ffn_addresses.size()));
    TANDEM_ASSIGN(port, make_connector(options));
    TANDEM_ASSIGN(const Address first, parse_address(ffn_addresses.front()));
    facts.role = "attention";
    facts.transport = first.scheme;
    for (const std::string& address : ffn_addresses)
      facts.address += (facts.address.empty() ? "" : ",") + address;
    return {};
  }

  // A program for each size, as far as a step can have the rows: the first that holds all of them is the
  // last. The same for the drafter.
  Status capture(const std::vector<uint32_t>& sizes, const LaneRows& most, const StateCaches& caches,
                 AttentionPrograms& programs) {
    for (const uint32_t size : sizes) {
      const uint32_t rows = std::min(size, most.decode);
      AttentionPrograms::Captured captured{size, nullptr};
      TANDEM_ASSIGN(captured.program, model->build({rows, rows}, port->traits(), caches, local.get()));
      programs.captured.push_back(captured);
      if (rows == most.decode) break;
    }
    for (const uint32_t size : programs.drafts.decode ? sizes : std::vector<uint32_t>()) {
      const uint32_t rows = std::min(size, most.draft_decode.capacity);
      AttentionPrograms::Captured captured{size, nullptr};
      TANDEM_ASSIGN(captured.program,
                    model->build_drafts({rows, std::min(rows, most.draft_decode.logits_capacity)},
                                        port->traits(), caches, local.get()));
      programs.drafts.captured.push_back(captured);
      if (rows == most.draft_decode.capacity) break;
    }
    if (!sizes.empty()) {
      log_info("graph mode: " + std::to_string(programs.captured.size()) +
               " decode programs, the largest for " +
               std::to_string(programs.captured.back().program->shape().capacity) + " rows");
    }
    return {};
  }

  // Whatever the bits of a key depend on: what the handshake compares, and what this rank decides alone.
  Result<PrefixStoreOptions> prefix_store(const Settings& settings, const Placement& placement) const {
    PrefixStoreOptions store;
    const std::string& folder = settings.serving.prefix_cache_dir;
    if (folder.empty()) return store;
    TANDEM_ASSIGN(const SplitSettings shared,
                  split_settings(settings.model, config, placement, compute->table()));
    for (const Setting& setting : list_settings(shared))
      store.identity += setting.key + " " + setting.value + "\n";
    // Also where it is only logged between ranks.
    store.identity += fmt::format("isa {} {:016x}\nqat_simulation {}\n", compute->table().name,
                                  compute->table().numerics_id, settings.engine.qat_simulation);
    std::error_code ignored;
    std::filesystem::path place = std::filesystem::weakly_canonical(settings.model, ignored);
    if (!place.has_filename()) place = place.parent_path();
    store.path = (std::filesystem::path(folder) / fmt::format("{}-{:016x}-attention{}.prefixes",
                                                              place.filename().string(),
                                                              checksum64(place.string()), facts.rank))
                     .string();
    store.max_bytes = static_cast<uint64_t>(settings.serving.prefix_cache_dir_mib) << 20;
    store.interval = std::chrono::seconds(settings.serving.prefix_cache_save_interval_s);
    return store;
  }

  Status start_worker(const Settings& settings, const std::vector<int32_t>& eos_token_ids) {
    TANDEM_ASSIGN(Model created, Model::create(config, weights, model_options(settings)));
    model = std::make_unique<Model>(std::move(created));
    const std::span<const StateGroupSpec> groups = model->state_groups();
    TANDEM_ASSIGN(const std::vector<uint32_t> sizes, pool_sizes(settings, config, groups));
    TANDEM_ASSIGN(StatePools pools, StatePools::create(groups, sizes));
    if (settings.engine.synthetic_kv) fill_with_synthetic_kv(pools, model->kv_layout(), compute->pool());

    AttentionWorkerOptions options;
    options.scheduler.synthetic_prompts = settings.engine.synthetic_kv;
    options.scheduler.max_num_seqs = static_cast<uint32_t>(settings.serving.max_num_seqs);
    options.scheduler.max_num_batched_tokens = static_cast<uint32_t>(settings.serving.max_num_batched_tokens);
    options.lanes = lane_options(settings.afd);
    options.speculation.num_tokens = drafts_in_a_step(settings, config);
    options.speculation.block = block_of(config);
    options.speculation.automatic = settings.engine.speculative == "auto";
    options.max_context_tokens = max_context_tokens(settings, config);
    options.max_queue = static_cast<uint32_t>(settings.serving.max_queue);
    TANDEM_ASSIGN(options.prefix_store, prefix_store(settings, Placement::from(settings)));
    options.prefill_share = settings.serving.prefill_share;
    options.prefix_caching = settings.serving.enable_prefix_caching;
    options.vocab_size = config.vocab_size;
    options.on_start = [this] { compute->pool().bind_caller(); };
    options.eos_token_ids = eos_token_ids;
    trace_path = settings.engine.trace;
    if (!trace_path.empty() || settings.serving.trace_requests) {
      trace = std::make_unique<TraceRing>(static_cast<size_t>(settings.engine.trace_events));
      options.trace = trace.get();
    }
    if (!trace_path.empty()) trace->ask();
    if (file_exists(settings.model + "/tokenizer.json")) {
      options.vocabulary = [folder = settings.model]() -> Result<std::shared_ptr<const TokenTrie>> {
        TANDEM_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(folder));
        TANDEM_ASSIGN(TokenTrie trie, TokenTrie::build(tokenizer));
        return std::make_shared<const TokenTrie>(std::move(trie));
      };
    }
    // Colocated, or behind the port of another rank: then nothing routes here.
    options.router = experts != nullptr && experts->options().routes ? experts.get()
                     : port->traits().routes                         ? nullptr
                                                                     : local.get();

    const StateCaches& caches = pools.caches();
    const LaneRows rows = rows_of_lanes(options);
    AttentionPrograms programs;
    TANDEM_ASSIGN(programs.decode,
                  model->build({rows.decode, rows.decode}, port->traits(), caches, local.get()));
    TANDEM_ASSIGN(programs.prefill,
                  model->build({rows.prefill, rows.prefill_logits}, port->traits(), caches, local.get()));
    if (options.speculation.num_tokens > 0) {
      const auto build = [&](const ProgramShape& shape) {
        return model->build_drafts(shape, port->traits(), caches, local.get());
      };
      TANDEM_ASSIGN(programs.drafts.decode, build(rows.draft_decode));
      TANDEM_ASSIGN(programs.drafts.prefill, build(rows.draft_prefill));
      const uint32_t block = options.speculation.block.size;
      if (block > 0) {
        TANDEM_ASSIGN(programs.drafts.chain,
                      model->build_draft_chain(rows.draft_sequences, port->traits(), caches));
      }
      log_info("speculative: " + settings.engine.speculative + ": up to " +
               std::to_string(options.speculation.num_tokens) + " drafts a step" +
               (block > 0 ? ", of blocks of " + std::to_string(block) : ""));
    }
    TANDEM_TRY(capture(Placement::from(settings).capture_sizes, rows, caches, programs));
    log_info("KV pool: " + pools_text(pools) + ", " + bytes_text(pools.bytes()) + " of " +
             std::string(dtype_name(pools.pool(0).spec().dtype)) + "; context " +
             std::to_string(options.max_context_tokens) + " tokens");
    facts.bytes_held = weights.resident_bytes + pools.bytes();
    TANDEM_ASSIGN(worker,
                  AttentionWorker::create(options, std::move(pools), programs, compute->runner(), *port));
    return {};
  }
};

EngineHost::EngineHost(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EngineHost::~EngineHost() = default;
Engine& EngineHost::engine() {
  return *impl_->worker;
}
const RankFacts& EngineHost::facts() const {
  return impl_->facts;
}
TraceSource EngineHost::trace_source() const {
  TraceRing* const ring = impl_->trace.get();
  return {ring, !impl_->trace_path.empty(),
          [ring, rank = TracedRank{impl_->facts.role, impl_->facts.rank}](const TraceWindow& window) {
            return trace_text(*ring, window, rank);
          }};
}

Result<std::unique_ptr<EngineHost>> EngineHost::create(const Settings& settings,
                                                       const std::vector<std::string>& ffn_addresses,
                                                       int roles) {
  auto impl = std::make_unique<Impl>();
  const Placement placement = Placement::from(settings);
  const bool colocated = ffn_addresses.empty();
  if (!colocated) {
    TANDEM_ASSIGN(impl->security, peer_security(settings.afd));  // before the weights are read
  }
  TANDEM_ASSIGN(impl->config, read_model_config(settings.model));
  TANDEM_TRY(check_model_options(impl->config, model_options(settings)));
  TANDEM_TRY(settle_drafts(settings, impl->config));
  TANDEM_ASSIGN(const std::vector<int32_t> eos_token_ids, read_eos_token_ids(settings.model));
  TANDEM_ASSIGN(impl->compute, Compute::create(settings, threads_for(settings, roles)));
  impl->facts.rank = std::max<int64_t>(0, settings.afd.attention_rank);  // auto, settled nowhere: 0
  impl->facts.pid = ::getpid();
  impl->facts.isa = impl->compute->table().name;
  impl->facts.threads = impl->compute->pool().threads();
  TANDEM_TRY(impl->load(settings, placement, colocated));
  if (placement.gate_on_attention || placement.shared_experts_on_attention) {
    TANDEM_ASSIGN(impl->local, make_moe_block(impl->config, impl->weights, placement, /*on_attention=*/true,
                                              impl->compute->runner()));
  }
  TANDEM_TRY(impl->make_port(settings, placement, ffn_addresses, roles));
  TANDEM_TRY(impl->start_worker(settings, eos_token_ids));
  return std::unique_ptr<EngineHost>(new EngineHost(std::move(impl)));
}

}  // namespace tandem
