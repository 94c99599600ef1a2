// tandem bench placement: the same load on ranks that differ in where the gate runs, run by run in turn.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/file.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/model_folder.h"
#include "cli/placement_report.h"
#include "cli/probe_prompts.h"

namespace tandem {
namespace {

// Room for a question of the held-out file and its answer beside the load's own requests.
constexpr int64_t kAccuracyContext = 768;
constexpr uint32_t kAccuracyConcurrency = 32, kAccuracyTokens = 256;  // as `eval gsm8k` has them

std::string utc_now() {
  const std::time_t at = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&at, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

// As it was typed.
std::string own_command_line() {
  std::ifstream file("/proc/self/cmdline");
  std::string text(std::istreambuf_iterator<char>(file), {});
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::ranges::replace(text, '\0', ' ');
  return text;
}

// The user's settings with the profile's limits, before an arm's own placement.
Result<Settings> load_settings(const Settings& given, const LoadProfile& profile, uint32_t max_positions,
                               bool accuracy) {
  Settings settings = given;
  settings.serving.max_num_batched_tokens = profile.max_num_batched_tokens;
  settings.serving.max_num_seqs = profile.max_num_seqs;
  settings.serving.max_context_tokens = profile.context_tokens();
  if (accuracy) {
    settings.serving.max_context_tokens =
        std::min<int64_t>(std::max(settings.serving.max_context_tokens, kAccuracyContext), max_positions);
  }
  OptionSet options = settings.declare();
  if (settings.afd.execution == "graph" && options.find("afd.capture_sizes") != nullptr) {
    std::string sizes;
    for (const uint32_t size : profile.capture_sizes)
      sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
    TANDEM_TRY(options.set("afd.capture_sizes", sizes, "bench.profile"));
  }
  return settings;
}

class Bench {
 public:
  Bench(const Settings& settings, uint32_t vocab_size, PlacementReport& report)
      : settings_(settings), vocab_size_(vocab_size), report_(report) {}

  Status start(const std::vector<ArmSpec>& specs, const Settings& base) {
    const bool by_process =
        std::ranges::any_of(specs, [](const ArmSpec& arm) { return !arm.binary.empty(); });
    for (const ArmSpec& spec : specs) {
      Settings settings = base;
      settings.afd.compute_gate_on_attention = spec.gate_on_attention;
      if (const Status valid = validate(settings); !valid)
        return make_error(valid.error().code, "arm " + spec.name + ": " + valid.error().message);
      if (by_process) {
        arms_.push_back(make_process_arm(settings, spec.binary, report_.profile.concurrency));
      } else {
        std::fprintf(stderr, "starting arm %s\n", spec.name.c_str());
        TANDEM_ASSIGN(auto arm, make_engine_arm(settings, report_.profile.concurrency));
        arms_.push_back(std::move(arm));
      }
      report_.arms.push_back({spec.name, arms_.back()->command(), {}, {}, {}});
    }
    report_.how =
        by_process
            ? "Every run starts its binary anew (`generate --json`) and begins when the weights are loaded; "
              "no "
              "run warms up. The arms take turns, forwards and backwards (ABBA)."
            : "Each arm's ranks were started once and kept, idle while another arm ran; each first answered "
              "one "
              "wave of requests that is not counted. The arms take turns, forwards and backwards (ABBA).";
    return by_process ? Status() : warm_up();
  }

  Status run() {
    begin_ = now();
    for (int64_t round = 0; round < settings_.bench.runs; ++round) {
      // The same requests for every arm of a round, others in the next.
      const auto requests = requests_of(static_cast<uint64_t>(round) + 1, report_.requests);
      for (size_t place = 0; place < arms_.size(); ++place)
        TANDEM_TRY(run_once(round % 2 == 0 ? place : arms_.size() - 1 - place, requests));
    }
    return {};
  }

  Status accuracy(const AccuracyTask& task) {
    for (size_t arm = 0; arm < arms_.size(); ++arm) {
      std::fprintf(stderr, "accuracy of arm %s\n", report_.arms[arm].name.c_str());
      TANDEM_ASSIGN(report_.arms[arm].accuracy, arms_[arm]->accuracy(task));
    }
    return {};
  }

  void finish() {
    for (size_t arm = 0; arm < arms_.size(); ++arm) report_.arms[arm].ranks = arms_[arm]->ranks();
  }

 private:
  std::vector<GenerationRequest> requests_of(uint64_t round, int64_t count) const {
    const std::vector<uint32_t> lengths(static_cast<size_t>(count), report_.profile.input_tokens);
    return random_requests(report_.seed + round, lengths, vocab_size_, report_.profile.output_tokens);
  }

  Status warm_up() {
    const auto requests = requests_of(0, report_.profile.concurrency);
    for (size_t arm = 0; arm < arms_.size(); ++arm) {
      std::fprintf(stderr, "arm %s warms up\n", report_.arms[arm].name.c_str());
      TANDEM_TRY(arms_[arm]->run(requests));
    }
    return {};
  }

  Status run_once(size_t arm, const std::vector<GenerationRequest>& requests) {
    ArmResult& result = report_.arms[arm];
    TANDEM_ASSIGN(ArmRun run, arms_[arm]->run(requests));
    report_.order.push_back(result.name);
    const size_t total = arms_.size() * static_cast<size_t>(settings_.bench.runs);
    const size_t done = report_.order.size();
    const double left = seconds_since(begin_) / static_cast<double>(done) * static_cast<double>(total - done);
    std::fprintf(
        stderr,
        "run %zu of %zu, %s: E2E %.1f ms, TTFT %.1f ms, %.0f tokens/s, %llu failed; about %.0f s left\n",
        done, total, result.name.c_str(), run.measure.e2e_ms, run.measure.ttft_ms,
        run.measure.total_tokens_per_second, static_cast<unsigned long long>(run.measure.failed), left);
    result.runs.push_back(std::move(run));
    return {};
  }

  const Settings& settings_;
  const uint32_t vocab_size_;
  PlacementReport& report_;
  std::vector<std::unique_ptr<PlacementArm>> arms_;
  Instant begin_;
};

Status write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) return make_error(ErrorCode::invalid_argument, "bench.output: cannot write " + path);
  return {};
}

}  // namespace

Result<int> run_bench_placement(Settings& settings) {
  TANDEM_ASSIGN(const std::vector<ArmSpec> specs, parse_arms(settings.bench.arms));
  for (const ArmSpec& spec : specs) {
    if (!spec.binary.empty() && !file_exists(spec.binary))
      return make_error(ErrorCode::not_found, "bench.arms: there is no " + spec.binary);
  }
  if (settings.up.ffn == 0)
    return make_error(ErrorCode::invalid_argument,
                      "up.ffn: 0; colocated has one placement: there is nothing to compare");
  TANDEM_ASSIGN(const ModelConfig config, read_model_config(settings.model));
  PlacementReport report;
  report.profile = load_profile(settings.bench.profile, settings.bench.scale);
  TANDEM_TRY(check_context(report.profile, config.max_position_embeddings));
  report.model = settings.model;
  report.shape = fmt::format("{}A{}F", settings.up.attention, settings.up.ffn);
  report.transport = settings.up.transport;
  report.command_line = own_command_line();
  report.started = utc_now();
  report.seed = static_cast<uint64_t>(settings.bench.seed);
  report.requests =
      settings.bench.requests == 0 ? 2 * int64_t{report.profile.concurrency} : settings.bench.requests;
  report.build = build_info();
  report.host = read_host_facts();
  report.load_begin = read_load();

  AccuracyTask task{settings.eval.data, settings.eval.limit, kAccuracyConcurrency, kAccuracyTokens};
  if (task.data.empty()) task.data = settings.model + "/heldout.jsonl";
  const bool has_data = file_exists(task.data) && file_exists(settings.model + "/tokenizer.json");
  if (!settings.eval.data.empty() && !has_data)
    return make_error(ErrorCode::not_found,
                      "eval.data: there is no " + task.data + ", or no tokenizer.json beside the model");
  if (has_data) {
    report.accuracy_data =
        task.data + (task.limit > 0 ? fmt::format(", the first {} questions", task.limit) : "");
  } else {
    report.no_accuracy = "the folder has no heldout.jsonl and tokenizer.json, and --data names no file";
  }

  TANDEM_ASSIGN(const Settings base,
                load_settings(settings, report.profile, config.max_position_embeddings, has_data));
  const Instant begin = now();
  Bench bench(settings, config.vocab_size, report);
  TANDEM_TRY(bench.start(specs, base));
  TANDEM_TRY(bench.run());
  if (has_data) TANDEM_TRY(bench.accuracy(task));
  bench.finish();
  report.seconds = seconds_since(begin);
  report.load_end = read_load();

  const std::string prefix = settings.bench.output;
  const std::string chart = std::filesystem::path(prefix + ".svg").filename().string();
  TANDEM_TRY(write_file(prefix + ".md", report.markdown(chart)));
  TANDEM_TRY(write_file(prefix + ".json", report.json() + "\n"));
  TANDEM_TRY(write_file(prefix + ".svg", placement_chart(report)));
  std::fprintf(stderr, "wrote %s.md, %s.json, %s.svg\n", prefix.c_str(), prefix.c_str(), prefix.c_str());
  std::fputs((settings.json ? report.json() + "\n" : report.markdown(chart)).c_str(), stdout);
  return report.failed_requests() == 0 ? kExitSuccess : kExitFailure;
}

}  // namespace tandem
