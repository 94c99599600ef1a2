#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "model/parity.h"

namespace tandem {

double ParityReport::max_logit_difference() const {
  double worst = 0;
  for (const ParityPrompt& prompt : prompts) {
    worst = std::max({worst, prompt.prefill_difference, prompt.greedy_difference});
  }
  return worst;
}

double ParityReport::max_same_routing_difference() const {
  double worst = 0;
  for (const ParityPrompt& prompt : prompts) worst = std::max(worst, prompt.same_routing_difference);
  return worst;
}

double ParityReport::equal_token_share() const {
  uint32_t equal = 0, steps = 0;
  for (const ParityPrompt& prompt : prompts) {
    equal += prompt.equal_tokens;
    steps += prompt.greedy_steps;
  }
  return steps == 0 ? 0.0 : static_cast<double>(equal) / steps;
}

uint64_t ParityReport::differing_router_rows() const {
  uint64_t rows = 0;
  for (const ParityLayer& layer : layers) rows += layer.differing_rows;
  return rows;
}

uint32_t ParityReport::wrong_tokens() const {
  uint32_t wrong = 0;
  for (const ParityPrompt& prompt : prompts) wrong += prompt.wrong_tokens;
  return wrong;
}

uint32_t ParityReport::prompts_within_bound() const {
  const auto within = [&](const ParityPrompt& prompt) {
    return std::max(prompt.prefill_difference, prompt.greedy_difference) <= options.max_logit_difference;
  };
  return static_cast<uint32_t>(std::ranges::count_if(prompts, within));
}

bool ParityReport::passed() const {
  if (prompts.empty()) return false;
  if (options.rounds_to_codes()) return 2 * prompts_within_bound() >= prompts.size();
  if (!options.require_equal_routing) return max_same_routing_difference() <= options.max_logit_difference;
  return max_logit_difference() <= options.max_logit_difference && wrong_tokens() == 0 &&
         differing_router_rows() == 0;
}

std::string ParityReport::text() const {
  std::string out = fmt::format("{} ({}), computed in {}, kernels {}\n", folder, model_type,
                                dtype_name(options.compute_dtype), kernel_table);
  for (const ParityPrompt& prompt : prompts) {
    out += fmt::format(
        "  prompt of {:4} tokens: max |dlogit| prefill {:.2e} ({:.2e} in the {} rows before a router "
        "differs)",
        prompt.length, prompt.prefill_difference, prompt.same_routing_difference, prompt.same_routing_rows);
    out += fmt::format(", greedy {:.2e}; equal tokens {}/{}, wrong where decided {}/{}\n",
                       prompt.greedy_difference, prompt.equal_tokens, prompt.greedy_steps,
                       prompt.wrong_tokens, prompt.decided_steps);
  }
  for (const ParityLayer& layer : layers) {
    out +=
        fmt::format("  layer {:3} router: {}/{} rows with the same experts, max |dweight| {:.2e}\n",
                    layer.layer, layer.rows - layer.differing_rows, layer.rows, layer.max_weight_difference);
  }
  if (options.rounds_to_codes()) {
    out += fmt::format("  {}: {}/{} prompts within {:.2g}, of values that are rounded to codes\n",
                       passed() ? "passed" : "FAILED", prompts_within_bound(), prompts.size(),
                       options.max_logit_difference);
    return out;
  }
  const double held = options.require_equal_routing ? max_logit_difference() : max_same_routing_difference();
  out += fmt::format("  {}: max |dlogit| {:.2e}{}, bound {:.2g}; equal tokens {:.1f} %\n",
                     passed() ? "passed" : "FAILED", held,
                     options.require_equal_routing ? "" : " where routers agree",
                     options.max_logit_difference, 100 * equal_token_share());
  return out;
}

std::string ParityReport::json() const {
  nlohmann::ordered_json out;
  out["folder"] = folder;
  out["model_type"] = model_type;
  out["compute_dtype"] = dtype_name(options.compute_dtype);
  out["kernels"] = kernel_table;
  out["passed"] = passed();
  // JSON knows no infinity: a NaN among the logits is null here.
  out["max_logit_difference"] = max_logit_difference();
  out["max_same_routing_difference"] = max_same_routing_difference();
  out["requires_equal_routing"] = options.require_equal_routing;
  out["max_logit_difference_allowed"] = options.max_logit_difference;
  out["differing_router_rows"] = differing_router_rows();
  out["wrong_tokens"] = wrong_tokens();
  out["prompts_within_bound"] = prompts_within_bound();
  out["equal_token_share"] = equal_token_share();
  out["prompts"] = nlohmann::ordered_json::array();
  for (const ParityPrompt& prompt : prompts) {
    out["prompts"].push_back({{"length", prompt.length},
                              {"prefill_difference", prompt.prefill_difference},
                              {"same_routing_rows", prompt.same_routing_rows},
                              {"same_routing_difference", prompt.same_routing_difference},
                              {"greedy_difference", prompt.greedy_difference},
                              {"greedy_steps", prompt.greedy_steps},
                              {"equal_tokens", prompt.equal_tokens},
                              {"decided_steps", prompt.decided_steps},
                              {"wrong_tokens", prompt.wrong_tokens}});
  }
  out["layers"] = nlohmann::ordered_json::array();
  for (const ParityLayer& layer : layers) {
    out["layers"].push_back({{"layer", layer.layer},
                             {"rows", layer.rows},
                             {"differing_rows", layer.differing_rows},
                             {"max_weight_difference", layer.max_weight_difference}});
  }
  return out.dump();
}

}  // namespace tandem
