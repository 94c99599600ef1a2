#include "cli/deployment.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>

#include "base/log.h"
#include "cli/child_process.h"
#include "cli/compute.h"
#include "cli/ffn_host.h"
#include "cli/model_folder.h"

namespace tandem {
namespace {

// A rank that cannot start again must not keep the machine busy with trying.
constexpr auto kRestartInterval = std::chrono::seconds(1);

constexpr std::string_view kFolderPrefix =
    "tandem-";  // then the process id, a dash and six random characters

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

// Every setting that both roles must share, as the child's flags: nobody repeats them by hand.
std::vector<std::string> ffn_arguments(const Settings& settings, const std::string& address, int64_t rank,
                                       int threads) {
  return {"ffn",
          "--model=" + settings.model,
          "--listen=" + address,
          "--compute-dtype=" + settings.engine.compute_dtype,
          "--deterministic=" + std::string(bool_text(settings.engine.deterministic)),
          "--connector=" + settings.afd.connector,
          "--num-ffn-ranks=" + std::to_string(settings.up.ffn),
          "--ffn-rank=" + std::to_string(rank),
          "--log-level=" + settings.engine.log_level,
          "--threads=" + std::to_string(threads),
          "--compute-gate-on-attention=" + std::string(bool_text(settings.afd.compute_gate_on_attention)),
          "--compute-shared-experts-on-attention=" +
              std::string(bool_text(settings.shared_experts_on_attention())),
          "--activation-dtype=" + settings.afd.activation_dtype,
          "--send-token-ids=" + std::string(bool_text(settings.afd.send_token_ids)),
          "--keep-serving=true",  // a stray client must not end what attention has not reached yet
          "--json"};
}

}  // namespace

struct Deployment::Impl {
  struct FfnProcess {
    ChildProcess child;
    std::vector<std::string> arguments;
    Instant started;
  };

  SocketFolder sockets;
  std::vector<FfnProcess> ffn_processes;
  std::vector<std::unique_ptr<FfnHost>> ffn_hosts;
  std::unique_ptr<EngineHost> engine;  // last: attention leaves before its experts do
  std::vector<RankFacts> ranks;

  Result<std::string> listen_address(const std::string& transport, int64_t rank) {
    if (transport == "tcp" || transport == "ucx") return transport + "://127.0.0.1:0";
    if (transport == "inproc")
      return "inproc://tandem-" + std::to_string(::getpid()) + "-" + std::to_string(rank);
    TANDEM_ASSIGN(const std::string folder, sockets.path());
    return "shm://" + folder + "/ffn" + std::to_string(rank) + ".sock";
  }

  // All at once, so that they read their weights side by side; then `ranks` says where they listen.
  Status start_ffn(const Settings& settings, int roles) {
    if (settings.up.ffn == 0) return {};
    TANDEM_ASSIGN(const ModelConfig config, read_model_config(settings.model));
    TANDEM_TRY(held_experts(config, 0, settings.up.ffn));  // before any process is started
    for (int64_t rank = 0; rank < settings.up.ffn; ++rank) {
      TANDEM_ASSIGN(const std::string address, listen_address(settings.up.transport, rank));
      if (settings.up.transport == "inproc") {
        Settings mine = settings;
        mine.afd.num_ffn_ranks = settings.up.ffn;
        mine.afd.ffn_rank = rank;
        TANDEM_ASSIGN(std::unique_ptr<FfnHost> host, FfnHost::create(mine, address, roles));
        ranks.push_back(host->facts());
        ffn_hosts.push_back(std::move(host));
      } else {
        FfnProcess process;
        process.arguments = ffn_arguments(settings, address, rank, threads_for(settings, roles));
        TANDEM_ASSIGN(process.child, ChildProcess::start(process.arguments));
        process.started = now();
        ffn_processes.push_back(std::move(process));
      }
    }
    for (size_t rank = 0; rank < ffn_processes.size(); ++rank) {
      FfnProcess& process = ffn_processes[rank];
      auto line = process.child.read_line(std::chrono::seconds(settings.afd.connect_timeout_s));
      if (!line)
        return make_error(line.error().code,
                          "FFN rank " + std::to_string(rank) + " did not start: " + line.error().message);
      TANDEM_ASSIGN(const RankFacts facts, parse_rank_json(*line));
      ranks.push_back(facts);
      // Again it must listen where attention looks for it, on the port that the system chose.
      for (std::string& argument : process.arguments) {
        if (argument.starts_with("--listen=")) argument = "--listen=" + facts.address;
      }
    }
    return {};
  }
};

Deployment::Deployment(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Deployment::~Deployment() = default;
Engine& Deployment::engine() {
  return impl_->engine->engine();
}
std::vector<RankFacts> Deployment::ranks() const {
  return impl_->ranks;
}

void Deployment::tend() {
  for (size_t rank = 0; rank < impl_->ffn_processes.size(); ++rank) {
    Impl::FfnProcess& process = impl_->ffn_processes[rank];
    if (process.child.alive() || now() - process.started < kRestartInterval) continue;
    process.started = now();
    auto child = ChildProcess::start(process.arguments);
    if (!child) {
      log_error("FFN rank " + std::to_string(rank) +
                " has died and cannot be started again: " + child.error().message);
      continue;
    }
    process.child = std::move(*child);
    log_warning("FFN rank " + std::to_string(rank) + " has died; started again as process " +
                std::to_string(process.child.pid()));
  }
}

Result<std::unique_ptr<Deployment>> Deployment::start(const Settings& settings) {
  auto impl = std::make_unique<Impl>();
  const int roles = 1 + static_cast<int>(settings.up.ffn);
  TANDEM_TRY(impl->start_ffn(settings, roles));
  std::vector<std::string> addresses;
  for (const RankFacts& rank : impl->ranks) addresses.push_back(rank.address);
  TANDEM_ASSIGN(impl->engine, EngineHost::create(settings, addresses, roles));
  impl->ranks.insert(impl->ranks.begin(), impl->engine->facts());
  return std::unique_ptr<Deployment>(new Deployment(std::move(impl)));
}

}  // namespace tandem
