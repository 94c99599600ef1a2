#include "cli/conformance/run.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

#include "cli/conformance/reference.h"

namespace tandem::conformance {
namespace {

constexpr uint32_t kFewestSlots = 4;  // request.tiles_in_any_order

CaseResult run_one(const Case& one, Lab& lab) {
  CaseResult result{.name = one.name, .expects = one.expects, .message = {}};
  if (one.skip) result.message = one.skip(lab.facts);
  if (!result.message.empty()) {
    result.outcome = Outcome::skipped;
    return result;
  }
  Status done = one.run(lab);
  if (done) {
    done = expect_served(*lab.bystander);
    if (!done) done = mismatch("a session that did nothing wrong to go on", done.error().message);
  }
  if (done) return result;
  result.outcome = Outcome::failed;
  result.message = done.error().message;
  // The next case begins with a session that is served, if there is one.
  if (auto fresh = Client::serving(lab)) lab.bystander = std::move(*fresh);
  return result;
}

}  // namespace

bool is_wanted(const std::string& name, const std::vector<std::string>& only) {
  return only.empty() || std::ranges::any_of(only, [&](const std::string& pattern) {
           return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
         });
}

Result<std::vector<CaseResult>> run_cases(const RunOptions& options,
                                          const std::function<void(const CaseResult&)>& each) {
  std::vector<Case> cases = all_cases();
  if (!options.model.empty()) cases.push_back(reference_case(options.model, options.threads));
  for (const std::string& pattern : options.only) {
    if (std::ranges::any_of(cases, [&](const Case& one) { return is_wanted(one.name, {pattern}); })) continue;
    return make_error(
        ErrorCode::invalid_argument,
        fmt::format("conformance.only: no case is called '{}'; --list names them{}", pattern,
                    pattern.starts_with("numbers.reference") ? ", and this one needs --model" : ""));
  }
  std::erase_if(cases, [&](const Case& one) { return !is_wanted(one.name, options.only); });
  auto opened = Lab::open(options.peer, options.patience, options.security);
  // What keeps a rank from being tested is no verdict on it, whatever it is.
  if (!opened) return make_error(ErrorCode::invalid_argument, opened.error().message);
  const std::unique_ptr<Lab> lab = std::move(*opened);
  std::vector<CaseResult> results;
  if (lab->facts.carrier.slots < kFewestSlots) {
    return make_error(
        ErrorCode::unsupported,
        fmt::format("the rank has {} slots a channel, and cases send up to {} requests at once: "
                    "start it with the 8 of docs/protocol.md",
                    lab->facts.carrier.slots, kFewestSlots));
  }
  for (const Case& one : cases) {
    results.push_back(run_one(one, *lab));
    if (each) each(results.back());
  }
  (void)lab->bystander->send(lab->bystander->plain(FrameKind::goodbye), Channel::control);
  return results;
}

}  // namespace tandem::conformance
