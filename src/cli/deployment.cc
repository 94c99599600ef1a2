#include "cli/deployment.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>

#include "cli/child_process.h"
#include "cli/compute.h"
#include "cli/ffn_host.h"

namespace tandem {
namespace {

// A folder of its own for the sockets of one deployment, gone when it ends.
class SocketFolder {
 public:
  ~SocketFolder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  Result<std::string> path() {
    if (!path_.empty()) return path_;
    std::string name = (std::filesystem::temp_directory_path() / "tandem-XXXXXX").string();
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
std::vector<std::string> ffn_arguments(const Settings& settings, const std::string& address, int threads) {
  return {"ffn",
          "--model=" + settings.model,
          "--listen=" + address,
          "--compute-dtype=" + settings.engine.compute_dtype,
          "--deterministic=" + std::string(bool_text(settings.engine.deterministic)),
          "--log-level=" + settings.engine.log_level,
          "--threads=" + std::to_string(threads),
          "--compute-gate-on-attention=" + std::string(bool_text(settings.afd.compute_gate_on_attention)),
          "--compute-shared-experts-on-attention=" +
              std::string(bool_text(settings.shared_experts_on_attention())),
          "--send-token-ids=" + std::string(bool_text(settings.afd.send_token_ids)),
          "--json"};
}

}  // namespace

struct Deployment::Impl {
  SocketFolder sockets;
  ChildProcess ffn_process;
  std::unique_ptr<FfnHost> ffn_host;
  std::unique_ptr<EngineHost> engine;  // last: attention leaves before its experts do
  std::vector<RankFacts> ranks;

  Result<std::string> listen_address(const std::string& transport) {
    if (transport == "tcp") return std::string("tcp://127.0.0.1:0");
    if (transport == "inproc") return "inproc://tandem-" + std::to_string(::getpid());
    TANDEM_ASSIGN(const std::string folder, sockets.path());
    return "shm://" + folder + "/ffn0.sock";
  }

  // Returns the address that attention connects to.
  Result<std::string> start_ffn(const Settings& settings, int roles) {
    TANDEM_ASSIGN(const std::string address, listen_address(settings.up.transport));
    if (settings.up.transport == "inproc") {
      TANDEM_ASSIGN(ffn_host, FfnHost::create(settings, address, roles));
      ranks.push_back(ffn_host->facts());
    } else {
      TANDEM_ASSIGN(ffn_process,
                    ChildProcess::start(ffn_arguments(settings, address, threads_for(settings, roles))));
      auto line = ffn_process.read_line(std::chrono::seconds(settings.afd.connect_timeout_s));
      if (!line) return make_error(line.error().code, "FFN rank 0 did not start: " + line.error().message);
      TANDEM_ASSIGN(const RankFacts facts, parse_rank_json(*line));
      ranks.push_back(facts);
    }
    return ranks.back().address;
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

Result<std::unique_ptr<Deployment>> Deployment::start(const Settings& settings) {
  auto impl = std::make_unique<Impl>();
  const bool split = settings.up.ffn > 0;
  const int roles = split ? 2 : 1;
  std::string ffn_address;
  if (split) {
    TANDEM_ASSIGN(ffn_address, impl->start_ffn(settings, roles));
  }
  TANDEM_ASSIGN(impl->engine, EngineHost::create(settings, ffn_address, roles));
  impl->ranks.insert(impl->ranks.begin(), impl->engine->facts());
  return std::unique_ptr<Deployment>(new Deployment(std::move(impl)));
}

}  // namespace tandem
