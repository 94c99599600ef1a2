// tandem serve, attention and up: an attention role of this process behind the HTTP API.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/batch_generation.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/deployment.h"
#include "cli/gsm8k.h"
#include "cli/model_folder.h"
#include "cli/stop_signal.h"
#include "cli/text_model.h"
#include "serving/api_server.h"

namespace tandem {
namespace {

// Streams that are open when the server is asked to stop may end by themselves for so long.
constexpr auto kDrainLimit = std::chrono::seconds(10);

std::string served_name(const Settings& settings) {
  if (!settings.serving.served_model_name.empty()) return settings.serving.served_model_name;
  std::filesystem::path path(settings.model);
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

// What the process tells whoever started it, one line each on standard output: words, or JSON objects with
// --json.
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
  options.http.host = settings.serving.host;
  options.http.port = static_cast<uint16_t>(settings.serving.port);
  TANDEM_ASSIGN(std::unique_ptr<ApiServer> server, ApiServer::start(std::move(options)));
  tell(settings, "listening", server->url());
  server->set_progress("reading the model", 0);
  return server;
}

// How often `up` looks after its FFN processes: soon enough that a client which retries does not wait long.
constexpr auto kTendInterval = std::chrono::milliseconds(200);

// Says that it serves, and serves until it is asked to stop. `deployment`: whose processes to look after; may
// be null.
void serve_until_stopped(const Settings& settings, StopSignal& stop, ApiServer& server, ServedModel model,
                         Engine& engine, Deployment* deployment) {
  attach_engine(model, engine);
  server.set_ready(std::move(model));
  tell(settings, "ready", server.url());
  while (!stop.wait_for(kTendInterval)) {
    if (deployment != nullptr) deployment->tend();
  }
  log_info("stopping: open requests have " + std::to_string(kDrainLimit.count()) + " s to end");
  server.stop(kDrainLimit);
}

// No `ffn_addresses`: colocated.
Result<int> serve(Settings& settings, const std::vector<std::string>& ffn_addresses) {
  StopSignal stop;
  TANDEM_TRY(read_model_config(settings.model));  // what is no model is refused before a port is taken
  TANDEM_ASSIGN(const std::unique_ptr<ApiServer> server, start_server(settings));
  TANDEM_ASSIGN(ServedModel model, read_served_model(settings.model, served_name(settings)));
  TANDEM_ASSIGN(const std::unique_ptr<EngineHost> host, EngineHost::create(settings, ffn_addresses, 1));
  tell_ranks(settings, {host->facts()});
  serve_until_stopped(settings, stop, *server, std::move(model), host->engine(), nullptr);
  return kExitSuccess;
}

// The question that `up` answers: the user's, or the first that lies beside the model.
Result<std::string> sample_question(const Settings& settings) {
  if (!settings.up.question.empty()) return settings.up.question;
  const auto problems = load_gsm8k(settings.model + "/heldout.jsonl");
  return problems ? problems->front().question : std::string("What is 17 plus 25?");
}

Status answer_sample(const Settings& settings, const TextModel& text, Engine& engine) {
  TANDEM_ASSIGN(const std::string question, sample_question(settings));
  GenerationRequest request;
  auto prompt = text.encode_question(question);
  if (!prompt) prompt = text.encode_text(question);  // a base model has no chat template
  if (!prompt) return std::unexpected(prompt.error());
  request.prompt = std::move(*prompt);
  request.sampling.temperature = 0;
  request.sampling.max_tokens = 256;  // a worked answer, not an essay
  const std::vector<BatchAnswer> answers = generate_batch(engine, {&request, 1}, 1);
  const BatchAnswer& answer = answers.front();
  if (answer.finish.reason == FinishReason::error) return std::unexpected(answer.finish.error);
  TANDEM_ASSIGN(const std::string reply, text.decode(answer.tokens()));
  const double decode_seconds = answer.seconds - answer.first_token_seconds;
  const size_t tokens = answer.events.size();
  const double rate = static_cast<double>(tokens - 1) / std::max(decode_seconds, 1e-9);
  if (settings.json) {
    const nlohmann::ordered_json sample = {
        {"event", "sample"},        {"question", question},
        {"answer", reply},          {"prompt_tokens", answer.finish.prompt_tokens},
        {"tokens", tokens},         {"first_token_seconds", answer.first_token_seconds},
        {"tokens_per_second", rate}};
    std::printf("%s\n", sample.dump().c_str());
  } else {
    std::printf(
        "\nQ: %s\nA: %s\n(%u prompt tokens, first token after %.1f ms; then %zu tokens, %.1f tokens/s)\n\n",
        question.c_str(), reply.c_str(), answer.finish.prompt_tokens, 1e3 * answer.first_token_seconds,
        tokens, rate);
  }
  std::fflush(stdout);
  return {};
}

}  // namespace

Result<int> run_serve(Settings& settings) {
  if (settings.afd.role == "ffn")
    return make_error(ErrorCode::invalid_argument, "afd.role: ffn does not serve HTTP; use tandem ffn");
  if (settings.afd.role == "attention") return run_attention(settings);
  return serve(settings, {});
}

Result<int> run_attention(Settings& settings) {
  if (settings.afd.ffn.empty()) {
    return make_error(
        ErrorCode::invalid_argument,
        "afd.ffn: no address of an FFN rank; give one with --ffn, or use tandem serve for colocated");
  }
  set_log_name("attention0");
  return serve(settings, settings.afd.ffn);
}

Result<int> run_up(Settings& settings) {
  StopSignal stop;
  if (settings.up.ffn > 0) set_log_name("attention0");
  TANDEM_TRY(read_model_config(settings.model));
  std::unique_ptr<ApiServer> server;
  if (!settings.up.once) {
    TANDEM_ASSIGN(server, start_server(settings));
  }
  TANDEM_ASSIGN(const TextModel text, TextModel::load(settings.model));
  TANDEM_ASSIGN(ServedModel model, read_served_model(settings.model, served_name(settings)));
  TANDEM_ASSIGN(const std::unique_ptr<Deployment> deployment, Deployment::start(settings));
  tell_ranks(settings, deployment->ranks());
  TANDEM_TRY(answer_sample(settings, text, deployment->engine()));
  if (settings.up.once) return kExitSuccess;
  serve_until_stopped(settings, stop, *server, std::move(model), deployment->engine(), deployment.get());
  return kExitSuccess;
}

}  // namespace tandem
