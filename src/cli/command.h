// Command: one subcommand of the binary: which settings it takes, what it needs, and what runs it. The table
// of commands is the binary's help, and the generated reference.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/settings.h"

namespace tandem {

// Exit statuses, on every command.
inline constexpr int kExitSuccess = 0;
inline constexpr int kExitFailure = 1;  // understood, and it did not work
inline constexpr int kExitUsage = 2;    // not understood, or refused before any work

struct Command {
  std::string name;               // "serve", "eval gsm8k"
  std::string summary;            // one line
  std::string description;        // for --help: what it does, and an example
  std::vector<std::string> keys;  // settings that it takes: keys, or sections ("serving.")
  std::vector<std::string> excluded_keys;
  std::string positional;                       // key that a bare word sets; empty: none
  std::function<void(Settings&)> set_defaults;  // other defaults than the struct's; may be empty
  std::function<Result<int>(Settings&)> run;

  bool takes(const std::string& key) const;
};

// All commands, in the order of the help.
const std::vector<Command>& commands();

// Parses, runs, prints an error as one line on standard error, returns the exit status.
int run_command_line(int argc, char** argv);

// The options' reference, docs/configuration.md.
std::string configuration_reference();

}  // namespace tandem
