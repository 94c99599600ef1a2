// tandem bench decode --model: decode steps of a model folder through the whole engine, in any placement.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>

#include "cli/batch_generation.h"
#include "cli/bench_engine.h"
#include "cli/command.h"
#include "cli/deployment.h"
#include "cli/load/metrics.h"
#include "cli/model_folder.h"
#include "program/state_group.h"

namespace tandem {
namespace {

// Tokens that each sequence decodes in a run: enough for a median of its gaps.
constexpr uint32_t kStepsOfARun = 8;
// All sequences must decode together for a while. Prompts that were computed once come from the prefix cache
// the next time, and whom a busy machine kept from handing in a request gets another chance.
constexpr int kAttempts = 5;

struct EngineCase {
  uint32_t batch = 0, context = 0;
  double start_seconds = 0;  // until every sequence has its first token
  Distribution gap;          // ms between two tokens of a sequence, while all of them decode
  double tokens_per_second = 0;
};

// What lies between the last first token and the first end. False: less than half of the tokens do.
bool take_times(const std::vector<BatchAnswer>& answers, uint32_t steps, EngineCase& out) {
  // Sequences are handed in one after the other, in far less than a step takes: their clocks count as one.
  double last_start = 0, first_end = 1e300;
  for (const BatchAnswer& answer : answers) {
    last_start = std::max(last_start, answer.first_token_seconds);
    first_end = std::min(first_end, answer.token_seconds.back());
  }
  if (out.start_seconds == 0) out.start_seconds = last_start;
  std::vector<double> gaps;
  size_t tokens = 0;
  for (const BatchAnswer& answer : answers) {
    for (size_t i = 1; i < answer.token_seconds.size(); ++i) {
      if (answer.token_seconds[i] > first_end) break;
      if (answer.token_seconds[i] > last_start) ++tokens;
      if (answer.token_seconds[i - 1] >= last_start)
        gaps.push_back(1000 * (answer.token_seconds[i] - answer.token_seconds[i - 1]));
    }
  }
  if (2 * gaps.size() < answers.size() * steps) return false;
  const double percentiles[] = {50, 99};
  out.gap = distribution_of(gaps, percentiles);
  out.tokens_per_second = static_cast<double>(tokens) / (first_end - last_start);
  return true;
}

Result<EngineCase> measure(Engine& engine, uint32_t batch, uint32_t context, uint32_t steps,
                           uint32_t vocab_size) {
  std::mt19937_64 random(batch + (uint64_t{context} << 20));
  std::vector<GenerationRequest> requests(batch);
  for (GenerationRequest& request : requests) {
    for (uint32_t i = 1; i < context; ++i)
      request.prompt.push_back(static_cast<int32_t>(random() % vocab_size));
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = steps + 1;
  }
  EngineCase out{batch, context, 0, {}, 0};
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const std::vector<BatchAnswer> answers = generate_batch(engine, requests, batch);
    for (const BatchAnswer& answer : answers) {
      if (answer.finish.reason == FinishReason::error) return std::unexpected(answer.finish.error);
    }
    if (take_times(answers, steps, out)) return out;
  }
  return make_error(
      ErrorCode::unavailable,
      fmt::format("measure.runs: {} sequences of {} tokens did not decode together for half of {} tokens; "
                  "more --runs, a smaller --batch or --synthetic-kv would do",
                  batch, context, steps));
}

// The flag is that of the benchmarks of shapes, which know more formats.
Status set_weights(Settings& settings) {
  const std::string& wanted = settings.measure.weights;
  if (wanted == "released") return {};
  OptionSet options = settings.declare();
  return options.set("engine.weights", wanted, "measure.weights with a model folder");
}

}  // namespace

Result<int> run_engine_decode(Settings settings, const std::vector<uint32_t>& batches,
                              const std::vector<uint32_t>& contexts) {
  const MeasureSettings& measured = settings.measure;
  const uint32_t steps = kStepsOfARun * static_cast<uint32_t>(measured.runs);
  const uint32_t most_batch = *std::ranges::max_element(batches);
  const uint32_t most_context = *std::ranges::max_element(contexts);
  TANDEM_TRY(set_weights(settings));
  TANDEM_ASSIGN(const ModelConfig config, read_model_config(settings.model));
  const uint64_t room = uint64_t{most_context} + steps;
  if (room > config.max_position_embeddings) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("measure.context: {} and {} decoded tokens; the model has {} positions",
                                  most_context, steps, config.max_position_embeddings));
  }
  ServingSettings& serving = settings.serving;
  serving.max_num_seqs = most_batch;
  serving.max_queue = std::max<int64_t>(serving.max_queue, most_batch);
  serving.max_context_tokens = static_cast<int64_t>(room);
  // Blocks of every group begin at multiples of kStateAlignment.
  serving.kv_cache_tokens =
      static_cast<int64_t>(most_batch * ((room + kStateAlignment) / kStateAlignment * kStateAlignment));
  TANDEM_ASSIGN(const std::unique_ptr<Deployment> deployment, Deployment::start(settings));

  nlohmann::ordered_json cases = nlohmann::ordered_json::array();
  if (!settings.json) {
    std::fputs(rank_table(deployment->ranks()).c_str(), stdout);
    std::printf("%s: %s; %u decoded tokens a sequence\n\n%8s %9s %10s %12s %12s %12s\n",
                settings.model.c_str(),
                settings.engine.synthetic_kv ? "synthetic keys and values" : "computed prompts", steps,
                "batch", "context", "start s", "ms a token", "p99 ms", "tokens/s");
  }
  for (const uint32_t context : contexts) {
    for (const uint32_t batch : batches) {
      TANDEM_ASSIGN(const EngineCase one,
                    measure(deployment->engine(), batch, context, steps, config.vocab_size));
      if (!settings.json) {
        std::printf("%8u %9u %10.3f %12.3f %12.3f %12.1f\n", batch, context, one.start_seconds, one.gap.at[0],
                    one.gap.at[1], one.tokens_per_second);
        std::fflush(stdout);
      }
      cases.push_back({{"batch", batch},
                       {"context", context},
                       {"start_seconds", one.start_seconds},
                       {"milliseconds", one.gap.at[0]},
                       {"milliseconds_p99", one.gap.at[1]},
                       {"tokens_per_second", one.tokens_per_second}});
    }
  }
  if (settings.json) {
    std::printf(
        "%s\n",
        nlohmann::ordered_json{{"command", "bench decode"},
                               {"model", settings.model},
                               {"synthetic_kv", settings.engine.synthetic_kv},
                               {"decoded_tokens", steps},
                               {"ranks", nlohmann::ordered_json::parse(rank_json(deployment->ranks()))},
                               {"cases", cases}}
            .dump()
            .c_str());
  }
  return kExitSuccess;
}

}  // namespace tandem
