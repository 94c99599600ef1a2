#include "cli/placement_arm.h"

#include <algorithm>

#include "cli/deployment.h"
#include "cli/gsm8k_run.h"

namespace tandem {
namespace {

class EngineArm final : public PlacementArm {
 public:
  EngineArm(const Settings& settings, uint32_t concurrency, std::unique_ptr<Deployment> deployment)
      : settings_(settings), concurrency_(concurrency), deployment_(std::move(deployment)) {}

  Result<ArmRun> run(std::span<const GenerationRequest> requests) override {
    ArmRun run;
    const std::vector<RankCounters> before = deployment_->counters();
    const Instant start = now();
    const std::vector<BatchAnswer> answers = generate_batch(deployment_->engine(), requests, concurrency_);
    const double seconds = seconds_since(start);
    run.ranks = deployment_->counters();
    for (size_t i = 0; i < std::min(before.size(), run.ranks.size()); ++i)
      run.ranks[i] = run.ranks[i] - before[i];
    std::vector<AnswerTimes> times;
    times.reserve(answers.size());
    for (const BatchAnswer& answer : answers) times.push_back(times_of(answer));
    run.measure = measure_run(times, seconds);
    return run;
  }

  Result<ArmAccuracy> accuracy(const AccuracyTask& task) override {
    Gsm8kTask questions;
    TANDEM_ASSIGN(questions.problems, load_gsm8k(task.data, task.limit));
    questions.concurrency = task.concurrency;
    questions.max_tokens = task.max_tokens;
    TANDEM_ASSIGN(const TextModel text, TextModel::load(settings_.model));
    TANDEM_ASSIGN(const Gsm8kRun run, run_gsm8k(deployment_->engine(), text, questions));
    return ArmAccuracy{run.score.total, run.score.strict, run.score.failed};
  }

  std::vector<RankFacts> ranks() const override { return deployment_->ranks(); }

  std::string command() const override {
    std::string text = "tandem up";
    for (const std::string& flag : changed_flags(settings_)) text += " " + flag;
    return text;
  }

 private:
  Settings settings_;
  uint32_t concurrency_;
  std::unique_ptr<Deployment> deployment_;
};

}  // namespace

Result<std::vector<ArmSpec>> parse_arms(std::span<const std::string> arms) {
  const auto refuse = [](const std::string& what) {
    return make_error(ErrorCode::invalid_argument, "bench.arms: " + what);
  };
  constexpr std::string_view kBase = "base=";
  std::vector<ArmSpec> specs;
  for (const std::string& arm : arms) {
    ArmSpec spec;
    spec.name = arm.substr(0, arm.find('='));
    if (arm == "attention") {
      spec.gate_on_attention = true;
    } else if (arm.starts_with(kBase) && arm.size() > kBase.size()) {
      if (specs.empty()) return refuse("base cannot be the first arm: it takes the first one's placement");
      spec.gate_on_attention = specs.front().gate_on_attention;
      spec.binary = arm.substr(kBase.size());
    } else if (arm != "ffn") {
      return refuse("'" + arm + "' is not one of ffn, attention, base=BINARY");
    }
    if (std::ranges::find(specs, spec.name, &ArmSpec::name) != specs.end())
      return refuse(spec.name + " stands there twice");
    specs.push_back(std::move(spec));
  }
  if (specs.size() < 2) return refuse("there must be two or more, as in ffn,attention");
  return specs;
}

std::vector<std::string> changed_flags(const Settings& settings) {
  Settings copy = settings;
  const OptionSet options = copy.declare();
  Settings plain;
  const OptionSet defaults = plain.declare();
  std::vector<std::string> flags;
  for (const Option& option : options.options()) {
    const bool of_ranks = option.key == "model" || option.key.starts_with("engine.") ||
                          option.key.starts_with("afd.") || option.key.starts_with("serving.") ||
                          option.key.starts_with("up.");
    const std::string value = option.get();
    if (of_ranks && value != defaults.find(option.key)->get()) flags.push_back(option.flag() + "=" + value);
  }
  return flags;
}

Result<std::unique_ptr<PlacementArm>> make_engine_arm(const Settings& settings, uint32_t concurrency) {
  TANDEM_ASSIGN(std::unique_ptr<Deployment> deployment, Deployment::start(settings));
  return std::make_unique<EngineArm>(settings, concurrency, std::move(deployment));
}

}  // namespace tandem
