// tandem conformance: an FFN rank of any maker, case by case, beside docs/protocol.md.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/conformance/run.h"
#include "cli/peer_settings.h"

namespace tandem {
namespace {

using conformance::CaseResult;
using conformance::Outcome;

std::string line_of(const CaseResult& result) {
  switch (result.outcome) {
    case Outcome::ok:
      return "ok      " + result.name + ": " + result.expects;
    case Outcome::skipped:
      return "skipped " + result.name + ": " + result.message;
    case Outcome::failed:
      break;
  }
  return "FAILED  " + result.name + ": " + result.expects + "; " + result.message;
}

void list_cases(const Settings& settings) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const conformance::Case& one : conformance::all_cases()) {
    if (!conformance::is_wanted(one.name, settings.conformance.only)) continue;
    if (!settings.json) std::printf("%s: %s\n", one.name.c_str(), one.expects.c_str());
    rows.push_back({{"name", one.name}, {"expects", one.expects}});
  }
  if (settings.json) std::printf("%s\n", rows.dump().c_str());
}

}  // namespace

Result<int> run_conformance(Settings& settings) {
  if (settings.conformance.list) {
    list_cases(settings);
    return kExitSuccess;
  }
  if (settings.conformance.rank.empty()) {
    return make_error(
        ErrorCode::invalid_argument,
        "conformance.rank: no address; name the FFN rank to test: tandem conformance HOST:PORT");
  }
  TANDEM_ASSIGN(const Address address, parse_address(settings.conformance.rank));
  if (address.scheme != "tcp") {
    return make_error(ErrorCode::unsupported,
                      "conformance.rank: " + settings.conformance.rank +
                          ": ranks are tested over tcp; let it listen at tcp://HOST:PORT");
  }
  conformance::RunOptions options;
  TANDEM_ASSIGN(options.peer, parse_host_port(address.rest, settings.conformance.rank));
  TANDEM_ASSIGN(options.security, peer_security(settings.afd));
  options.only = settings.conformance.only;
  options.model = settings.model;
  options.threads = static_cast<int>(settings.engine.threads);
  options.patience =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(settings.conformance.patience_s));
  const auto print = [&](const CaseResult& result) {
    if (settings.json) return;
    std::printf("%s\n", line_of(result).c_str());
    std::fflush(stdout);
  };
  TANDEM_ASSIGN(const std::vector<CaseResult> results, run_cases(options, print));
  size_t count[3] = {};
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const CaseResult& result : results) {
    ++count[static_cast<size_t>(result.outcome)];
    constexpr const char* kNames[] = {"ok", "failed", "skipped"};
    rows.push_back({{"name", result.name},
                    {"outcome", kNames[static_cast<size_t>(result.outcome)]},
                    {"expects", result.expects},
                    {"message", result.message}});
  }
  if (settings.json) {
    const nlohmann::ordered_json document = {{"rank", settings.conformance.rank},
                                             {"ok", count[0]},
                                             {"failed", count[1]},
                                             {"skipped", count[2]},
                                             {"cases", rows}};
    std::printf("%s\n",
                document.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  } else {
    std::printf("%zu cases: %zu ok, %zu failed, %zu left out in this placement\n", results.size(), count[0],
                count[1], count[2]);
  }
  return count[1] == 0 ? kExitSuccess : kExitFailure;
}

}  // namespace tandem
