// tandem eval perplexity: how well a model predicts a text, by the engine's own logits in any placement.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/deployment.h"
#include "cli/perplexity.h"
#include "cli/progress.h"
#include "cli/text_model.h"

namespace tandem {
namespace {

// Longer windows say little more about a text and take longer to compute; what most published figures use.
constexpr uint64_t kDefaultWindow = 2048;

Result<std::string> read_text(const std::string& path) {
  if (path.empty())
    return make_error(ErrorCode::invalid_argument, "eval.text: no file; name one with --text");
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty())
    return make_error(ErrorCode::not_found, "eval.text: " + path + " cannot be read, or is empty");
  return text.str();
}

}  // namespace

Result<int> run_eval_perplexity(Settings& settings) {
  const EvalSettings& eval = settings.eval;
  TANDEM_ASSIGN(const std::string text, read_text(eval.text));
  TANDEM_ASSIGN(const TextModel model, TextModel::load(settings.model));
  TANDEM_ASSIGN(const std::vector<int32_t> tokens, model.encode_text(text));
  if (tokens.size() < 2)
    return make_error(ErrorCode::invalid_argument,
                      "eval.text: " + eval.text + " is one token; there must be two");
  TANDEM_ASSIGN(const std::unique_ptr<Deployment> deployment, Deployment::start(settings));

  // The engine keeps a place for an answer.
  const uint64_t most = deployment->engine().limits().max_context_tokens - 1;
  const uint64_t window =
      eval.window == 0 ? std::min(kDefaultWindow, most) : static_cast<uint64_t>(eval.window);
  if (window > most)
    return make_error(
        ErrorCode::invalid_argument,
        fmt::format("eval.window: {} tokens; this model and its settings allow {}", window, most));
  const uint64_t stride =
      eval.stride == 0 ? std::max<uint64_t>(1, window / 2) : static_cast<uint64_t>(eval.stride);
  if (stride > window)
    return make_error(
        ErrorCode::invalid_argument,
        fmt::format("eval.stride: {} is longer than the window of {}; tokens between windows would not be "
                    "scored",
                    stride, window));
  PerplexityScore score;
  {
    Progress progress("windows", score_windows(tokens.size(), window, stride).size());
    TANDEM_ASSIGN(score, score_text(deployment->engine(), tokens, window, stride,
                                    static_cast<uint32_t>(eval.concurrency),
                                    [&](size_t done) { progress.show(done); }));
  }
  score.bytes = text.size();
  if (settings.json) {
    std::printf(
        "%s\n",
        nlohmann::ordered_json{{"text", eval.text},
                               {"bytes", score.bytes},
                               {"tokens", score.tokens},
                               {"scored_tokens", score.scored},
                               {"window", window},
                               {"stride", stride},
                               {"windows", score.windows},
                               {"nats_per_token", score.nats_per_token()},
                               {"bits_per_token", score.bits_per_token()},
                               {"bits_per_byte", score.bits_per_byte()},
                               {"perplexity", score.perplexity()},
                               {"seconds", score.seconds},
                               {"ranks", nlohmann::ordered_json::parse(rank_json(deployment->ranks()))}}
            .dump()
            .c_str());
  } else {
    std::printf("perplexity %.4f: %.5f nats a token, %.5f bits a token, %.5f bits a byte\n",
                score.perplexity(), score.nats_per_token(), score.bits_per_token(), score.bits_per_byte());
    std::printf("%llu of %llu tokens of %llu bytes scored in %llu windows of %llu, stride %llu, in %.1f s\n",
                static_cast<unsigned long long>(score.scored), static_cast<unsigned long long>(score.tokens),
                static_cast<unsigned long long>(score.bytes), static_cast<unsigned long long>(score.windows),
                static_cast<unsigned long long>(window), static_cast<unsigned long long>(stride),
                score.seconds);
  }
  return kExitSuccess;
}

}  // namespace tandem
