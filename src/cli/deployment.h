// Deployment: an xAyF on this host, as `up`, `generate` and `eval` start it: FFN ranks in child processes
// (shm, tcp) or in threads (inproc); one attention rank in this process, or several beside the FFN ranks with
// a front in this process; or colocated. Ends what it started.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/engine_host.h"
#include "cli/rank_counters.h"

namespace tandem {

class Deployment {
 public:
  // settings.up: how many ranks, and the transport.
  static Result<std::unique_ptr<Deployment>> start(const Settings& settings);
  ~Deployment();

  Engine& engine();
  std::vector<RankFacts> ranks() const;
  // EngineHost::trace_source; without a ring where the attention ranks are behind a front.
  TraceSource trace_source() const;
  // What each rank has waited and routed since its start; one that does not say is named with the reason.
  // From the thread that started the deployment.
  std::vector<RankCounters> counters();
  // Ends the attention ranks, and gives them the time to write what they have recorded (engine.trace).
  // `engine` and `counters` are not called afterwards.
  void end();
  // Starts processes that have died again, on their old addresses: their peers take them back. Call it now
  // and then, from the thread that started the deployment (the children die with that thread).
  void tend();

 private:
  struct Impl;
  explicit Deployment(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A table for a person, and the same as JSON text (an array).
std::string rank_table(const std::vector<RankFacts>& ranks);
std::string rank_json(const std::vector<RankFacts>& ranks);
std::string rank_json(const RankFacts& rank);
Result<RankFacts> parse_rank_json(const std::string& text);

}  // namespace tandem
