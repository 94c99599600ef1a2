#include "model/parity.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "model/model.h"
#include "model/offline_runner.h"
#include "model/parity_fixture.h"
#include "model/routing_recorder.h"

namespace tandem {
namespace {

double max_difference(std::span<const float> ours, std::span<const float> reference) {
  double worst = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    const double difference = std::fabs(double{ours[i]} - double{reference[i]});
    // A NaN compares false with everything and would pass unseen.
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, difference);
  }
  return worst;
}

int32_t best_token(std::span<const float> logits) {
  return static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
}

double lead(std::span<const float> logits) {
  float best = -INFINITY, second = -INFINITY;
  for (const float value : logits) {
    if (value > best) {
      second = best;
      best = value;
    } else if (value > second) {
      second = value;
    }
  }
  return double{best} - double{second};
}

// Returns the first row whose experts differ; the number of rows when none does.
size_t compare_routing(const FixtureRouting& reference, const RecordedRouting& recorded, uint32_t top_k,
                       ParityLayer& layer) {
  const size_t rows = reference.ids.size() / top_k;
  layer.rows += rows;
  if (recorded.ids.size() != reference.ids.size()) {
    layer.differing_rows += rows;
    return 0;
  }
  size_t first_differing = rows;
  std::vector<std::pair<int32_t, float>> ours(top_k);
  for (size_t row = 0; row < rows; ++row) {
    const size_t first = row * top_k;
    for (size_t k = 0; k < top_k; ++k) ours[k] = {recorded.ids[first + k], recorded.weights[first + k]};
    std::ranges::sort(ours);
    bool equal = true;
    double difference = 0;
    for (size_t k = 0; k < top_k; ++k) {
      equal = equal && ours[k].first == reference.ids[first + k];
      difference =
          std::max(difference, max_difference({&ours[k].second, 1}, {&reference.weights[first + k], 1}));
    }
    if (equal) {
      layer.max_weight_difference = std::max(layer.max_weight_difference, difference);
    } else {
      ++layer.differing_rows;
      first_differing = std::min(first_differing, row);
    }
  }
  return first_differing;
}

class ParityRun {
 public:
  ParityRun(const ParityOptions& options, OfflineRunner& runner, RoutingRecorder& recorder, uint32_t top_k)
      : options_(options), runner_(runner), recorder_(recorder), top_k_(top_k) {}

  Result<ParityPrompt> run(uint32_t sequence, const FixturePrompt& prompt,
                           std::map<uint32_t, ParityLayer>& layers) {
    ParityPrompt result;
    result.length = static_cast<uint32_t>(prompt.ids.size());
    result.greedy_steps = static_cast<uint32_t>(prompt.greedy_ids.size());
    recorder_.clear();
    const size_t vocab = runner_.vocab_size();
    std::vector<OfflineRow> rows;
    std::vector<double> differences;  // [length] of each prefill row
    std::span<const float> logits;
    size_t next_block = 0;
    for (uint32_t first = 0; first < result.length; first += static_cast<uint32_t>(rows.size())) {
      rows.clear();
      uint32_t end = std::min(result.length, first + options_.rows_per_step);
      const std::vector<uint32_t>& behind = prompt.blocks.positions;
      const bool drafts = next_block < behind.size() && behind[next_block] < end;
      if (drafts) end = behind[next_block] + 1;
      for (uint32_t position = first; position < end; ++position) {
        rows.push_back({sequence, position, prompt.ids[position]});
      }
      TANDEM_ASSIGN(logits, runner_.run(rows));
      for (size_t row = 0; row < rows.size(); ++row) {
        const std::span<const float> reference(prompt.logits.data() + (first + row) * vocab, vocab);
        differences.push_back(max_difference(logits.subspan(row * vocab, vocab), reference));
      }
      if (!prompt.draft_logits.empty()) TANDEM_TRY(compare_drafts(prompt, rows, differences));
      if (drafts) TANDEM_TRY(compare_block(prompt, sequence, next_block++, differences.back(), result));
    }
    size_t same_routing = differences.size();
    for (const auto& [layer, reference] : prompt.routing) {
      const auto recorded = recorder_.routing().find(static_cast<LayerIndex>(layer));
      ParityLayer& entry = layers[layer];
      entry.layer = layer;
      same_routing = std::min(
          same_routing,
          compare_routing(reference,
                          recorded == recorder_.routing().end() ? RecordedRouting{} : recorded->second,
                          top_k_, entry));
    }
    result.same_routing_rows = static_cast<uint32_t>(same_routing);
    for (size_t row = 0; row < differences.size(); ++row) {
      result.prefill_difference = std::max(result.prefill_difference, differences[row]);
      if (row < same_routing)
        result.same_routing_difference = std::max(result.same_routing_difference, differences[row]);
    }
    for (uint32_t step = 0; step < result.greedy_steps; ++step) {
      if (step > 0) {
        const OfflineRow row{sequence, result.length + step - 1, prompt.greedy_ids[step - 1]};
        TANDEM_ASSIGN(logits, runner_.run({&row, 1}));
      }
      const std::span<const float> ours = logits.last(vocab);
      const std::span<const float> reference(prompt.greedy_logits.data() + step * vocab, vocab);
      result.greedy_difference = std::max(result.greedy_difference, max_difference(ours, reference));
      const bool equal = best_token(ours) == prompt.greedy_ids[step];
      const bool decided = lead(reference) > 2 * options_.max_logit_difference;
      result.equal_tokens += equal ? 1 : 0;
      result.decided_steps += decided ? 1 : 0;
      result.wrong_tokens += decided && !equal ? 1 : 0;
    }
    return result;
  }

 private:
  // The drafter behind a step of the prompt; a row's difference counts for the model's row.
  Status compare_drafts(const FixturePrompt& prompt, std::span<const OfflineRow> rows,
                        std::vector<double>& differences) {
    std::vector<OfflineRow> behind;
    for (const OfflineRow& row : rows) {
      if (row.position + 1 < prompt.ids.size())
        behind.push_back({row.sequence, row.position, prompt.ids[row.position + 1]});
    }
    if (behind.empty()) return {};
    TANDEM_ASSIGN(const std::span<const float> drafted, runner_.run_drafts(behind));
    const size_t vocab = runner_.vocab_size();
    for (size_t row = 0; row < behind.size(); ++row) {
      const uint32_t position = behind[row].position;
      const std::span<const float> reference(prompt.draft_logits.data() + position * vocab, vocab);
      differences[position] =
          std::max(differences[position], max_difference(drafted.subspan(row * vocab, vocab), reference));
    }
    return {};
  }

  // The block behind the row that was computed last, whose difference it counts for. Behind a token that is
  // another the rest of a block is of another text.
  Status compare_block(const FixturePrompt& prompt, uint32_t sequence, size_t number, double& difference,
                       ParityPrompt& result) {
    const FixtureBlocks& blocks = prompt.blocks;
    const uint32_t position = blocks.positions[number];
    TANDEM_ASSIGN(const OfflineBlock ours,
                  runner_.draft_block({sequence, position, prompt.ids[position + 1]}));
    const size_t size = ours.tokens.size(), vocab = runner_.vocab_size();
    for (size_t i = 0; i < size; ++i) {
      const size_t row = number * size + i;
      const std::span<const float> reference(blocks.logits.data() + row * vocab, vocab);
      difference = std::max({difference, max_difference({ours.logits.data() + i * vocab, vocab}, reference),
                             max_difference({&ours.confidences[i], 1}, {&blocks.confidences[row], 1})});
      if (ours.tokens[i] == blocks.ids[row]) continue;
      result.wrong_tokens += lead(reference) > 2 * options_.max_logit_difference ? 1 : 0;
      break;
    }
    return {};
  }

  const ParityOptions& options_;
  OfflineRunner& runner_;
  RoutingRecorder& recorder_;
  uint32_t top_k_;
};

}  // namespace

Result<ParityReport> run_parity(const std::string& folder, const ParityOptions& options,
                                KernelRunner& kernels) {
  if (options.rows_per_step == 0) {
    return make_error(ErrorCode::invalid_argument, "parity: rows_per_step is 0: must be at least 1");
  }
  TANDEM_ASSIGN(const std::string config_text, read_config_json(folder));
  TANDEM_ASSIGN(ModelConfig config, parse_model_config(config_text, folder + "/config.json"));
  TANDEM_ASSIGN(const std::vector<FixturePrompt> prompts, read_parity_fixture(folder, config));
  const bool has_drafts = std::ranges::any_of(prompts, [](const FixturePrompt& prompt) {
    return !prompt.draft_logits.empty() || !prompt.blocks.positions.empty();
  });
  if (has_drafts) config.hold_drafts();
  LoadOptions load;
  load.compute_dtype = options.compute_dtype;
  load.show_progress = false;
  TANDEM_ASSIGN(const ModelWeights weights,
                load_model_weights(folder, config, kernels.table(), kernels.pool(), load));
  TANDEM_ASSIGN(const Model model, Model::create(config, weights, options.model));

  OfflineOptions offline;
  offline.gate_on_attention = true;  // where the port sees the routing
  offline.shared_on_attention = options.shared_on_attention;
  offline.sum_mode = options.sum_mode;
  offline.activation_format = options.activation_format;
  offline.capacity = options.rows_per_step;
  const uint32_t ahead = has_drafts ? config.draft.block_size : 0;
  offline.sequences = static_cast<uint32_t>(prompts.size());
  for (const FixturePrompt& prompt : prompts) {
    offline.tokens_per_sequence =
        std::max(offline.tokens_per_sequence,
                 static_cast<uint32_t>(prompt.ids.size() + prompt.greedy_ids.size()) + ahead);
  }
  RoutingRecorder* recorder = nullptr;
  offline.wrap_port = [&recorder](FfnPort& inner) {
    auto port = std::make_unique<RoutingRecorder>(inner);
    recorder = port.get();
    return port;
  };
  TANDEM_ASSIGN(const std::unique_ptr<OfflineRunner> runner, OfflineRunner::create(model, kernels, offline));

  ParityReport report;
  report.folder = folder;
  report.model_type = config.model_type;
  report.kernel_table = kernels.table().name;
  report.options = options;
  std::map<uint32_t, ParityLayer> layers;
  ParityRun run(options, *runner, *recorder, config.router.top_k);
  for (uint32_t number = 0; number < prompts.size(); ++number) {
    TANDEM_ASSIGN(ParityPrompt result, run.run(number, prompts[number], layers));
    report.prompts.push_back(result);
  }
  for (const auto& [layer, entry] : layers) report.layers.push_back(entry);
  return report;
}

}  // namespace tandem
