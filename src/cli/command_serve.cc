// tandem serve, attention and up: an attention role of this process behind the HTTP API.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/batch_generation.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/deployment.h"
#include "cli/front_host.h"
#include "cli/gsm8k.h"
#include "cli/http_front.h"
#include "cli/model_folder.h"
#include "cli/peer_settings.h"
#include "cli/rank_listener.h"
#include "cli/rank_setup.h"
#include "cli/reload_on_hangup.h"
#include "cli/stop_signal.h"
#include "cli/text_model.h"
#include "serving/api_server.h"

namespace tandem {
namespace {

// How often a process without HTTP looks whether its settings are to be read again.
constexpr auto kHangupInterval = std::chrono::milliseconds(200);

// Where HTTP and lanes are in different processes: who asks for a trace must reach the lanes by HTTP.
Status check_trace_requests(const Settings& settings, const std::string& where) {
  if (!settings.serving.trace_requests) return {};
  return make_error(ErrorCode::unsupported, "serving.trace_requests: true " + where +
                                                " is not supported: lanes and HTTP are in different "
                                                "processes; use engine.trace at the attention ranks");
}

// HTTP here, the engines on attention ranks elsewhere.
Result<int> serve_in_front(Settings& settings) {
  StopSignal stop(settings.reload != nullptr);
  if (!settings.engine.trace.empty()) {
    return make_error(ErrorCode::unsupported,
                      "engine.trace: " + settings.engine.trace +
                          " in front of attention ranks is not supported: a front runs "
                          "no lanes; use it at the attention ranks");
  }
  TANDEM_TRY(check_trace_requests(settings, "in front of attention ranks"));
  set_log_name("front");
  TANDEM_ASSIGN(const std::unique_ptr<ApiServer> server, start_server(settings));
  TANDEM_ASSIGN(ServedModel model, read_model(settings));
  server->set_progress("waiting for attention ranks", 0);
  TANDEM_ASSIGN(const std::unique_ptr<FrontHost> host, FrontHost::connect(settings, settings.afd.attention));
  tell_ranks(settings, host->ranks());
  serve_until_stopped(settings, stop, *server, std::move(model), host->engine(), {});
  return kExitSuccess;
}

// The engine here, HTTP on fronts elsewhere.
Result<int> serve_fronts(Settings& settings) {
  StopSignal stop(settings.reload != nullptr);
  TANDEM_TRY(check_metrics_listen(settings));
  TANDEM_TRY(check_listen_address(settings.afd, "afd.attention_listen", settings.afd.attention_listen));
  TANDEM_ASSIGN(const std::unique_ptr<AttentionHost> host,
                AttentionHost::create(settings, settings.afd.ffn, settings.afd.attention_listen, 1));
  if (settings.json) {
    std::printf("%s\n", rank_json(host->facts()).c_str());
  } else {
    std::printf("%sready %s\n", rank_table({host->facts()}).c_str(), host->facts().address.c_str());
  }
  std::fflush(stdout);
  while (!stop.wait_for(kHangupInterval)) reload_on_hangup(stop, settings, {});
  host->stop(std::chrono::seconds(settings.serving.drain_s));
  return kExitSuccess;
}

// No `ffn_addresses`: colocated.
Result<int> serve(Settings& settings, const std::vector<std::string>& ffn_addresses) {
  StopSignal stop(settings.reload != nullptr);
  if (!settings.afd.metrics_listen.empty()) {
    return make_error(ErrorCode::unsupported,
                      "afd.metrics_listen: " + settings.afd.metrics_listen +
                          " is not supported by a process that serves the API; its own /metrics has it: use "
                          "serving.port");
  }
  TANDEM_TRY(read_model_config(settings.model));  // what is no model is refused before a port is taken
  TANDEM_ASSIGN(const std::unique_ptr<ApiServer> server, start_server(settings));
  TANDEM_ASSIGN(ServedModel model, read_model(settings));
  TANDEM_ASSIGN(const std::unique_ptr<EngineHost> host, EngineHost::create(settings, ffn_addresses, 1));
  tell_ranks(settings, {host->facts()});
  model.trace = host->trace_source();
  serve_until_stopped(settings, stop, *server, std::move(model), host->engine(), {});
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
  if (settings.afd.role == "ffn") {
    log_info("afd.role is ffn: this process serves attention ranks, and no HTTP");
    return run_ffn(settings);
  }
  if (settings.afd.role == "attention") return run_attention(settings);
  if (!settings.afd.attention.empty()) return serve_in_front(settings);
  return serve(settings, {});
}

Result<int> run_attention(Settings& settings) {
  TANDEM_TRY(settle_rank(settings, "attention"));
  return run_settled_attention(settings);
}

Result<int> run_settled_attention(Settings& settings) {
  if (settings.afd.ffn.empty()) {
    return make_error(
        ErrorCode::invalid_argument,
        "afd.ffn: no address of an FFN rank; give one with --ffn, or use tandem serve for colocated");
  }
  if (!settings.afd.attention_listen.empty()) return serve_fronts(settings);
  return serve(settings, settings.afd.ffn);
}

Result<int> run_rank(Settings& settings) {
  const std::string wanted = settings.afd.role == "none" ? "" : settings.afd.role;
  TANDEM_ASSIGN(const std::string role, settle_rank(settings, wanted));
  return role == "ffn" ? run_settled_ffn(settings) : run_settled_attention(settings);
}

Result<int> run_up(Settings& settings) {
  StopSignal stop(settings.reload != nullptr);
  if (settings.up.ffn > 0) set_log_name("attention0");
  if (settings.up.attention > 1) {
    TANDEM_TRY(check_trace_requests(settings, "with up.attention " + std::to_string(settings.up.attention)));
  }
  TANDEM_TRY(read_model_config(settings.model));
  std::unique_ptr<ApiServer> server;
  if (!settings.up.once) {
    TANDEM_ASSIGN(server, start_server(settings));
  }
  TANDEM_ASSIGN(const TextModel text, TextModel::load(settings.model));
  TANDEM_ASSIGN(ServedModel model, read_model(settings));
  TANDEM_ASSIGN(const std::unique_ptr<Deployment> deployment, Deployment::start(settings));
  tell_ranks(settings, deployment->ranks());
  model.trace = deployment->trace_source();
  TANDEM_TRY(answer_sample(settings, text, deployment->engine()));
  if (settings.up.once) return kExitSuccess;
  serve_until_stopped(settings, stop, *server, std::move(model), deployment->engine(),
                      [&] { deployment->tend(); });
  return kExitSuccess;
}

}  // namespace tandem
