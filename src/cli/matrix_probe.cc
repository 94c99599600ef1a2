#include "cli/matrix_probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/file.h"
#include "cli/deployment.h"
#include "cli/gsm8k.h"
#include "cli/model_folder.h"
#include "cli/probe_prompts.h"
#include "cli/text_model.h"

namespace tandem {
namespace {

constexpr uint64_t kSeed = 20240531;  // any fixed number: every run has the same prompts
// One row, odd numbers of rows, both sides of a wire tile (64), and more than one prefill step of the
// command's default (96 rows).
constexpr uint32_t kLengths[] = {1, 3, 17, 31, 33, 64, 65, 100};
constexpr uint32_t kTokens = 6;  // answers long enough to decode in full batches; a cell stays short
constexpr size_t kQuestions = 4;

Status add_questions(const Settings& settings, std::vector<GenerationRequest>& requests) {
  const std::string file = settings.model + "/heldout.jsonl";
  if (!file_exists(file) || !file_exists(settings.model + "/tokenizer.json")) return {};
  TANDEM_ASSIGN(const std::vector<Gsm8kProblem> problems, load_gsm8k(file));
  TANDEM_ASSIGN(const TextModel text, TextModel::load(settings.model));
  for (size_t i = 0; i < std::min(kQuestions, problems.size()); ++i) {
    GenerationRequest request = requests.front();
    TANDEM_ASSIGN(request.prompt, text.encode_question(problems[i].question));
    requests.push_back(std::move(request));
  }
  return {};
}

std::string failure(std::span<const BatchAnswer> answers) {
  for (size_t i = 0; i < answers.size(); ++i) {
    if (answers[i].finish.reason == FinishReason::error)
      return "prompt " + std::to_string(i) + ": " + answers[i].finish.error.message;
  }
  return {};
}

// Refused by name, as the validator would: the combination needs something that this model has not.
bool is_refusal(const Error& error) {
  return error.code == ErrorCode::unsupported || error.code == ErrorCode::invalid_argument;
}

}  // namespace

std::string first_difference(std::span<const BatchAnswer> expected, std::span<const BatchAnswer> got) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const BatchAnswer& want = expected[i];
    const BatchAnswer& have = got[i];
    const std::string prompt = fmt::format("prompt {} ({} tokens)", i, want.finish.prompt_tokens);
    const size_t positions = std::min(want.events.size(), have.events.size());
    for (size_t at = 0; at < positions; ++at) {
      const std::string place = fmt::format("{}, position {}: ", prompt, at);
      if (want.events[at].token != have.events[at].token)
        return fmt::format("{}token {} where colocated has {}", place, have.events[at].token,
                           want.events[at].token);
      if (want.events[at].logprob != have.events[at].logprob)
        return fmt::format("{}log probability {:.9g} of token {} where colocated has {:.9g}", place,
                           have.events[at].logprob, have.events[at].token, want.events[at].logprob);
    }
    if (want.events.size() != have.events.size())
      return fmt::format("{}: {} tokens where colocated has {}", prompt, have.events.size(),
                         want.events.size());
    if (want.finish.logits_hash != have.finish.logits_hash)
      return fmt::format(
          "{}: logits hash {:016x} where colocated has {:016x}, with equal tokens and "
          "probabilities",
          prompt, have.finish.logits_hash, want.finish.logits_hash);
  }
  return {};
}

Result<MatrixProbe> MatrixProbe::create(const Settings& settings) {
  MatrixProbe probe;
  TANDEM_ASSIGN(const ModelConfig config, read_model_config(settings.model));
  std::vector<uint32_t> lengths(std::begin(kLengths), std::end(kLengths));
  const auto context = static_cast<uint32_t>(settings.serving.max_context_tokens);
  std::erase_if(lengths, [&](uint32_t length) { return length + kTokens > context; });
  probe.requests_ = random_requests(kSeed, lengths, config.vocab_size, kTokens);
  if (probe.requests_.empty())
    return make_error(ErrorCode::invalid_argument, fmt::format("serving.max_context_tokens: {} is too short "
                                                               "for a prompt and {} tokens",
                                                               context, kTokens));
  TANDEM_TRY(add_questions(settings, probe.requests_));
  std::erase_if(probe.requests_,
                [&](const GenerationRequest& request) { return request.prompt.size() + kTokens > context; });
  for (GenerationRequest& request : probe.requests_) {
    request.hash_logits = true;
    request.sampling.top_logprobs = 0;  // the chosen token's: where a difference begins
  }
  Settings colocated = settings;
  colocated.up.ffn = 0;
  TANDEM_ASSIGN(const std::unique_ptr<Deployment> deployment, Deployment::start(colocated));
  probe.expected_ =
      generate_batch(deployment->engine(), probe.requests_, static_cast<uint32_t>(probe.requests_.size()));
  const auto alone = generate_batch(deployment->engine(), probe.requests_, 1);
  for (const std::vector<BatchAnswer>* answers : {&std::as_const(probe.expected_), &alone}) {
    if (const std::string error = failure(*answers); !error.empty())
      return make_error(ErrorCode::internal, "the colocated run failed: " + error);
  }
  if (const std::string difference = first_difference(probe.expected_, alone); !difference.empty())
    return make_error(ErrorCode::internal, "colocated, one by one differs from batched: " + difference);
  return probe;
}

std::string MatrixProbe::logits_hash() const {
  return fmt::format("{:016x}", combined_hash(expected_));
}

CellResult MatrixProbe::run(const Settings& settings) const {
  const Instant start = now();
  const auto result = [&](CellState state, std::string detail) {
    return CellResult{state, std::move(detail), seconds_since(start)};
  };
  const auto deployment = Deployment::start(settings);
  if (!deployment) {
    const Error& error = deployment.error();
    return result(is_refusal(error) ? CellState::refused : CellState::failed, error.message);
  }
  for (const bool batched : {true, false}) {
    const uint32_t concurrency = batched ? static_cast<uint32_t>(requests_.size()) : 1;
    const auto answers = generate_batch((*deployment)->engine(), requests_, concurrency);
    const std::string how = batched ? "batched, " : "one by one, ";
    if (const std::string error = failure(answers); !error.empty())
      return result(CellState::failed, how + error);
    if (const std::string difference = first_difference(expected_, answers); !difference.empty())
      return result(CellState::different, how + difference);
  }
  return result(CellState::equal, {});
}

}  // namespace tandem
