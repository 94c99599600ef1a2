#include "bench/standalone.h"

#include <cstdio>
#include <string_view>

namespace tandem::bench {
namespace {

Result<bool> read_arguments(int argc, char** argv, OptionSet& flags, std::string& word) {
  bool json = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--json") {
      json = true;
    } else if (!argument.starts_with("--")) {
      word = argument;
    } else if (i + 1 < argc) {
      TANDEM_TRY(flags.set(argument.substr(2), argv[++i], argument));
    } else {
      return make_error(ErrorCode::invalid_argument, std::string(argument) + " needs a value");
    }
  }
  return json;
}

}  // namespace

int run_standalone(int argc, char** argv, OptionSet& flags, std::string& word,
                   const std::function<Result<std::string>(bool json)>& report) {
  const Result<bool> json = read_arguments(argc, argv, flags, word);
  const Result<std::string> text = json ? report(*json) : std::unexpected(json.error());
  if (!text) {
    std::fprintf(stderr, "%s\n", text.error().message.c_str());
    return text.error().code == ErrorCode::invalid_argument ? 2 : 1;
  }
  std::fputs(text->c_str(), stdout);
  return 0;
}

}  // namespace tandem::bench
