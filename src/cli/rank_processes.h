// RankProcesses: the ranks of one role as child processes of this one, started side by side and started again
// when they die. Main thread: the children die with the thread that started them.
#pragma once

#include <string>
#include <vector>

#include "cli/child_process.h"
#include "cli/engine_host.h"
#include "cli/rank_counters.h"

namespace tandem {

class RankProcesses {
 public:
  // `name`: "FFN rank"; `listen_flag`: "--listen=", the flag that says where a rank listens.
  RankProcesses(std::string name, std::string listen_flag)
      : name_(std::move(name)), listen_flag_(std::move(listen_flag)) {}

  // Starts the next rank. It prints its facts as one line of JSON when it is ready.
  Status start(std::vector<std::string> arguments);
  // Waits for the facts of all that were started, `limit` each; an error names the rank that did not start.
  // From then on a rank that starts again listens on the address that it has said.
  Result<std::vector<RankFacts>> wait_ready(Duration limit);
  // What each rank counted, asked for now (SIGUSR1): a line of JSON on its standard output. One that does not
  // answer is named with the reason.
  std::vector<RankCounters> counters(const std::string& role);
  // Ends all of them, `limit` for each.
  void end(Duration limit);
  // Starts again what has died.
  void tend();

 private:
  struct Process {
    ChildProcess child;
    std::vector<std::string> arguments;
    Instant started;
  };
  std::string label(size_t rank) const { return name_ + " " + std::to_string(rank); }

  const std::string name_, listen_flag_;
  std::vector<Process> processes_;
};

}  // namespace tandem
