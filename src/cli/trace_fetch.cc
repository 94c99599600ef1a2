#include "cli/trace_fetch.h"

#include <fmt/format.h>

#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/trace_file.h"
#include "serving/http_client.h"
#include "serving/trace_endpoint.h"

namespace tandem {
namespace {

// Beyond the seconds that are recorded: writing and sending tens of megabytes on a machine that is busy.
constexpr Duration kAnswerLimit = std::chrono::minutes(2);

// What a refusal says: JSON as the API has it, or a line of text.
std::string message_of(const std::string& body) {
  const auto json = nlohmann::json::parse(body, nullptr, false);
  if (json.is_object() && json.contains("error") && json["error"].is_object())
    return json["error"].value("message", body);
  return body.substr(0, body.find('\n'));
}

Result<std::string> fetch(const std::string& address, const TraceSettings& settings) {
  TANDEM_ASSIGN(HttpUrl url, parse_http_url(address));
  // As clients and monitors know the server.
  for (const char* end : {"/v1", "/metrics"}) {
    if (url.path.ends_with(end)) url.path.resize(url.path.size() - std::string_view(end).size());
  }
  const auto silence =
      kAnswerLimit + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(settings.seconds));
  TANDEM_ASSIGN(const std::unique_ptr<HttpClient> client,
                HttpClient::create(url, {.silence_timeout = silence}));
  HttpClientRequest request;
  request.path = fmt::format("{}?{}={}", kTracePath, settings.last ? "last" : "seconds", settings.seconds);
  if (!settings.api_key.empty()) request.headers = {{"authorization", "Bearer " + settings.api_key}};
  TANDEM_ASSIGN(HttpClientReply reply, client->fetch(std::move(request)));
  if (reply.status == 200) return std::move(reply.body);
  return make_error(reply.status < 500 ? ErrorCode::invalid_argument : ErrorCode::unavailable,
                    fmt::format("{} answers {}: {}", address, reply.status, message_of(reply.body)));
}

}  // namespace

Status fetch_traces(const TraceSettings& settings) {
  std::vector<std::future<Result<std::string>>> answers;
  for (const std::string& url : settings.url)
    answers.push_back(std::async(std::launch::async, [&settings, &url] { return fetch(url, settings); }));
  std::vector<Result<std::string>> bodies;
  for (auto& answer : answers) bodies.push_back(answer.get());
  TemporaryFiles parts;
  for (const Result<std::string>& body : bodies) {
    if (!body) return std::unexpected(body.error());
    parts.paths.push_back(settings.output + ".part" + std::to_string(parts.paths.size()));
    std::ofstream file(parts.paths.back(), std::ios::binary);
    file << *body;
    if (!file.flush())
      return make_error(ErrorCode::unavailable, "trace.output: cannot write " + parts.paths.back());
  }
  return join_traces(parts.paths, settings.output);
}

}  // namespace tandem
