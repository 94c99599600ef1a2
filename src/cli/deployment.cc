#include "cli/deployment.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <filesystem>

#include "cli/compute.h"
#include "cli/ffn_host.h"
#include "cli/front_host.h"
#include "cli/model_folder.h"
#include "cli/peer_settings.h"
#include "cli/rank_processes.h"
#include "cli/trace_file.h"
#include "transport/reserved_port.h"

namespace tandem {
namespace {

constexpr std::string_view kFolderPrefix =
    "tandem-";  // then the process id, a dash and six random characters

// A trace of the largest ring is some GB of text.
constexpr auto kTraceLimit = std::chrono::minutes(5);

// Folders that processes left behind when they were killed. Other users' folders cannot be removed and stay.
void remove_stale_folders(const std::filesystem::path& parent) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(parent, ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kFolderPrefix)) continue;
    pid_t pid = 0;
    const char* begin = name.data() + kFolderPrefix.size();
    const auto [end, error] = std::from_chars(begin, name.data() + name.size(), pid);
    if (error != std::errc() || end == name.data() + name.size() || *end != '-' || pid <= 0) continue;
    if (::kill(pid, 0) != 0 && errno == ESRCH) std::filesystem::remove_all(entry.path(), ignored);
  }
}

// A folder of its own for the sockets of one deployment, gone when it ends.
class SocketFolder {
 public:
  SocketFolder() = default;
  SocketFolder(const SocketFolder&) = delete;
  SocketFolder& operator=(const SocketFolder&) = delete;
  ~SocketFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  Result<std::string> path() {
    if (!path_.empty()) return path_;
    const std::filesystem::path parent = std::filesystem::temp_directory_path();
    remove_stale_folders(parent);
    std::string name =
        (parent / (std::string(kFolderPrefix) + std::to_string(::getpid()) + "-XXXXXX")).string();
    if (::mkdtemp(name.data()) == nullptr)
      return make_error(ErrorCode::unavailable, "cannot make a folder for sockets in " + name);
    path_ = name;
    return path_;
  }

 private:
  std::string path_;
};

const char* bool_text(bool value) {
  return value ? "true" : "false";
}

// Every setting that both roles must share, as a child's flags: nobody repeats them by hand.
std::vector<std::string> shared_arguments(const Settings& settings, int threads) {
  return {"--model=" + settings.model,
          "--compute-dtype=" + settings.engine.compute_dtype,
          "--weights=" + settings.engine.weights,
          "--weights-cache=" + settings.engine.weights_cache,
          "--huge-pages=" + settings.engine.huge_pages,
          "--numa=" + settings.engine.numa,
          "--deterministic=" + std::string(bool_text(settings.engine.deterministic)),
          "--balanced-routing=" + std::string(bool_text(settings.engine.balanced_routing)),
          "--speculative=" + settings.engine.speculative,
          "--num-speculative-tokens=" + std::to_string(settings.engine.num_speculative_tokens),
          "--connector=" + settings.afd.connector,
          "--exchange=" + settings.afd.exchange,
          "--placement=" + settings.afd.placement,
          "--expert-slices=" + std::to_string(settings.afd.expert_slices),
          "--expert-replicas=" + std::to_string(settings.afd.expert_replicas),
          "--replica-choice=" + settings.afd.replica_choice,
          "--num-ffn-ranks=" + std::to_string(settings.up.ffn),
          "--num-attention-ranks=" + std::to_string(settings.up.attention),
          "--log-level=" + settings.engine.log_level,
          "--threads=" + std::to_string(threads),
          "--compute-gate-on-attention=" + std::string(bool_text(settings.afd.compute_gate_on_attention)),
          "--compute-shared-experts-on-attention=" +
              std::string(bool_text(settings.shared_experts_on_attention())),
          "--activation-dtype=" + settings.afd.activation_dtype,
          "--execution=" + settings.afd.execution,
          "--capture-sizes=" + fmt::format("{}", fmt::join(settings.afd.capture_sizes, ",")),
          "--send-token-ids=" + std::string(bool_text(settings.afd.send_token_ids)),
          "--json"};
}

std::vector<std::string> with_shared(std::vector<std::string> own, const Settings& settings, int threads) {
  const std::vector<std::string> shared = shared_arguments(settings, threads);
  own.insert(own.end(), shared.begin(), shared.end());
  const std::vector<std::string> peers = peer_arguments(settings.afd);
  own.insert(own.end(), peers.begin(), peers.end());
  if (!settings.engine.weights_report.empty())
    own.push_back("--weights-report=" + settings.engine.weights_report);
  return own;
}

std::string joined(const std::vector<std::string>& addresses) {
  return fmt::format("{}", fmt::join(addresses, ","));
}

std::vector<std::string> ffn_arguments(const Settings& settings, const std::vector<std::string>& addresses,
                                       int64_t rank, int threads) {
  return with_shared({"ffn", "--listen=" + addresses[static_cast<size_t>(rank)], "--ffn=" + joined(addresses),
                      "--ffn-scheduler=" + settings.afd.ffn_scheduler, "--ffn-rank=" + std::to_string(rank),
                      "--max-clients=" + std::to_string(settings.afd.max_clients),
                      "--client-waiting-tiles=" + std::to_string(settings.afd.client_waiting_tiles),
                      "--client-waiting-rows=" + std::to_string(settings.afd.client_waiting_rows),
                      "--client-unit=" + settings.afd.client_unit,
                      // a stray client must not end what attention has not reached yet
                      "--keep-serving=true"},
                     settings, threads);
}

std::vector<std::string> attention_arguments(const Settings& settings, const std::string& ffn_addresses,
                                             const std::string& address, int64_t rank, int threads) {
  const ServingSettings& serving = settings.serving;
  return with_shared(
      {"attention",
       "--ffn=" + ffn_addresses,
       "--attention-listen=" + address,
       "--attention-rank=" + std::to_string(rank),
       "--max-num-seqs=" + std::to_string(serving.max_num_seqs),
       "--max-num-batched-tokens=" + std::to_string(serving.max_num_batched_tokens),
       "--max-context-tokens=" + std::to_string(serving.max_context_tokens),
       "--kv-cache-tokens=" + std::to_string(serving.kv_cache_tokens),
       "--max-queue=" + std::to_string(serving.max_queue),
       "--prefill-share=" + std::to_string(serving.prefill_share),
       "--prefix-cache-dir=" + serving.prefix_cache_dir,
       "--prefix-cache-dir-mib=" + std::to_string(serving.prefix_cache_dir_mib),
       "--prefix-cache-save-interval-s=" + std::to_string(serving.prefix_cache_save_interval_s),
       "--enable-prefix-caching=" + std::string(bool_text(serving.enable_prefix_caching)),
       "--micro-batches=" + settings.afd.micro_batches,
       "--micro-batch-split=" + settings.afd.micro_batch_split,
       "--qat-simulation=" + std::string(bool_text(settings.engine.qat_simulation)),
       "--kv-cache-dtype=" + settings.engine.kv_cache_dtype,
       "--synthetic-kv=" + std::string(bool_text(settings.engine.synthetic_kv)),
       "--connect-timeout-s=" + std::to_string(settings.afd.connect_timeout_s)},
      settings, threads);
}

}  // namespace

struct Deployment::Impl {
  SocketFolder sockets;
  std::vector<ReservedPort> ports;  // as long as their ranks: a rank that starts again finds its port
  RankProcesses ffn_processes{"FFN rank", "--listen="};
  std::vector<std::unique_ptr<FfnHost>> ffn_hosts;
  RankProcesses attention_processes{"attention rank", "--attention-listen="};
  std::vector<std::unique_ptr<AttentionHost>> attention_hosts;
  // Last: who asks leaves before who answers. One of the two.
  std::unique_ptr<EngineHost> engine;
  std::unique_ptr<FrontHost> front;
  std::vector<RankFacts> attention_ranks, ffn_ranks;

  Result<std::string> listen_address(const std::string& transport, const std::string& role, int64_t rank) {
    const std::string name = role + std::to_string(rank);
    if (transport == "tcp" || transport == "ucx") return transport + "://127.0.0.1:0";
    if (transport == "inproc") {
      static std::atomic<uint64_t> serial{0};  // one process may start several deployments
      return "inproc://tandem-" + std::to_string(::getpid()) + "-" + std::to_string(serial++) + "-" + name;
    }
    TANDEM_ASSIGN(const std::string folder, sockets.path());
    return "shm://" + folder + "/" + name + ".sock";
  }

  // Of all FFN ranks, before any of them listens: each must know where the others are.
  Result<std::vector<std::string>> reserve_ffn_addresses(const Settings& settings) {
    std::vector<std::string> addresses;
    for (int64_t rank = 0; rank < settings.up.ffn; ++rank) {
      TANDEM_ASSIGN(std::string address, listen_address(settings.up.transport, "ffn", rank));
      if (address.ends_with(":0")) {
        TANDEM_ASSIGN(ReservedPort port, ReservedPort::create());
        address = address.substr(0, address.size() - 1) + std::to_string(port.port());
        ports.push_back(std::move(port));
      }
      addresses.push_back(std::move(address));
    }
    return addresses;
  }

  // All at once, so that they read their weights side by side; then `ffn_ranks` says where they listen.
  Status start_ffn(const Settings& settings, int roles) {
    if (settings.up.ffn == 0) return {};
    TANDEM_ASSIGN(const ModelConfig config, read_model_config(settings.model));
    TANDEM_TRY(held_experts(config, settings, 0, settings.up.ffn));  // before any process is started
    TANDEM_ASSIGN(const std::vector<std::string> addresses, reserve_ffn_addresses(settings));
    for (int64_t rank = 0; rank < settings.up.ffn; ++rank) {
      if (settings.up.transport == "inproc") {
        Settings mine = settings;
        mine.afd.ffn = addresses;
        mine.afd.num_ffn_ranks = settings.up.ffn;
        mine.afd.ffn_rank = rank;
        TANDEM_ASSIGN(std::unique_ptr<FfnHost> host,
                      FfnHost::create(mine, addresses[static_cast<size_t>(rank)], roles));
        ffn_ranks.push_back(host->facts());
        ffn_hosts.push_back(std::move(host));
      } else {
        TANDEM_TRY(
            ffn_processes.start(ffn_arguments(settings, addresses, rank, threads_for(settings, roles))));
      }
    }
    return wait_for(ffn_processes, settings, ffn_ranks);
  }

  static Status wait_for(RankProcesses& processes, const Settings& settings, std::vector<RankFacts>& ranks) {
    TANDEM_ASSIGN(const std::vector<RankFacts> ready,
                  processes.wait_ready(std::chrono::seconds(settings.afd.connect_timeout_s)));
    ranks.insert(ranks.end(), ready.begin(), ready.end());
    return {};
  }

  // Several attention ranks and the front before them.
  Status start_attention(Settings settings, const std::vector<std::string>& ffn_addresses, int roles) {
    const std::string trace = settings.engine.trace;
    TANDEM_TRY(share_memory(settings));
    const std::string ffn = joined(ffn_addresses);
    for (int64_t rank = 0; rank < settings.up.attention; ++rank) {
      TANDEM_ASSIGN(const std::string address, listen_address(settings.up.transport, "attention", rank));
      if (settings.up.transport == "inproc") {
        settings.afd.attention_rank = rank;
        settings.engine.trace = trace.empty() ? "" : rank_trace_path(trace, rank);
        TANDEM_ASSIGN(std::unique_ptr<AttentionHost> host,
                      AttentionHost::create(settings, ffn_addresses, address, roles));
        attention_ranks.push_back(host->facts());
        attention_hosts.push_back(std::move(host));
      } else {
        std::vector<std::string> arguments =
            attention_arguments(settings, ffn, address, rank, threads_for(settings, roles));
        if (!trace.empty()) {
          arguments.push_back("--trace=" + rank_trace_path(trace, rank));
          arguments.push_back("--trace-events=" + std::to_string(settings.engine.trace_events));
        }
        TANDEM_TRY(attention_processes.start(std::move(arguments)));
      }
    }
    TANDEM_TRY(wait_for(attention_processes, settings, attention_ranks));
    TANDEM_ASSIGN(front, FrontHost::connect(settings, addresses_of(attention_ranks)));
    return {};
  }

  // A rank by itself would take a quarter of the free memory for its KV pool, and its neighbours as well.
  static Status share_memory(Settings& settings) {
    if (settings.serving.kv_cache_tokens > 0) return {};
    TANDEM_ASSIGN(const ModelConfig config, read_model_config(settings.model));
    settings.serving.kv_cache_tokens =
        static_cast<int64_t>(default_kv_tokens(settings, config, settings.up.attention));
    return {};
  }

  static std::vector<std::string> addresses_of(const std::vector<RankFacts>& ranks) {
    std::vector<std::string> addresses;
    addresses.reserve(ranks.size());
    for (const RankFacts& rank : ranks) addresses.push_back(rank.address);
    return addresses;
  }
};

Deployment::Deployment(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Deployment::~Deployment() = default;
Engine& Deployment::engine() {
  return impl_->front ? impl_->front->engine() : impl_->engine->engine();
}
TraceSource Deployment::trace_source() const {
  return impl_->engine ? impl_->engine->trace_source() : TraceSource{};
}
std::vector<RankFacts> Deployment::ranks() const {
  std::vector<RankFacts> ranks = impl_->attention_ranks;
  ranks.insert(ranks.end(), impl_->ffn_ranks.begin(), impl_->ffn_ranks.end());
  return ranks;
}

std::vector<RankCounters> Deployment::counters() {
  const std::vector<EngineRank> behind_front = engine().ranks();
  std::vector<RankCounters> all;
  all.reserve(behind_front.size() + 1 + impl_->ffn_ranks.size());
  for (const EngineRank& rank : behind_front) all.push_back(counters_of("attention", rank.rank, rank.stats));
  if (behind_front.empty()) {
    const RankFacts& facts = impl_->engine->facts();
    all.push_back(counters_of(facts.role, facts.rank, engine().stats()));
  }
  for (const auto& host : impl_->ffn_hosts) all.push_back(host->counters());
  const std::vector<RankCounters> processes = impl_->ffn_processes.counters("ffn");
  all.insert(all.end(), processes.begin(), processes.end());
  return all;
}

void Deployment::end() {
  impl_->front.reset();
  impl_->attention_hosts.clear();
  impl_->attention_processes.end(kTraceLimit);
  impl_->engine.reset();
}

void Deployment::tend() {
  impl_->ffn_processes.tend();
  impl_->attention_processes.tend();
}

Result<std::unique_ptr<Deployment>> Deployment::start(const Settings& settings) {
  auto impl = std::make_unique<Impl>();
  const int roles = static_cast<int>(settings.up.attention + settings.up.ffn);
  TANDEM_TRY(impl->start_ffn(settings, roles));
  const std::vector<std::string>& running = settings.trace.ffn_addresses;
  const std::vector<std::string> addresses = running.empty() ? Impl::addresses_of(impl->ffn_ranks) : running;
  if (settings.up.attention > 1) {
    TANDEM_TRY(impl->start_attention(settings, addresses, roles));
  } else {
    TANDEM_ASSIGN(impl->engine, EngineHost::create(settings, addresses, roles));
    impl->attention_ranks.push_back(impl->engine->facts());
  }
  return std::unique_ptr<Deployment>(new Deployment(std::move(impl)));
}

}  // namespace tandem
