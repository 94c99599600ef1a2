#include "cli/http_front.h"

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "base/log.h"
#include "cli/peer_settings.h"
#include "cli/reload_on_hangup.h"

namespace tandem {
namespace {

// How often `up` looks after its FFN processes: soon enough that a client which retries does not wait long.
constexpr auto kTendInterval = std::chrono::milliseconds(200);
// How often the files of keys and certificates are looked at: rotations happen in hours, and a look costs
// microseconds.
constexpr auto kFileInterval = std::chrono::seconds(1);

}  // namespace

Result<HttpAccess> access_of(const ServingSettings& serving) {
  HttpAccess access;
  access.allowed_origins = serving.allowed_origins;
  access.api_keys = serving.api_key;
  if (serving.api_key_file.empty()) return access;
  auto keys = read_api_keys(serving.api_key_file);
  if (!keys) return make_error(ErrorCode::invalid_argument, "serving.api_key_file: " + keys.error().message);
  access.api_keys.insert(access.api_keys.end(), keys->begin(), keys->end());
  return access;
}

namespace {

// The files of keys and certificates, and whether they have changed.
class WatchedFiles {
 public:
  explicit WatchedFiles(const ServingSettings& serving) : serving_(serving), state_(look()) {}

  // Others than before: what they hold is taken by whoever says so.
  void look_at(const ServingSettings& serving) {
    serving_ = serving;
    state_ = look();
  }

  void reload_if_changed(ApiServer& server) {
    if (now() < next_) return;
    next_ = now() + kFileInterval;
    State state = look();
    if (state == state_) return;
    state_ = std::move(state);
    auto access = access_of(serving_);
    const Status done = access
                            ? server.reload(std::move(*access), serving_.ssl_certfile, serving_.ssl_keyfile)
                            : std::unexpected(access.error());
    if (done) return log_info("API keys and certificate have been read again");
    log_error("API keys and certificate stay as they were: " + done.error().message);
  }

 private:
  // Times and sizes; a file that is not there has none. Kubernetes swaps what a link leads to.
  using State = std::vector<std::pair<std::filesystem::file_time_type, uintmax_t>>;

  State look() const {
    State out;
    for (const std::string& path : {serving_.api_key_file, serving_.ssl_certfile, serving_.ssl_keyfile}) {
      if (path.empty()) continue;
      std::error_code missing;
      const auto time = std::filesystem::last_write_time(path, missing);
      out.emplace_back(time, std::filesystem::file_size(path, missing));
    }
    return out;
  }

  ServingSettings serving_;
  State state_;
  Instant next_{};
};

}  // namespace

std::string served_name(const Settings& settings) {
  if (!settings.serving.served_model_name.empty()) return settings.serving.served_model_name;
  std::filesystem::path path(settings.model);
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

Result<ServedModel> read_model(const Settings& settings) {
  const ServingSettings& serving = settings.serving;
  TANDEM_ASSIGN(ServedModel model, read_served_model(settings.model, served_name(settings),
                                                     {.reasoning_parser = serving.reasoning_parser,
                                                      .tool_call_parser = serving.tool_call_parser}));
  model.request_timeout_s = serving.request_timeout_s;
  model.queue_timeout_s = serving.queue_timeout_s;
  return model;
}

void tell(const Settings& settings, const char* event, const std::string& url) {
  if (settings.json) {
    std::printf("%s\n", nlohmann::ordered_json{{"event", event}, {"url", url}}.dump().c_str());
  } else {
    std::printf("%s %s\n", event, url.c_str());
  }
  std::fflush(stdout);
}

void tell_ranks(const Settings& settings, const std::vector<RankFacts>& ranks) {
  if (settings.json) {
    std::printf("{\"event\":\"ranks\",\"ranks\":%s}\n", rank_json(ranks).c_str());
  } else {
    std::fputs(rank_table(ranks).c_str(), stdout);
  }
  std::fflush(stdout);
}

Result<std::unique_ptr<ApiServer>> start_server(const Settings& settings) {
  ApiServerOptions options;
  const ServingSettings& serving = settings.serving;
  options.trace_requests = serving.trace_requests;
  HttpServerOptions& http = options.http;
  http.host = serving.host;
  http.port = static_cast<uint16_t>(serving.port);
  http.max_body_bytes = static_cast<size_t>(serving.max_body_bytes);
  http.tls_certificate_file = serving.ssl_certfile;
  http.tls_key_file = serving.ssl_keyfile;
  TANDEM_ASSIGN(http.access, access_of(serving));
  // Clients of this API expect to be served without a key unless one is set, on any address: said, not
  // refused.
  if (!is_loopback(serving.host) && http.access.api_keys.empty()) {
    log_warning("serving.host: other hosts reach " + serving.host +
                " and no key is asked for: who reaches it is served; --api-key-file FILE asks for one");
  }
  TANDEM_ASSIGN(std::unique_ptr<ApiServer> server, ApiServer::start(std::move(options)));
  tell(settings, "listening", server->url());
  server->set_progress("reading the model", 0);
  return server;
}

void serve_until_stopped(const Settings& settings, StopSignal& stop, ApiServer& server, ServedModel model,
                         Engine& engine, const std::function<void()>& tend) {
  attach_engine(model, engine);
  server.set_ready(model);
  tell(settings, "ready", server.url());
  WatchedFiles files(settings.serving);
  int64_t drain_s = settings.serving.drain_s;
  const auto apply = [&](const Settings& changed) -> Status {
    const ServingSettings& serving = changed.serving;
    auto access = access_of(serving);
    if (!access) return std::unexpected(access.error());
    const Status taken = server.reload(std::move(*access), serving.ssl_certfile, serving.ssl_keyfile);
    if (!taken) return taken;
    files.look_at(serving);
    model.request_timeout_s = serving.request_timeout_s;
    model.queue_timeout_s = serving.queue_timeout_s;
    server.set_ready(model);  // requests that are here keep what they came under
    drain_s = serving.drain_s;
    return {};
  };
  while (!stop.wait_for(kTendInterval)) {
    if (tend) tend();
    files.reload_if_changed(server);
    reload_on_hangup(stop, settings, apply);
  }
  log_info("stopping: open requests have " + std::to_string(drain_s) + " s to end");
  server.stop(std::chrono::seconds(drain_s));
}

}  // namespace tandem
