// M2nFfn: the FfnPort of connector m2n. Attention has routed; each row goes straight to the FFN ranks that
// hold its experts (once to each), they answer with the sums of their own experts, and the sums are added
// here. A rank that gets no row of a request hears nothing of it, and nobody waits for it.
//
// One RemoteFfn a rank carries tiles, credits, liveness, deadlines and reconnecting. What is lost with a rank
// is what was on its way there: requests that need it fail by its name, others go on; `health` names it until
// it is back, with the experts that it held.
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

class M2nFfn final : public FfnPort {
 public:
  // `addresses`: of FFN rank 0, 1, ... Blocks until all have shaken hands, or `start_limit` is over
  // (deadline_exceeded, naming who is missing). At once, by name: the gate or the shared experts on FFN,
  // settings that differ, experts that no rank holds.
  static Result<std::unique_ptr<M2nFfn>> create(const RemoteFfnOptions& options);
  // Nobody writes any request's `out` afterwards.
  ~M2nFfn() override;

  const FfnTraits& traits() const override;
  Result<Ticket> submit(const FfnRequest& request) override;
  size_t poll(std::span<Completion> out) override;
  void cancel(Ticket ticket) override;
  int wait_fd() const override;
  Status health() const override;

  RemoteFfnStats stats() const;  // `requests` and `failures` of this port, the others summed over ranks
  std::vector<FfnRankFacts> peers() const;
  const ExpertMap& map() const;

 private:
  struct Impl;
  explicit M2nFfn(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
