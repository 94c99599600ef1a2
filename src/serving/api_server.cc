#include "serving/api_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/log.h"
#include "serving/api_error.h"
#include "serving/completion_service.h"
#include "serving/field_reader.h"
#include "serving/openapi.h"
#include "serving/serving_metrics.h"
#include "serving/trace_endpoint.h"
#include "serving/worker_pool.h"

namespace tandem {

using Json = nlohmann::ordered_json;

namespace {

// Paths are a client's text: one line of the log stays one line.
std::string for_log(std::string text) {
  constexpr size_t kLongest = 200;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text.empty() ? "-" : text;
}

// Of a front: the queues of all ranks that serve. Its limit is the smallest of theirs.
bool is_full(const Engine& engine) {
  const uint32_t most = engine.limits().max_queue;
  const std::vector<EngineRank> ranks = engine.ranks();
  if (ranks.empty()) return engine.stats().waiting >= most;
  return std::ranges::none_of(
      ranks, [most](const EngineRank& rank) { return rank.health && rank.stats.waiting < most; });
}

}  // namespace

struct ApiServer::Impl {
  ApiServerOptions options;
  std::shared_ptr<ServingMetrics> metrics = std::make_shared<ServingMetrics>();
  std::shared_ptr<WorkerPool> delivery = std::make_shared<WorkerPool>(1, SIZE_MAX, "tandem-deliver");
  std::unique_ptr<WorkerPool> prepare;
  CompletionService service{delivery, metrics};
  std::unique_ptr<TraceEndpoint> traces;

  mutable std::mutex mutex;  // for the next three
  std::shared_ptr<const ServedModel> model;
  std::string stage = "starting";
  double progress = 0;

  std::unique_ptr<HttpServer> http;  // last: its handlers use all of the above

  using Writer = std::shared_ptr<ResponseWriter>;
  using Request = std::shared_ptr<HttpRequest>;

  std::shared_ptr<const ServedModel> current() const {
    const std::lock_guard lock(mutex);
    return model;
  }

  ApiError loading() const {
    const std::lock_guard lock(mutex);
    return {
        .status = 503,
        .message = fmt::format("the model is loading ({}, {:.0f} %): try again later", stage, progress * 100),
        .code = "model_loading"};
  }

  void health(const Writer& writer) const {
    HttpResponse response;
    const auto served = current();
    Json body;
    if (!served) {
      const std::lock_guard lock(mutex);
      body = {{"status", "loading"}, {"reason", stage}, {"progress", progress}};
      response.status = 503;
    } else {
      const Status state = served->engine->health();
      const std::vector<EngineRank> ranks = served->engine->ranks();
      std::string lost;  // a front serves on while a rank does, and says what it misses
      for (const EngineRank& rank : ranks) {
        if (!rank.health) lost += (lost.empty() ? "" : "; ") + rank.health.error().message;
      }
      if (!state) response.status = 503;
      if (!state || !lost.empty()) {
        body = {{"status", "degraded"}, {"reason", state ? lost : state.error().message}};
      } else {
        body = {{"status", "ok"}};
      }
      if (!ranks.empty()) body["ranks"] = rank_list(ranks);
    }
    if (response.status == 503) response.headers.emplace_back("retry-after", "1");
    response.body = body.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    writer->respond(std::move(response));
  }

  // Whether a load balancer should send requests here: unlike /health it also looks at the queue.
  void ready(const Writer& writer) const {
    const auto served = current();
    std::string reason;
    if (!served) {
      reason = loading().message;
    } else if (const Status state = served->engine->health(); !state) {
      reason = state.error().message;
    } else if (is_full(*served->engine)) {
      reason = fmt::format("the queue is full: {} requests wait", served->engine->stats().waiting);
    }
    if (reason.empty()) return writer->respond({.status = 200, .body = "{\"status\":\"ready\"}\n"});
    const Json body = {{"status", "not ready"}, {"reason", reason}};
    writer->respond({.status = 503,
                     .headers = {{"retry-after", "1"}},
                     .body = body.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"});
  }

  static Json rank_list(const std::vector<EngineRank>& ranks) {
    Json list = Json::array();
    for (const EngineRank& rank : ranks) {
      Json entry = {{"role", "attention"},
                    {"rank", rank.rank},
                    {"name", rank.name},
                    {"ready", rank.health.has_value()},
                    {"running", rank.stats.running},
                    {"waiting", rank.stats.waiting},
                    {"kv_blocks", rank.stats.kv_blocks_total},
                    {"kv_blocks_used", rank.stats.kv_blocks_used}};
      if (!rank.health) entry["reason"] = rank.health.error().message;
      list.push_back(std::move(entry));
    }
    return list;
  }

  static Json model_object(const ServedModel& served) {
    return {{"id", served.id},
            {"object", "model"},
            {"created", served.created},
            {"owned_by", "tandem"},
            {"max_model_len", served.engine->limits().max_context_tokens}};
  }

  void models(const Writer& writer) const {
    const auto served = current();
    if (!served) return writer->respond(error_response(loading()));
    const Json body = {{"object", "list"}, {"data", Json::array({model_object(*served)})}};
    writer->respond({.status = 200, .body = body.dump() + "\n"});
  }

  void one_model(const Request& request, const Writer& writer) const {
    const auto served = current();
    if (!served) return writer->respond(error_response(loading()));
    const std::string id(route_parameter("/v1/models/*", request->path));
    if (id == served->id)
      return writer->respond({.status = 200, .body = model_object(*served).dump() + "\n"});
    writer->respond(error_response(
        {.status = 404,
         .message = "the model \"" + id + "\" does not exist: this server has \"" + served->id + "\"",
         .param = "model",
         .code = "model_not_found"}));
  }

  void props(const Writer& writer) const {
    const auto served = current();
    if (!served) return writer->respond(error_response(loading()));
    const EngineLimits& limits = served->engine->limits();
    const SamplingParams& sampling = served->defaults.sampling;
    const Json body = {{"model", served->id},
                       {"chat_template", static_cast<bool>(served->render_chat)},
                       {"eos_token_ids", served->defaults.eos_token_ids},
                       {"defaults",
                        {{"temperature", as_written(sampling.temperature)},
                         {"top_p", as_written(sampling.top_p)},
                         {"top_k", sampling.top_k},
                         {"min_p", as_written(sampling.min_p)},
                         {"repetition_penalty", as_written(sampling.repetition_penalty)}}},
                       {"limits",
                        {{"max_context_tokens", limits.max_context_tokens},
                         {"kv_pool_tokens", limits.kv_pool_tokens},
                         {"vocab_size", limits.vocab_size},
                         {"max_num_seqs", limits.max_num_seqs},
                         {"max_queue", limits.max_queue},
                         {"max_body_bytes", options.http.max_body_bytes},
                         {"max_connections", options.http.max_connections}}}};
    writer->respond({.status = 200, .body = body.dump() + "\n"});
  }

  using Generate = void (CompletionService::*)(const ServedModel&, const HttpRequest&,
                                               const std::shared_ptr<ResponseWriter>&) const;

  void generate(Generate handle, const Request& request, const Writer& writer) {
    auto served = current();
    if (!served) return writer->respond(refusal(loading(), request->path, request->id));
    const bool taken = prepare->try_post(
        [this, handle, served, request, writer] { (service.*handle)(*served, *request, writer); });
    if (taken) return;
    writer->respond(refusal({.status = 429,
                             .message = fmt::format("{} requests wait to be read: try again later",
                                                    options.max_waiting_requests)},
                            request->path, request->id));
  }

  RouteTable routes() {
    RouteTable table;
    table.add("GET", "/health", [this](Request, Writer writer) { health(writer); });
    table.add("GET", "/ready", [this](Request, Writer writer) { ready(writer); });
    table.add("GET", "/openapi.json", [this](Request, Writer writer) {
      const auto served = current();
      writer->respond({.status = 200, .body = openapi_json(served ? served->id : "") + "\n"});
    });
    table.add("GET", "/metrics", [this](Request, Writer writer) {
      const auto served = current();
      writer->respond({.status = 200,
                       .content_type = ServingMetrics::content_type(),
                       .body = metrics->text(served ? served->engine : nullptr)});
    });
    table.add("GET", kTracePath,
              [this](const Request& request, const Writer& writer) { traces->handle(request, writer); });
    table.add("GET", "/props", [this](Request, Writer writer) { props(writer); });
    table.add("GET", "/v1/models", [this](Request, Writer writer) { models(writer); });
    table.add("GET", "/v1/models/*", [this](Request request, Writer writer) { one_model(request, writer); });
    const auto generates = [&](const char* path, Generate handle) {
      table.add("POST", path, [this, handle](const Request& request, const Writer& writer) {
        generate(handle, request, writer);
      });
    };
    generates("/v1/completions", &CompletionService::handle_completion);
    generates("/v1/chat/completions", &CompletionService::handle_chat);
    generates("/tokenize", &CompletionService::handle_tokenize);
    generates("/detokenize", &CompletionService::handle_detokenize);
    generates("/v1/responses", &CompletionService::handle_responses);
    generates("/v1/messages", &CompletionService::handle_messages);
    generates("/v1/messages/count_tokens", &CompletionService::count_message_tokens);
    return table;
  }

  void completed(const HttpRecord& record) {
    metrics->count_request(record.route, record.status, record.disconnected, record.seconds);
    if (!options.access_log) return;
    const std::string line =
        fmt::format("{} {} {} {:.1f} ms, {} bytes in, {} out, {} {}{}", for_log(record.method),
                    for_log(record.path), record.status, record.seconds * 1e3, record.bytes_in,
                    record.bytes_out, record.peer, record.id, record.disconnected ? ", client left" : "");
    const bool is_probe = record.route == "/health" || record.route == "/ready" || record.route == "/metrics";
    is_probe ? log_debug(line) : log_info(line);
  }
};

ApiServer::ApiServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ApiServer::~ApiServer() {
  stop(Duration::zero());
}

Result<std::unique_ptr<ApiServer>> ApiServer::start(ApiServerOptions options) {
  auto impl = std::make_unique<Impl>();
  Impl* self = impl.get();
  options.http.error_response = [](int status, std::string message, std::string_view path) {
    return refusal(
        {.status = status, .message = std::move(message), .code = status == 401 ? "invalid_api_key" : ""},
        path, "");
  };
  options.http.on_complete = [self](const HttpRecord& record) { self->completed(record); };
  impl->prepare =
      std::make_unique<WorkerPool>(options.prepare_threads, options.max_waiting_requests, "tandem-prepare");
  impl->options = options;
  impl->traces = std::make_unique<TraceEndpoint>(
      TraceEndpointOptions{.on = options.trace_requests, .error_response = options.http.error_response});
  TANDEM_ASSIGN(impl->http, HttpServer::start(std::move(options.http), impl->routes()));
  return std::unique_ptr<ApiServer>(new ApiServer(std::move(impl)));
}

uint16_t ApiServer::port() const {
  return impl_->http->port();
}
std::string ApiServer::url() const {
  return impl_->http->url();
}

void ApiServer::set_progress(std::string stage, double fraction) {
  const std::lock_guard lock(impl_->mutex);
  impl_->stage = std::move(stage);
  impl_->progress = fraction;
}

void ApiServer::set_ready(ServedModel model) {
  impl_->traces->attach(model.trace);
  auto shared = std::make_shared<const ServedModel>(std::move(model));
  const std::lock_guard lock(impl_->mutex);
  impl_->model = std::move(shared);
}

Status ApiServer::reload(HttpAccess access, const std::string& tls_certificate_file,
                         const std::string& tls_key_file) {
  return impl_->http->reload(std::move(access), tls_certificate_file, tls_key_file);
}

void ApiServer::stop(Duration drain) {
  impl_->traces->stop();  // a window of a minute does not hold up the end
  impl_->http->stop(drain);
  impl_->prepare->stop();
  impl_->delivery->stop();
}

}  // namespace tandem
