#include "cli/config_file.h"

#include <yaml-cpp/yaml.h>

#include <set>

#include "base/file.h"
#include "base/one_line.h"

namespace tandem {
namespace {

// A configuration is a page of text; a larger file is some other file.
constexpr size_t kMaxConfigBytes = size_t{1} << 20;

std::string where(const std::string& path, const YAML::Node& node) {
  return path + " line " + std::to_string(node.Mark().line + 1);
}

// Plain scalars (1, true, bf16) have the tag "?"; quoted ones "!": a quoted number is text, and stays text.
bool is_quoted(const YAML::Node& node) {
  return node.Tag() == "!";
}

Result<std::string> scalar_text(const Option& option, const YAML::Node& node, const std::string& place) {
  const auto wrong = [&](const std::string& got) {
    return make_error(ErrorCode::invalid_argument,
                      place + ": " + option.key + ": " + one_line(got) + " where " +
                          (option.allowed.empty() ? std::string("text") : option.allowed) + " is expected");
  };
  if (option.type == OptionType::list) {
    if (node.IsScalar()) return node.Scalar();
    if (!node.IsSequence()) return wrong("a map");
    std::string joined;
    for (const YAML::Node& entry : node) {
      if (!entry.IsScalar()) return wrong("a list in a list");
      joined += (joined.empty() ? "" : ",") + entry.Scalar();
    }
    return joined;
  }
  if (!node.IsScalar()) return wrong(node.IsNull() ? "nothing" : node.IsMap() ? "a map" : "a list");
  const bool is_number_or_word = option.type == OptionType::boolean || option.type == OptionType::integer ||
                                 option.type == OptionType::real;
  if (is_number_or_word && is_quoted(node)) return wrong("text '" + node.Scalar() + "'");
  return node.Scalar();
}

Result<void> read_map(const std::string& path, const YAML::Node& map, const std::string& prefix,
                      OptionSet& options) {
  std::set<std::string> seen;
  for (const auto& entry : map) {
    const std::string place = where(path, entry.first);
    if (!entry.first.IsScalar())
      return make_error(ErrorCode::invalid_argument, place + ": a key that is not a word");
    const std::string key = prefix + entry.first.Scalar();
    if (!seen.insert(key).second)
      return make_error(ErrorCode::invalid_argument, place + ": key '" + one_line(key) + "' is given twice");
    if (entry.second.IsMap() && options.find(key) == nullptr) {
      bool is_section = false;
      for (const Option& option : options.options())
        is_section = is_section || option.key.rfind(key + ".", 0) == 0;
      if (is_section) {
        TANDEM_TRY(read_map(path, entry.second, key + ".", options));
        continue;
      }
    }
    const Option* option = options.find(key);
    if (option == nullptr) {
      TANDEM_TRY(options.set(key, "", place));  // refuses, with the nearest known key
      continue;
    }
    TANDEM_ASSIGN(const std::string text, scalar_text(*option, entry.second, place));
    TANDEM_TRY(options.set(key, text, place));
  }
  return {};
}

}  // namespace

Result<void> read_config_file(const std::string& path, OptionSet& options) {
  TANDEM_ASSIGN(const std::string text, read_file(path, kMaxConfigBytes));
  YAML::Node root;
  try {
    root = YAML::Load(text);
  } catch (const YAML::Exception& error) {
    return make_error(ErrorCode::invalid_argument,
                      path + " line " + std::to_string(error.mark.line + 1) + ": " + one_line(error.msg));
  }
  if (root.IsNull()) return {};
  if (!root.IsMap()) return make_error(ErrorCode::invalid_argument, path + ": not a map of keys");
  return read_map(path, root, "", options);
}

}  // namespace tandem
