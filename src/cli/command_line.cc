#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>

#include "base/log.h"
#include "cli/command.h"
#include "cli/setting_sources.h"
#include "cli/settings_reload.h"
#include "cli/support.h"

namespace tandem {
namespace {

bool starts_with(const std::string& text, const std::string& prefix) {
  return text.rfind(prefix, 0) == 0;
}

int exit_status(const Error& error) {
  return error.code == ErrorCode::invalid_argument || error.code == ErrorCode::unsupported ||
                 error.code == ErrorCode::not_found
             ? kExitUsage
             : kExitFailure;
}

std::string option_help(const Option& option) {
  std::string text = option.help;
  if (!option.allowed.empty() && option.type != OptionType::boolean) text += " [" + option.allowed + "]";
  if (!option.default_text.empty() && option.type != OptionType::boolean)
    text += " (default " + option.default_text + ")";
  return text;
}

// What the user wrote, by key, in order.
using Written = std::vector<std::pair<std::string, std::string>>;

// One command as CLI11 sees it. Values arrive as text: OptionSet parses and checks them.
class CommandParser {
 public:
  CommandParser(CLI::App& parent, const Command& command, const OptionSet& options) : command_(command) {
    app_ = parent.add_subcommand(command.name.substr(command.name.rfind(' ') + 1), command.summary);
    app_->footer(command.description);
    for (const Option& option : options.options()) {
      if (command.takes(option.key)) add(option);
    }
  }
  bool was_chosen() const { return app_->parsed(); }
  const Command& command() const { return command_; }
  const Written& written() const { return written_; }

 private:
  void add(const Option& option) {
    const std::string key = option.key;
    const bool is_positional = key == command_.positional;
    const std::string names = is_positional ? option.flag().substr(2) + "," + option.flag() : option.flag();
    if (option.type == OptionType::list && (is_positional || command_.positional.empty())) {
      // Nothing else takes words here, so a list may be several, as vLLM's users write it.
      app_->add_option_function<std::vector<std::string>>(
              names,
              [this, key](const std::vector<std::string>& words) {
                std::string joined;
                for (const std::string& word : words) joined += (joined.empty() ? "" : ",") + word;
                written_.emplace_back(key, joined);
              },
              option_help(option))
          ->expected(1, -1);
    } else if (is_positional) {
      app_->add_option_function<std::string>(
          names, [this, key](const std::string& text) { written_.emplace_back(key, text); },
          option_help(option));
    } else if (option.type == OptionType::boolean) {
      // What is on by default has a flag that turns it off, as vLLM's users write it.
      const std::string off = option.default_text == "true" ? ",!--no-" + option.flag().substr(2) : "";
      app_->add_flag_function(
          option.flag() + "{true}" + off,
          [this, key](std::int64_t) {
            const auto& results = app_->get_option(find_name(key))->results();
            written_.emplace_back(key, results.empty() ? "true" : results.back());
          },
          option_help(option));
    } else {
      app_->add_option_function<std::string>(
          option.flag(), [this, key](const std::string& text) { written_.emplace_back(key, text); },
          option_help(option));
    }
  }
  static std::string find_name(const std::string& key) {
    Option option;
    option.key = key;
    return option.flag();
  }

  const Command& command_;
  CLI::App* app_;
  Written written_;
};

int fail(const Error& error) {
  std::fprintf(stderr, "tandem: %s\n", error.message.c_str());
  return exit_status(error);
}

std::vector<std::string> first_words() {
  std::vector<std::string> words;
  for (const Command& command : commands()) words.push_back(command.name.substr(0, command.name.find(' ')));
  return words;
}

bool is_command(const std::string& word) {
  const std::vector<std::string> words = first_words();
  return std::find(words.begin(), words.end(), word) != words.end();
}

int unknown_command(const std::string& word) {
  const std::string nearest = nearest_word(word, first_words());
  std::fprintf(stderr, "tandem: unknown command '%s'%s; see tandem --help\n", word.c_str(),
               nearest.empty() ? "" : (", did you mean '" + nearest + "'?").c_str());
  return kExitUsage;
}

// As CLI11 wants them. "--flag=" means an empty value; by itself CLI11 would take the next word for it, so it
// becomes two words.
std::vector<std::string> words_last_first(int argc, char** argv) {
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    const bool is_empty = word.starts_with("--") && word.find('=') == word.size() - 1;
    if (is_empty) word.pop_back();
    words.push_back(std::move(word));
    if (is_empty) words.emplace_back();
  }
  std::reverse(words.begin(), words.end());
  return words;
}

Result<std::vector<std::string>> read_settings(const CommandParser& parser, Settings& settings) {
  const Command& command = parser.command();
  if (command.set_defaults) command.set_defaults(settings);
  return apply_sources(settings, {command.name, parser.written(),
                                  [&command](const std::string& key) { return command.takes(key); },
                                  [](const char* name) { return std::getenv(name); }});
}

// Until the command has ended the parser is there.
std::shared_ptr<SettingsReload> reload_of(const CommandParser& parser, const Settings& settings) {
  if (settings.config.empty()) return nullptr;
  const auto again = [&parser]() -> Result<Settings> {
    Settings read;
    const auto applied = read_settings(parser, read);
    if (!applied) return std::unexpected(applied.error());
    return read;
  };
  return std::make_shared<SettingsReload>(
      settings, again, [&parser](const std::string& key) { return parser.command().takes(key); });
}

int run(const CommandParser& parser) {
  Settings settings;
  const Command& command = parser.command();
  const auto applied = read_settings(parser, settings);
  if (!applied) {
    std::fprintf(stderr, "tandem: %s\n", applied.error().message.c_str());
    return kExitUsage;
  }
  settings.reload = reload_of(parser, settings);
  apply_log_level(settings.engine.log_level);
  for (const std::string& note : *applied) log_info(note);
  const Result<int> status = command.run(settings);
  return status ? *status : fail(status.error());
}

}  // namespace

bool Command::takes(const std::string& key) const {
  for (const std::string& excluded : excluded_keys) {
    if (key == excluded) return false;
  }
  for (const std::string& taken : keys) {
    if (key == taken || (taken.ends_with('.') && starts_with(key, taken))) return true;
  }
  return false;
}

int run_command_line(int argc, char** argv) {
  CLI::App app(
      "Tandem serves Mixture-of-Experts language models with attention and experts on different workers.",
      "tandem");
  app.require_subcommand(1);
  app.set_version_flag("--version", "tandem " TANDEM_VERSION);
  app.footer(
      "tandem COMMAND --help explains a command. Every flag has a twin in the environment (TANDEM_...) and a "
      "key in\n"
      "the file that --config names.");
  Settings declared;  // for help only: every command declares its own defaults
  std::map<std::string, CLI::App*> groups;
  std::vector<std::unique_ptr<CommandParser>> parsers;
  std::vector<std::unique_ptr<OptionSet>> sets;
  std::vector<std::unique_ptr<Settings>> defaults;
  for (const Command& command : commands()) {
    defaults.push_back(std::make_unique<Settings>());
    if (command.set_defaults) command.set_defaults(*defaults.back());
    sets.push_back(std::make_unique<OptionSet>(defaults.back()->declare()));
    CLI::App* parent = &app;
    const size_t space = command.name.find(' ');
    if (space != std::string::npos) {
      CLI::App*& group = groups[command.name.substr(0, space)];
      if (group == nullptr) {
        group = app.add_subcommand(command.name.substr(0, space),
                                   "See tandem " + command.name.substr(0, space) + " --help");
        group->require_subcommand(1);
      }
      parent = group;
    }
    parsers.push_back(std::make_unique<CommandParser>(*parent, command, *sets.back()));
  }
  if (argc > 1 && argv[1][0] != '-' && !is_command(argv[1])) return unknown_command(argv[1]);
  try {
    app.parse(words_last_first(argc, argv));
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return app.exit(version);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "tandem: %s; see tandem --help\n", error.what());
    return kExitUsage;
  }
  for (const auto& parser : parsers) {
    if (parser->was_chosen()) return run(*parser);
  }
  return kExitUsage;
}

std::string configuration_reference() {
  Settings settings;
  const OptionSet options = settings.declare();
  std::string text =
      "# Configuration\n\n"
      "Written by `tandem configuration`; do not edit. A key stands in the YAML file that `--config` names, "
      "as a flag and\n"
      "as an environment variable; a flag goes before the environment, the environment before what vLLM's "
      "JSON says\n"
      "(`docs/afd-plugin.md`), and that before the file. JSON is YAML.\n\n"
      "| key | flag | environment | values | default | meaning |\n| --- | --- | --- | --- | --- | --- |\n";
  const auto cell = [](std::string value) {
    for (size_t at = value.find('|'); at != std::string::npos; at = value.find('|', at + 2))
      value.insert(at, "\\");
    return value;
  };
  for (const Option& option : options.options()) {
    text += "| `" + option.key + "` | `" + option.flag() + "` | `" + option.environment() + "` | " +
            cell(option.allowed) + " | " +
            (option.default_text.empty() ? "" : "`" + option.default_text + "`") + " | " + cell(option.help) +
            " |\n";
  }
  text +=
      "\n## Read again while a process serves\n\nAt SIGHUP `serve`, `up`, `attention`, `ffn` and `rank` read "
      "the "
      "file of `--config` again; flags and environment still go before it.\nThese settings are taken, "
      "for requests and connections from then on: ";
  for (size_t i = 0; i < reloadable_settings().size(); ++i)
    text += (i == 0 ? "`" : ", `") + std::string(reloadable_settings()[i]) + "`";
  text +=
      ".\nA change of any other setting that the command takes is refused by name in the log, as is a file "
      "that cannot be read, and then nothing is\ntaken: all or none. TLS stays on or off. Ranks that `up` "
      "has started keep their log level. The *contents* of key and certificate files\nare looked at every "
      "second, without a signal. Without `--config` a SIGHUP ends the process.\n";
  text +=
      "\n## What is refused by name\n\nThe matrix of what goes together is in `docs/features.md`.\n\n"
      "| refused | what would do | why |\n| --- | --- | --- |\n";
  for (const SupportRule& rule : support_rules())
    text += "| " + cell(rule_text(rule)) + " | " + cell(rule.what_would_do) + " | " + cell(rule.why) + " |\n";
  text += "\n## Commands\n\n| command | does |\n| --- | --- |\n";
  for (const Command& command : commands())
    text += "| `tandem " + command.name + "` | " + cell(command.summary) + " |\n";
  return text;
}

}  // namespace tandem
