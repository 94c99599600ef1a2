#include "base/options.h"

#include <algorithm>
#include <cassert>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/one_line.h"

namespace tandem {
namespace {

std::string last_part(const std::string& key) {
  return key.substr(key.rfind('.') + 1);
}

std::string join(const std::vector<std::string>& words, std::string_view separator) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : std::string(separator)) + word;
  return text;
}

template <class T>
bool parse_whole(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

std::unexpected<Error> bad(const std::string& message) {
  return make_error(ErrorCode::invalid_argument, one_line(message));  // it has keys and values as they came
}

std::string real_text(double value) {
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return {buffer, end};
}

}  // namespace

std::string Option::flag() const {
  std::string flag = "--" + last_part(key);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

std::string Option::environment() const {
  std::string name = "TANDEM_" + last_part(key);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return name;
}

void OptionSet::add(Option option) {
  assert(find(option.key) == nullptr);
  option.default_text = option.get();
  options_.push_back(std::move(option));
}

void OptionSet::boolean(std::string key, bool& value, std::string help) {
  Option option{std::move(key), OptionType::boolean, std::move(help), "true | false", {}, {}, {}};
  option.set = [&value](std::string_view text) -> Result<void> {
    if (text != "true" && text != "false") return bad("'" + std::string(text) + "' is not true or false");
    value = text == "true";
    return {};
  };
  option.get = [&value] { return std::string(value ? "true" : "false"); };
  add(std::move(option));
}

void OptionSet::integer(std::string key, int64_t& value, int64_t min, int64_t max, std::string help) {
  const std::string range = std::to_string(min) + ".." + std::to_string(max);
  Option option{std::move(key), OptionType::integer, std::move(help), range, {}, {}, {}};
  option.set = [&value, min, max, range](std::string_view text) -> Result<void> {
    int64_t parsed = 0;
    if (!parse_whole(text, parsed))
      return bad("'" + std::string(text) + "' is not a whole number in " + range);
    if (parsed < min || parsed > max) return bad(std::string(text) + " is not in " + range);
    value = parsed;
    return {};
  };
  option.get = [&value] { return std::to_string(value); };
  add(std::move(option));
}

void OptionSet::number_or_auto(std::string key, int64_t& value, int64_t max, std::string help) {
  const std::string allowed = "auto | 0.." + std::to_string(max);
  Option option{std::move(key), OptionType::integer, std::move(help), allowed, {}, {}, {}};
  option.set = [&value, max, allowed](std::string_view text) -> Result<void> {
    int64_t parsed = -1;
    if (text != "auto" && (!parse_whole(text, parsed) || parsed < 0 || parsed > max))
      return bad("'" + std::string(text) + "' is not in " + allowed);
    value = parsed;
    return {};
  };
  option.get = [&value] { return value < 0 ? std::string("auto") : std::to_string(value); };
  add(std::move(option));
}

void OptionSet::real(std::string key, double& value, double min, double max, std::string help) {
  const std::string range = real_text(min) + ".." + real_text(max);
  Option option{std::move(key), OptionType::real, std::move(help), range, {}, {}, {}};
  option.set = [&value, min, max, range](std::string_view text) -> Result<void> {
    double parsed = 0;
    if (!parse_whole(text, parsed) || !std::isfinite(parsed))
      return bad("'" + std::string(text) + "' is not a number in " + range);
    if (parsed < min || parsed > max) return bad(std::string(text) + " is not in " + range);
    value = parsed;
    return {};
  };
  option.get = [&value] { return real_text(value); };
  add(std::move(option));
}

void OptionSet::text(std::string key, std::string& value, std::string help) {
  Option option{std::move(key), OptionType::text, std::move(help), {}, {}, {}, {}};
  option.set = [&value](std::string_view text) -> Result<void> {
    value = text;
    return {};
  };
  option.get = [&value] { return value; };
  add(std::move(option));
}

void OptionSet::choice(std::string key, std::string& value, std::vector<std::string> choices,
                       std::string help) {
  const std::string allowed = join(choices, " | ");
  Option option{std::move(key), OptionType::choice, std::move(help), allowed, {}, {}, {}};
  option.set = [&value, choices = std::move(choices), allowed](std::string_view text) -> Result<void> {
    if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
      return bad("'" + std::string(text) + "' is not one of " + allowed);
    }
    value = text;
    return {};
  };
  option.get = [&value] { return value; };
  add(std::move(option));
}

void OptionSet::list(std::string key, std::vector<std::string>& value, std::string help) {
  Option option{std::move(key), OptionType::list, std::move(help), {}, {}, {}, {}};
  option.set = [&value](std::string_view text) -> Result<void> {
    std::vector<std::string> parsed;
    while (!text.empty()) {
      const size_t comma = std::min(text.find(','), text.size());
      if (comma == 0) return bad("an entry of the list is empty");
      parsed.emplace_back(text.substr(0, comma));
      text.remove_prefix(std::min(comma + 1, text.size()));
    }
    value = std::move(parsed);
    return {};
  };
  option.get = [&value] { return join(value, ","); };
  add(std::move(option));
}

const Option* OptionSet::find(std::string_view key) const {
  const auto at = std::find_if(options_.begin(), options_.end(),
                               [key](const Option& option) { return option.key == key; });
  return at == options_.end() ? nullptr : &*at;
}

Result<void> OptionSet::set(std::string_view key, std::string_view value, std::string_view where) {
  const Option* option = find(key);
  if (option == nullptr) {
    std::vector<std::string> keys;
    keys.reserve(options_.size());
    for (const Option& known : options_) keys.push_back(known.key);
    const std::string nearest = nearest_word(key, keys);
    return bad(std::string(where) + ": unknown key '" + std::string(key) + "'" +
               (nearest.empty() ? "" : "; did you mean '" + nearest + "'?"));
  }
  const Result<void> done = option->set(value);
  if (!done) return bad(std::string(where) + ": " + option->key + ": " + done.error().message);
  return {};
}

Result<void> OptionSet::set_from_environment() {
  for (const Option& option : options_) {
    const char* value = std::getenv(option.environment().c_str());
    if (value != nullptr) TANDEM_TRY(set(option.key, value, option.environment()));
  }
  return {};
}

std::string nearest_word(std::string_view word, std::span<const std::string> candidates) {
  const auto distance = [word](std::string_view other) {
    std::vector<size_t> row(other.size() + 1);
    for (size_t j = 0; j <= other.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = std::exchange(row[0], i);
      for (size_t j = 1; j <= other.size(); ++j) {
        const size_t replaced = diagonal + (word[i - 1] == other[j - 1] ? 0 : 1);
        diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
      }
    }
    return row.back();
  };
  std::string best;
  size_t best_distance = word.size() / 3 + 2;  // farther than this is another word, not a slip
  for (const std::string& candidate : candidates) {
    const size_t d = distance(candidate);
    if (d < best_distance) {
      best_distance = d;
      best = candidate;
    }
  }
  return best;
}

}  // namespace tandem
