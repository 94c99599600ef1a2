// RankLinks: this process's connections to several FFN ranks, one RemoteFfn each: started side by side, in
// either start order, with one expert map assembled from what the ranks state. An attention rank has one to
// all FFN ranks (MultiRankFfn); an FFN rank has one to the others (ffn/exchange_links.h).
//
// `start`, `start_result` and `assemble` belong to one thread; everything else may be asked by any thread
// once started.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "afd/remote_ffn.h"
#include "moe/expert_dispatcher.h"

namespace tandem {

class RankLinks {
 public:
  // Begins to connect to options.addresses[r] for every rank r; `except`: a rank that gets no connection,
  // which is this process.
  Status start(const RemoteFfnOptions& options, std::optional<uint32_t> except = std::nullopt);

  // Nothing yet; a value: all are there; an error that another try cannot mend.
  std::optional<Status> start_result() const;
  // "FFN rank 1 at tcp://...: connection refused; FFN rank 2 ...": who is missing, and why.
  std::string waiting_for() const;
  // Blocks until all are there. deadline_exceeded or cancelled, naming who is missing.
  Status wait(const RemoteFfnOptions& options) const;

  // The dispatcher over the map of all ranks; `own`: what this process holds itself. All links are there.
  Result<ExpertDispatcher> assemble(const SplitSettings& settings,
                                    std::optional<FfnRankFacts> own = std::nullopt) const;

  size_t size() const { return links_.size(); }  // ranks, the excepted one included
  bool has(size_t rank) const { return links_[rank] != nullptr; }
  RemoteFfn& operator[](size_t rank) { return *links_[rank]; }
  const RemoteFfn& operator[](size_t rank) const { return *links_[rank]; }

  std::vector<FfnRankFacts> peers() const;
  // The first rank that cannot be used now, by name.
  Status health() const;
  RemoteFfnStats stats() const;  // summed over ranks
  // Ends all connections: nobody writes any request's `out` afterwards.
  void close() { links_.clear(); }

 private:
  std::vector<std::unique_ptr<RemoteFfn>> links_;  // by rank
};

}  // namespace tandem
