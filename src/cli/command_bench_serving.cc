// tandem bench serving: a load on any server of OpenAI's API, or on one that this process starts.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/deployment.h"
#include "cli/http_front.h"
#include "cli/load/load_report.h"
#include "cli/load/load_run.h"
#include "cli/progress.h"
#include "serving/api_server.h"

namespace tandem {
namespace {

constexpr uint64_t kDefaultPrompts = 1000;  // as vLLM's client

// A server in this process, in the placement that the settings say.
struct OwnServer {
  std::unique_ptr<Deployment> deployment;
  std::unique_ptr<ApiServer> server;

  static Result<OwnServer> start(const Settings& settings) {
    OwnServer own;
    TANDEM_ASSIGN(own.deployment, Deployment::start(settings));
    TANDEM_ASSIGN(ServedModel model, read_model(settings));
    ApiServerOptions options;
    options.http.host = "127.0.0.1";
    options.http.port = 0;
    options.http.max_body_bytes = static_cast<size_t>(settings.serving.max_body_bytes);
    options.access_log = false;
    TANDEM_ASSIGN(own.server, ApiServer::start(std::move(options)));
    attach_engine(model, own.deployment->engine());
    own.server->set_ready(std::move(model));
    return own;
  }
};

std::string utc_now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// Where the load comes from and how it is sent, checked before any model is read.
struct LoadPlan {
  LoadOptions options;
  PromptOptions prompts;
  std::vector<Objective> objectives;
  std::vector<double> percentiles;
};

Result<LoadPlan> make_plan(const LoadSettings& load) {
  LoadPlan plan;
  LoadOptions& options = plan.options;
  options.path = load.endpoint;
  options.stream = load.stream;
  options.ignore_eos = load.ignore_eos;
  options.temperature = load.temperature;
  options.extra_body = load.extra_body;
  options.max_concurrency = static_cast<uint64_t>(load.max_concurrency);
  TANDEM_ASSIGN(options.arrivals.rate, parse_request_rate(load.request_rate));
  options.arrivals.is_constant = load.arrivals == "constant";
  options.arrivals.burstiness = load.burstiness;
  options.arrivals.seconds = load.duration_s;
  options.arrivals.seed = static_cast<uint64_t>(load.seed);
  options.arrivals.count = static_cast<uint64_t>(load.num_prompts);
  if (load.num_prompts == 0 && load.duration_s == 0) options.arrivals.count = kDefaultPrompts;
  if (options.arrivals.count == 0 && std::isinf(options.arrivals.rate) && load.max_concurrency == 0)
    return make_error(
        ErrorCode::invalid_argument,
        "load.duration_s: nothing bounds how much is sent at once; add --max-concurrency, --request-rate or "
        "--num-prompts");
  TANDEM_TRY(check(options));

  PromptOptions& prompts = plan.prompts;
  prompts.is_chat = load.endpoint == "/v1/chat/completions";
  prompts.dataset_path = load.dataset_path;
  TANDEM_ASSIGN(prompts.input, LengthDistribution::parse("load.random_input_len", load.random_input_len,
                                                         load.random_range_ratio));
  TANDEM_ASSIGN(prompts.output, LengthDistribution::parse("load.random_output_len", load.random_output_len,
                                                          load.random_range_ratio));
  prompts.prefix_tokens = static_cast<uint32_t>(load.random_prefix_len);
  prompts.num_prefixes = static_cast<uint32_t>(load.num_prefixes);
  prompts.seed = static_cast<uint64_t>(load.seed);
  if (load.dataset_name == "custom" && load.dataset_path.empty())
    return make_error(ErrorCode::invalid_argument,
                      "load.dataset_path: no file; name one with --dataset-path");
  if (load.dataset_name == "random" && !load.dataset_path.empty())
    return make_error(ErrorCode::invalid_argument, "load.dataset_name: random with load.dataset_path " +
                                                       load.dataset_path + "; use one of them");
  TANDEM_ASSIGN(plan.objectives, parse_goodput(load.goodput));
  if (!load.stream) {
    for (const Objective& objective : plan.objectives) {
      if (objective.metric != "e2el")
        return make_error(
            ErrorCode::invalid_argument,
            "load.goodput: " + objective.metric + " without load.stream has no times of tokens; use e2el");
    }
  }
  TANDEM_ASSIGN(plan.percentiles, parse_percentiles(load.metric_percentiles));
  return plan;
}

std::vector<std::pair<std::string, std::string>> load_facts(const LoadSettings& load,
                                                            const LoadOptions& options,
                                                            const PromptSource& prompts, bool has_tokenizer) {
  std::vector<std::pair<std::string, std::string>> facts;
  if (prompts.lines() > 0) {
    facts.emplace_back("prompts", fmt::format("{}, {} lines", load.dataset_path, prompts.lines()));
  } else {
    facts.emplace_back("prompts",
                       has_tokenizer ? "random tokens" : "random words, a word counted as a token");
    facts.emplace_back("input length", load.random_input_len);
  }
  facts.emplace_back("output length", load.random_output_len);
  if (load.random_range_ratio > 0)
    facts.emplace_back("range ratio", fmt::format("{:g}", load.random_range_ratio));
  if (load.random_prefix_len > 0)
    facts.emplace_back("shared prefixes", fmt::format("{} of {}", load.num_prefixes, load.random_prefix_len));
  facts.emplace_back(
      "request rate",
      std::isinf(options.arrivals.rate)
          ? std::string("inf")
          : fmt::format("{:g}/s, {}", options.arrivals.rate,
                        options.arrivals.is_constant ? std::string("constant")
                                                     : fmt::format("burstiness {:g}", load.burstiness)));
  facts.emplace_back("max concurrency",
                     load.max_concurrency == 0 ? "none" : std::to_string(load.max_concurrency));
  if (options.arrivals.count > 0) facts.emplace_back("requests", std::to_string(options.arrivals.count));
  if (load.duration_s > 0) facts.emplace_back("duration", fmt::format("{:g} s", load.duration_s));
  facts.emplace_back("stream", load.stream ? "yes" : "no");
  facts.emplace_back("seed", std::to_string(load.seed));
  return facts;
}

Status write_file(const char* key, const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (file) return {};
  return make_error(ErrorCode::invalid_argument, std::string(key) + ": cannot write " + path);
}

}  // namespace

Result<int> run_bench_serving(Settings& settings) {
  const LoadSettings& load = settings.load;
  TANDEM_ASSIGN(LoadPlan plan, make_plan(load));
  if (load.base_url.empty() && settings.model.empty())
    return make_error(
        ErrorCode::invalid_argument,
        "load.base_url: no server; name one with --base-url, or a model folder to serve with --model");
  OwnServer own;
  std::string url = load.base_url;
  if (url.empty()) {
    TANDEM_ASSIGN(own, OwnServer::start(settings));
    url = own.server->url();
  }
  std::string api_key = load.api_key;
  if (const char* key = std::getenv("OPENAI_API_KEY"); api_key.empty() && key != nullptr) api_key = key;
  TANDEM_ASSIGN(const std::unique_ptr<OpenAiClient> client, OpenAiClient::create(url, api_key));
  TANDEM_ASSIGN(plan.options.model,
                choose_model(*client, wanted_model(settings.serving.served_model_name, settings.model)));
  const bool is_folder = std::filesystem::is_directory(settings.model);
  const std::string folder = !load.tokenizer.empty() ? load.tokenizer : is_folder ? settings.model : "";
  std::shared_ptr<const Tokenizer> tokenizer;
  if (!folder.empty()) {
    TANDEM_ASSIGN(Tokenizer loaded, Tokenizer::load(folder));
    tokenizer = std::make_shared<const Tokenizer>(std::move(loaded));
  }
  TANDEM_ASSIGN(const PromptSource prompts, PromptSource::create(plan.prompts, tokenizer));
  for (int64_t i = 0; i < load.num_warmups; ++i)
    TANDEM_TRY(send_warmup(*client, plan.options, prompts, static_cast<uint64_t>(i)));

  LoadReport report;
  report.url = client->url();
  report.path = load.endpoint;
  report.model = plan.options.model;
  report.started = utc_now();
  report.load = load_facts(load, plan.options, prompts, tokenizer != nullptr);
  report.has_rate = !std::isinf(plan.options.arrivals.rate);
  report.is_streamed = load.stream;
  std::vector<LoadRecord> records;
  {
    Progress progress("requests", plan.options.arrivals.count);
    TANDEM_ASSIGN(
        records,
        run_load(*client, plan.options, prompts, [&](uint64_t done, uint64_t failed, uint64_t in_flight) {
          progress.show(done, fmt::format("{} failed, {} in flight", failed, in_flight));
        }));
  }
  report.summary = summarize(records, plan.percentiles, plan.objectives);
  if (!load.report.empty()) TANDEM_TRY(write_file("load.report", load.report, report.html(records)));
  if (!load.output.empty()) {
    std::string lines;
    for (const LoadRecord& record : records) lines += record_line(record) + "\n";
    TANDEM_TRY(write_file("load.output", load.output, lines));
  }
  std::fputs(settings.json ? (report.json() + "\n").c_str() : report.text().c_str(), stdout);
  if (own.server) own.server->stop(std::chrono::seconds(settings.serving.drain_s));
  return report.summary.failed == 0 && report.summary.completed > 0 ? kExitSuccess : kExitFailure;
}

}  // namespace tandem
