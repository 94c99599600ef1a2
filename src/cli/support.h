// Support: which combinations of settings work together. One table of axes and one of rules: `validate`
// refuses by them, and the matrix in docs/features.md and the list in docs/configuration.md are printed from
// them
// (`tandem configuration --matrix`). Lifting a refusal is taking its line away. Any thread.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cli/settings.h"

namespace tandem {

// "several" stands for every number from 2 on; the matrix and the tests take 2.
inline constexpr const char* kSeveral = "several";

// A setting whose values decide whether others work.
struct SupportAxis {
  std::string key;                  // "afd.connector"
  std::string heading;              // over its column of the matrix
  std::vector<std::string> values;  // every class of values; the default first
  bool spans_rows = false;          // the matrix has a row for each of its values; others are columns
  // The class that the settings are in, and the value for a message: as the user wrote it.
  std::function<std::string(const Settings&)> value_of, written;
  // How a message says the value behind "with": "the gate on FFN".
  std::function<std::string(const Settings&)> phrase;
};

struct SupportCondition {
  std::string key;
  std::vector<std::string> values;  // one of these
};

// Refused when every condition holds. The message names the first key with its value, then the others.
struct SupportRule {
  std::vector<SupportCondition> when;
  std::string what_would_do;  // behind "use"
  std::string why;            // may be empty
};

std::span<const SupportAxis> support_axes();
std::span<const SupportRule> support_rules();

// A value for each key of some axes; an axis that is absent meets no condition.
using SupportPoint = std::map<std::string, std::string>;

// The first rule that refuses; null: supported.
const SupportRule* refusing_rule(const SupportPoint& point);
// unsupported, in one line that names key, value and what would do.
Status check_support(const Settings& settings);

// "`afd.connector` m2n with `afd.compute_gate_on_attention` false": what a rule refuses, in Markdown.
std::string rule_text(const SupportRule& rule);
// The matrix and its rules, in Markdown.
std::string support_matrix();

}  // namespace tandem
