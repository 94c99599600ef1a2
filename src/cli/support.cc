#include "cli/support.h"

#include <algorithm>
#include <utility>

#include "afd/connector.h"

namespace tandem {
namespace {

std::string text_of(bool value) {
  return value ? "true" : "false";
}

std::string ranks_class(int64_t ranks) {
  return ranks > 1 ? kSeveral : "1";
}

// An axis whose message and class are the setting's own text.
SupportAxis plain_axis(std::string key, std::string heading, std::vector<std::string> values,
                       std::function<std::string(const Settings&)> value_of) {
  auto phrase = [key, value_of](const Settings& settings) { return key + " " + value_of(settings); };
  auto written = value_of;
  return {std::move(key),      std::move(heading), std::move(values), false,
          std::move(value_of), std::move(written), std::move(phrase)};
}

SupportAxis row_axis(SupportAxis axis) {
  axis.spans_rows = true;
  return axis;
}

SupportAxis count_axis(std::string key, std::string heading, std::function<int64_t(const Settings&)> count,
                       const std::string& noun) {
  SupportAxis axis = plain_axis(std::move(key), std::move(heading), {"1", kSeveral},
                                [count](const Settings& s) { return ranks_class(count(s)); });
  axis.written = [count](const Settings& s) { return std::to_string(count(s)); };
  axis.phrase = [count = std::move(count), noun](const Settings& s) {
    return std::to_string(count(s)) + " " + noun;
  };
  return axis;
}

std::vector<std::string> connector_values() {
  std::vector<std::string> names = {Settings().afd.connector};  // the default first
  for (const std::string& name : connector_names()) {
    if (name != names.front()) names.push_back(name);
  }
  return names;
}

std::vector<SupportAxis> make_axes() {
  std::vector<SupportAxis> axes;
  axes.push_back(row_axis(plain_axis("afd.connector", "connector", connector_values(),
                                     [](const Settings& s) { return s.afd.connector; })));
  axes.push_back(row_axis(count_axis(
      "afd.num_ffn_ranks", "FFN ranks", [](const Settings& s) { return s.ffn_ranks(); }, "FFN ranks")));
  axes.push_back(
      row_axis(plain_axis("afd.compute_gate_on_attention", "gate on attention", {"false", "true"},
                          [](const Settings& s) { return text_of(s.afd.compute_gate_on_attention); })));
  axes.back().phrase = [](const Settings& s) {
    return std::string(s.afd.compute_gate_on_attention ? "the gate on attention" : "the gate on FFN");
  };
  axes.push_back(row_axis(
      plain_axis("afd.compute_shared_experts_on_attention", "shared experts on attention", {"false", "true"},
                 [](const Settings& s) { return text_of(s.shared_experts_on_attention()); })));
  axes.back().written = [](const Settings& s) { return s.afd.compute_shared_experts_on_attention; };

  axes.push_back(plain_axis("afd.exchange", "exchange", {"auto", "allgather", "alltoall"},
                            [](const Settings& s) { return s.afd.exchange; }));
  axes.push_back(plain_axis("afd.placement", "placement", {"expert", "slice", "hybrid"},
                            [](const Settings& s) { return s.afd.placement; }));
  axes.push_back(plain_axis("afd.activation_dtype", "activation dtype",
                            {"auto", "bf16", "f32", "fp8", "mxfp8", "int8"},
                            [](const Settings& s) { return s.afd.activation_dtype; }));
  axes.push_back(plain_axis("engine.compute_dtype", "compute dtype", {"bf16", "float32"},
                            [](const Settings& s) { return s.engine.compute_dtype; }));
  axes.push_back(plain_axis("engine.weights", "weights",
                            {"auto", "dequantized", "int8", "fp8", "mxfp8", "mxfp4"},
                            [](const Settings& s) { return s.engine.weights; }));
  axes.push_back(
      plain_axis("engine.kv_cache_dtype", "KV cache dtype", {"auto", "bf16", "fp8"}, [](const Settings& s) {
        return s.engine.kv_cache_dtype == "fp8_e4m3" ? std::string("fp8") : s.engine.kv_cache_dtype;
      }));
  axes.back().written = [](const Settings& s) { return s.engine.kv_cache_dtype; };
  axes.push_back(plain_axis("afd.execution", "execution", {"eager", "graph"},
                            [](const Settings& s) { return s.afd.execution; }));
  axes.push_back(
      plain_axis("afd.micro_batches", "micro-batches", {"auto", "1", kSeveral}, [](const Settings& s) {
        const std::string& lanes = s.afd.micro_batches;
        return lanes == "auto" || lanes == "1" ? lanes : std::string(kSeveral);
      }));
  axes.back().written = [](const Settings& s) { return s.afd.micro_batches; };
  axes.push_back(plain_axis("afd.send_token_ids", "token ids", {"false", "true"},
                            [](const Settings& s) { return text_of(s.afd.send_token_ids); }));
  return axes;
}

// What is understood and does not work, or does not work together. Lift a refusal here, and nowhere else.
std::vector<SupportRule> make_rules() {
  std::vector<SupportRule> rules;
  for (const ConnectorInfo& connector : connectors()) {
    if (connector.available) continue;
    rules.push_back({{{"afd.connector", {std::string(connector.name)}}},
                     "p2p with one FFN rank, or m2n with the gate on attention",
                     std::string(connector.summary)});
  }
  const std::vector<SupportRule> table = {
      {{{"afd.exchange", {"allgather", "alltoall"}}, {"afd.connector", {"m2n"}}},
       "auto",
       "m2n needs no exchange among FFN ranks"},
      {{{"afd.activation_dtype", {"fp8", "mxfp8", "int8"}}, {"afd.compute_gate_on_attention", {"false"}}},
       "it with afd.compute_gate_on_attention: true, or auto",
       "the router must see the rows before they are rounded"},
      {{{"afd.connector", {"m2n"}}, {"afd.compute_gate_on_attention", {"false"}}},
       "it with afd.compute_gate_on_attention: true",
       "attention must know the experts of a row to send it to them"},
      {{{"afd.connector", {"local"}}, {"afd.num_ffn_ranks", {kSeveral}}},
       "p2p, m2n or auto",
       "local is one process"},
      {{{"afd.send_token_ids", {"true"}}, {"afd.compute_gate_on_attention", {"true"}}},
       "one of the two: a routing replaces token ids",
       ""},
      {{{"afd.activation_dtype", {"bf16"}}, {"engine.compute_dtype", {"float32"}}},
       "auto or f32",
       "kernels consume activations as they come"},
      {{{"afd.activation_dtype", {"f32"}}, {"engine.compute_dtype", {"bf16"}}},
       "auto or bf16",
       "kernels consume activations as they come"},
      {{{"engine.weights", {"int8", "fp8", "mxfp8", "mxfp4"}}, {"engine.compute_dtype", {"float32"}}},
       "it with engine.compute_dtype: bf16, or auto",
       "float32 is the reference mode"},
      {{{"afd.activation_dtype", {"fp8", "mxfp8"}}, {"engine.weights", {"int8"}}},
       "int8 or auto",
       "int8 weights take int8 rows, and rows are rounded to eight bits once"},
      {{{"engine.kv_cache_dtype", {"bf16", "fp8"}}, {"engine.compute_dtype", {"float32"}}},
       "auto",
       "float32 is the reference mode: the cache keeps what attention computes with"},
  };
  rules.insert(rules.end(), table.begin(), table.end());
  return rules;
}

const SupportAxis& axis_of(const std::string& key) {
  for (const SupportAxis& axis : support_axes()) {
    if (axis.key == key) return axis;
  }
  return support_axes().front();  // a test checks that every condition has its axis
}

bool holds(const SupportCondition& condition, const SupportPoint& point) {
  const auto at = point.find(condition.key);
  return at != point.end() && std::ranges::find(condition.values, at->second) != condition.values.end();
}

}  // namespace

std::span<const SupportAxis> support_axes() {
  static const std::vector<SupportAxis> axes = make_axes();
  return axes;
}

std::span<const SupportRule> support_rules() {
  static const std::vector<SupportRule> rules = make_rules();
  return rules;
}

const SupportRule* refusing_rule(const SupportPoint& point) {
  for (const SupportRule& rule : support_rules()) {
    if (std::ranges::all_of(rule.when, [&](const SupportCondition& c) { return holds(c, point); }))
      return &rule;
  }
  return nullptr;
}

Status check_support(const Settings& settings) {
  SupportPoint point;
  for (const SupportAxis& axis : support_axes()) point[axis.key] = axis.value_of(settings);
  const SupportRule* rule = refusing_rule(point);
  if (rule == nullptr) return {};
  const std::string& key = rule->when.front().key;
  std::string message = key + ": " + axis_of(key).written(settings);
  for (size_t i = 1; i < rule->when.size(); ++i)
    message += (i == 1 ? " with " : " and ") + axis_of(rule->when[i].key).phrase(settings);
  message += " is not supported; use " + rule->what_would_do;
  if (!rule->why.empty()) message += " (" + rule->why + ")";
  return make_error(ErrorCode::unsupported, std::move(message));
}

}  // namespace tandem
