// OptionSet: every setting is declared once, by a `declare` function of the struct that holds it: key, help,
// range. Command-line flags, TANDEM_* environment twins, the YAML file, --help, /props and
// docs/configuration.md all come from these lines. The set points into the struct and must not outlive it.
// One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem {

enum class OptionType : uint8_t { boolean, integer, real, text, choice, list };

struct Option {
  std::string key;  // "serving.max_num_seqs": as in the YAML file
  OptionType type = OptionType::text;
  std::string help;          // one sentence
  std::string allowed;       // "1..4096", "bf16 | f32": for help and messages; may be empty
  std::string default_text;  // as the user would write it
  std::function<Result<void>(std::string_view)>
      set;  // parses and checks; the error says what would do, not the key
  std::function<std::string()> get;

  std::string flag() const;         // "--max-num-seqs": the last part of the key
  std::string environment() const;  // "TANDEM_MAX_NUM_SEQS"
};

class OptionSet {
 public:
  void boolean(std::string key, bool& value, std::string help);
  void integer(std::string key, int64_t& value, int64_t min, int64_t max, std::string help);
  // A whole number from 0 on, or auto, which is -1 in `value`.
  void number_or_auto(std::string key, int64_t& value, int64_t max, std::string help);
  void real(std::string key, double& value, double min, double max, std::string help);
  void text(std::string key, std::string& value, std::string help);
  void choice(std::string key, std::string& value, std::vector<std::string> choices, std::string help);
  // Comma-separated on a command line, a sequence in YAML.
  void list(std::string key, std::vector<std::string>& value, std::string help);

  std::span<const Option> options() const { return options_; }
  const Option* find(std::string_view key) const;

  // Sets one option from text. `where` ("--port", "TANDEM_PORT", "config.yaml line 3") stands in front of the
  // error. An unknown key is refused with the nearest known one.
  Result<void> set(std::string_view key, std::string_view value, std::string_view where);
  // Applies the environment twins that are set.
  Result<void> set_from_environment();

 private:
  void add(Option option);
  std::vector<Option> options_;
};

// The candidate with the fewest edits to `word`, for "did you mean"; empty when none is near.
std::string nearest_word(std::string_view word, std::span<const std::string> candidates);

}  // namespace tandem
