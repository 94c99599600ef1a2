#include "cli/rank_listener.h"

#include <charconv>
#include <utility>

#include "base/log.h"
#include "cli/http_front.h"
#include "cli/peer_settings.h"
#include "serving/http_server.h"
#include "serving/serving_metrics.h"

namespace tandem {
namespace {

// Of monitors, which poll every few seconds.
constexpr uint32_t kMaxConnections = 16;
constexpr size_t kMaxBodyBytes = 1024;  // nothing here wants one

// One line, for monitors and people.
HttpResponse refusal_text(int status, const std::string& message, std::string_view /*path*/) {
  return {.status = status, .content_type = "text/plain", .body = message + "\n"};
}

Status take_address(const std::string& address, HttpServerOptions& options) {
  const size_t colon = address.rfind(':');
  const char* end = address.data() + address.size();
  const char* digits = colon == std::string::npos ? end : address.data() + colon + 1;
  const auto [rest, error] = std::from_chars(digits, end, options.port);
  if (colon == 0 || error != std::errc() || rest != end) {
    return make_error(ErrorCode::invalid_argument,
                      "afd.metrics_listen: '" + address + "' is not HOST:PORT; 127.0.0.1:9100 would do");
  }
  options.host = address.substr(0, colon);
  return {};
}

}  // namespace

Status check_metrics_listen(const Settings& settings) {
  if (!settings.serving.trace_requests || !settings.afd.metrics_listen.empty()) return {};
  return make_error(ErrorCode::unsupported,
                    "serving.trace_requests: true without afd.metrics_listen is not supported: this rank has "
                    "no other HTTP; use --metrics-listen 127.0.0.1:9100");
}

struct RankListener::Impl {
  std::function<std::string()> metrics;
  std::unique_ptr<TraceEndpoint> traces;
  std::unique_ptr<HttpServer> http;  // last: its handlers use the above
};

RankListener::RankListener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RankListener::~RankListener() = default;

std::string RankListener::metrics_url() const {
  return impl_->http->url() + "/metrics";
}

void RankListener::stop_traces() {
  impl_->traces->stop();
}

Result<std::unique_ptr<RankListener>> RankListener::start(const Settings& settings,
                                                          std::function<std::string()> metrics,
                                                          TraceSource trace) {
  const std::string& address = settings.afd.metrics_listen;
  const bool traced = settings.serving.trace_requests;
  HttpServerOptions options;
  TANDEM_TRY(take_address(address, options));
  options.max_connections = kMaxConnections;
  options.max_body_bytes = kMaxBodyBytes;
  options.error_response = refusal_text;
  TANDEM_ASSIGN(options.access, access_of(settings.serving));
  if (traced && !is_loopback(options.host) && options.access.api_keys.empty() && !settings.afd.insecure) {
    return make_error(
        ErrorCode::invalid_argument,
        "afd.metrics_listen: other hosts reach " + address +
            " and serving.trace_requests lets whoever does record this rank; give --api-key-file, "
            "or say --insecure on a network that nobody else is in");
  }
  auto impl = std::make_unique<Impl>();
  Impl* const self = impl.get();
  impl->metrics = std::move(metrics);
  impl->traces =
      std::make_unique<TraceEndpoint>(TraceEndpointOptions{.on = traced, .error_response = refusal_text});
  impl->traces->attach(std::move(trace));
  RouteTable routes;
  using Request = std::shared_ptr<HttpRequest>;
  using Writer = std::shared_ptr<ResponseWriter>;
  routes.add("GET", "/metrics", [self](const Request&, const Writer& writer) {
    writer->respond({.content_type = ServingMetrics::content_type(), .body = self->metrics()});
  });
  routes.add("GET", kTracePath,
             [self](const Request& request, const Writer& writer) { self->traces->handle(request, writer); });
  TANDEM_ASSIGN(impl->http, HttpServer::start(std::move(options), std::move(routes)));
  std::unique_ptr<RankListener> listener(new RankListener(std::move(impl)));
  log_info("metrics at " + listener->metrics_url());
  return listener;
}

}  // namespace tandem
