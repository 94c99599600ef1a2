// MultiRankFfn: the FfnPort over several FFN ranks: connectors p2p, m2n and auto over the same connections.
//
//   m2n   attention has routed; each row goes straight to the ranks that hold its experts (once to each),
//   they
//         answer with the sums of their own experts, and the sums are added here
//   p2p   each rank in turn is home to a run of tiles: it routes where the gate is on FFN, exchanges rows
//   with
//         the other FFN ranks, and answers with final rows, which go straight to their place
//   auto  decode and draft rows by m2n, prefill and profile rows by p2p; with the gate on FFN all by p2p
//
// A rank that gets no row of a request hears nothing of it, and nobody waits for it. What is lost with a rank
// is what was on its way there: requests that need it fail by its name, others go on; `health` names it until
// it is back, with the experts that it held. A rank that is down is home to nothing.
//
// Threads: the FfnPort functions belong to one thread, the lane executor; partial sums are added in `poll`.
// `health`, `stats` and the facts may be asked by any thread. Nothing is allocated once the largest request
// was seen.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "afd/remote_ffn.h"
#include "moe/expert_dispatcher.h"

namespace tandem {

class MultiRankFfn final : public FfnPort {
 public:
  // options.settings.connector says how; `addresses`: of FFN rank 0, 1, ... Blocks until all have shaken
  // hands, or `start_limit` is over (deadline_exceeded, naming who is missing). At once, by name: m2n with
  // the gate on FFN, settings that differ, experts that no rank holds.
  static Result<std::unique_ptr<MultiRankFfn>> create(const RemoteFfnOptions& options);
  // Nobody writes any request's `out` afterwards.
  ~MultiRankFfn() override;

  const FfnTraits& traits() const override;
  Result<Ticket> submit(const FfnRequest& request) override;
  size_t poll(std::span<Completion> out) override;
  void cancel(Ticket ticket) override;
  int wait_fd() const override;
  void trace_to(TraceRing* ring) override;
  Status health() const override;

  RemoteFfnStats stats() const;  // `requests` and `failures` of this port, the others summed over ranks
  std::vector<FfnRankFacts> peers() const;
  RankState rank_state(uint32_t rank) const;  // below the number of addresses
  const ExpertMap& map() const;

 private:
  struct Impl;
  explicit MultiRankFfn(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
