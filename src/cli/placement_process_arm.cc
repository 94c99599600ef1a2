// The arm of another binary: its `generate --json` and `eval gsm8k --json` are what every build has.
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/child_process.h"
#include "cli/deployment.h"
#include "cli/placement_arm.h"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

// Of one run of a load, loading included: a run that takes longer is better cut with --scale.
constexpr auto kRunLimit = std::chrono::hours(2);

// Removed when it goes.
class PromptFile {
 public:
  static Result<PromptFile> write(std::span<const GenerationRequest> requests) {
    PromptFile file;
    file.path_ = (std::filesystem::temp_directory_path() / "tandem-prompts-XXXXXX").string();
    const int fd = ::mkstemp(file.path_.data());
    if (fd < 0) return make_error(ErrorCode::unavailable, "cannot make a file for prompts: " + file.path_);
    ::close(fd);
    std::ofstream out(file.path_);
    for (const GenerationRequest& request : requests)
      out << Json{{"prompt_ids", request.prompt}}.dump() << '\n';
    out.close();
    if (!out) return make_error(ErrorCode::unavailable, "cannot write " + file.path_);
    return file;
  }
  PromptFile(PromptFile&& other) noexcept { path_.swap(other.path_); }
  PromptFile& operator=(PromptFile&&) = delete;
  ~PromptFile() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  PromptFile() = default;
  std::string path_;
};

class ProcessArm final : public PlacementArm {
 public:
  ProcessArm(const Settings& settings, std::string binary, uint32_t concurrency)
      : settings_(settings), binary_(std::move(binary)), concurrency_(concurrency) {}

  Result<ArmRun> run(std::span<const GenerationRequest> requests) override {
    TANDEM_ASSIGN(const PromptFile prompts, PromptFile::write(requests));
    std::vector<std::string> arguments = flags("generate");
    arguments.push_back("--prompts-file=" + prompts.path());
    arguments.push_back("--max-tokens=" + std::to_string(requests.front().sampling.max_tokens));
    arguments.emplace_back("--ignore-eos");
    TANDEM_ASSIGN(const Json document, document_of(arguments));
    try {
      std::vector<AnswerTimes> times;
      for (const Json& answer : document.at("answers")) {
        times.push_back({answer.at("first_token_seconds").get<double>(), answer.at("seconds").get<double>(),
                         answer.at("prompt_tokens").get<uint64_t>(), answer.at("tokens").size(),
                         answer.at("finish_reason") == "error"});
      }
      ArmRun run;
      run.measure = measure_run(times, document.at("seconds").get<double>());
      ranks_.clear();
      for (const Json& rank : document.at("ranks")) {
        TANDEM_ASSIGN(const RankFacts facts, parse_rank_json(rank.dump()));
        ranks_.push_back(facts);
      }
      if (document.contains("counters")) {
        for (const Json& rank : document.at("counters")) {
          TANDEM_ASSIGN(const RankCounters counters, parse_counters(rank.dump()));
          run.ranks.push_back(counters);
        }
      } else {
        for (const RankFacts& facts : ranks_)
          run.ranks.push_back({facts.role, facts.rank, "this binary counts nothing", 0, 0, 0, 0});
      }
      return run;
    } catch (const nlohmann::json::exception& error) {
      return make_error(ErrorCode::data_loss, binary_name() + " generate --json: " + error.what());
    }
  }

  Result<ArmAccuracy> accuracy(const AccuracyTask& task) override {
    std::vector<std::string> arguments = flags("eval");
    arguments.insert(arguments.begin() + 1, "gsm8k");
    arguments.push_back("--data=" + task.data);
    arguments.push_back("--limit=" + std::to_string(task.limit));
    arguments.push_back("--concurrency=" + std::to_string(task.concurrency));
    arguments.push_back("--max-tokens=" + std::to_string(task.max_tokens));
    TANDEM_ASSIGN(const Json document, document_of(arguments));
    try {
      return ArmAccuracy{document.at("questions").get<uint64_t>(), document.at("correct").get<uint64_t>(),
                         document.at("failed_requests").get<uint64_t>()};
    } catch (const nlohmann::json::exception& error) {
      return make_error(ErrorCode::data_loss, binary_name() + " eval gsm8k --json: " + error.what());
    }
  }

  std::vector<RankFacts> ranks() const override { return ranks_; }

  std::string command() const override {
    std::string text = binary_name();
    for (const std::string& flag : flags("generate")) text += " " + flag;
    return text + " --prompts-file=... --ignore-eos";
  }

 private:
  std::string binary_name() const { return binary_.empty() ? "tandem" : binary_; }

  std::vector<std::string> flags(const std::string& command) const {
    std::vector<std::string> arguments = {command};
    Settings settings = settings_;
    // What bounds the requests in flight of `generate`; `eval` has a bound of its own.
    if (command == "generate") settings.serving.max_queue = concurrency_;
    for (std::string& flag : changed_flags(settings)) arguments.push_back(std::move(flag));
    // `generate` and `eval` are colocated unless told otherwise, so a default is said, too.
    if (settings_.up.ffn == UpSettings().ffn)
      arguments.push_back("--ffn=" + std::to_string(settings_.up.ffn));
    arguments.emplace_back("--json");
    return arguments;
  }

  // The one line that the command prints. It may have failed requests (status 1): they are counted, not an
  // error of the measurement.
  Result<Json> document_of(const std::vector<std::string>& arguments) const {
    TANDEM_ASSIGN(ChildProcess child,
                  binary_.empty() ? ChildProcess::start(arguments) : ChildProcess::start(arguments, binary_));
    auto line = child.read_line(kRunLimit);
    if (!line)
      return make_error(line.error().code, binary_name() + " " + arguments.front() + ": " +
                                               line.error().message + "; its own message stands above");
    Json document = Json::parse(*line, nullptr, false);
    if (!document.is_object())
      return make_error(ErrorCode::data_loss, binary_name() + " " + arguments.front() + " --json said '" +
                                                  line->substr(0, 80) + "'");
    return document;
  }

  Settings settings_;
  std::string binary_;
  uint32_t concurrency_;
  std::vector<RankFacts> ranks_;
};

}  // namespace

std::unique_ptr<PlacementArm> make_process_arm(const Settings& settings, const std::string& binary,
                                               uint32_t concurrency) {
  return std::make_unique<ProcessArm>(settings, binary, concurrency);
}

}  // namespace tandem
