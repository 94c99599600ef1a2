#include "cli/rank_processes.h"

#include <signal.h>

#include "base/log.h"
#include "cli/deployment.h"

namespace tandem {
namespace {

// A rank that cannot start again must not keep the machine busy with trying.
constexpr auto kRestartInterval = std::chrono::seconds(1);

// A rank answers from a thread of its own, in microseconds; on a machine that is overloaded it may wait for a
// core.
constexpr auto kCountersLimit = std::chrono::seconds(5);

// A rank that has started again has said its facts first: lines that are no counts are passed over.
Result<RankCounters> ask(ChildProcess& child) {
  if (!child.alive() || ::kill(child.pid(), SIGUSR1) != 0)
    return make_error(ErrorCode::unavailable, "the process has ended");
  const Instant limit = now() + kCountersLimit;
  while (true) {
    TANDEM_ASSIGN(const std::string line, child.read_line(limit - now()));
    auto counters = parse_counters(line);
    if (counters) return counters;
  }
}

}  // namespace

Status RankProcesses::start(std::vector<std::string> arguments) {
  Process process;
  process.arguments = std::move(arguments);
  TANDEM_ASSIGN(process.child, ChildProcess::start(process.arguments));
  process.started = now();
  processes_.push_back(std::move(process));
  return {};
}

Result<std::vector<RankFacts>> RankProcesses::wait_ready(Duration limit) {
  std::vector<RankFacts> list;
  for (size_t rank = 0; rank < processes_.size(); ++rank) {
    Process& process = processes_[rank];
    auto line = process.child.read_line(limit);
    if (!line) return make_error(line.error().code, label(rank) + " did not start: " + line.error().message);
    TANDEM_ASSIGN(RankFacts facts, parse_rank_json(*line));
    // Again it must listen where its peers look for it, on the port that the system chose.
    for (std::string& argument : process.arguments) {
      if (argument.starts_with(listen_flag_)) argument = listen_flag_ + facts.address;
    }
    list.push_back(std::move(facts));
  }
  return list;
}

std::vector<RankCounters> RankProcesses::counters(const std::string& role) {
  std::vector<RankCounters> list;
  for (size_t rank = 0; rank < processes_.size(); ++rank) {
    auto asked = ask(processes_[rank].child);
    if (!asked) {
      RankCounters none;
      none.role = role;
      none.rank = static_cast<int64_t>(rank);
      none.missing = asked.error().message;
      asked = std::move(none);
    }
    list.push_back(std::move(*asked));
  }
  return list;
}

void RankProcesses::end(Duration limit) {
  for (Process& process : processes_) process.child.end(limit);
  processes_.clear();
}

void RankProcesses::tend() {
  for (size_t rank = 0; rank < processes_.size(); ++rank) {
    Process& process = processes_[rank];
    if (process.child.alive() || now() - process.started < kRestartInterval) continue;
    process.started = now();
    auto child = ChildProcess::start(process.arguments);
    if (!child) {
      log_error(label(rank) + " has died and cannot be started again: " + child.error().message);
      continue;
    }
    process.child = std::move(*child);
    log_warning(label(rank) + " has died; started again as process " + std::to_string(process.child.pid()));
  }
}

}  // namespace tandem
