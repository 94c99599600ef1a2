#include "moe/local_ffn.h"

#include <algorithm>

#include "base/trace_ring.h"

namespace tandem {

LocalFfn::LocalFfn(MoeBlock& block) : block_(block) {
  const MoeBlockOptions& options = block.options();
  traits_.routes = options.routes;
  traits_.wants_token_ids = options.routes && block.shape().num_hash_layers != 0;
  traits_.runs_shared_experts = options.runs_shared_experts;
  traits_.activation_dtype = value_dtype(options.activation_format, options.compute_dtype);
  traits_.activation_format = options.activation_format;
  traits_.reply_dtype = options.reply_dtype;
  traits_.sum_mode = options.sum_mode;
}

Result<Ticket> LocalFfn::submit(const FfnRequest& request) {
  const Instant start = now();
  MoeRequest work;
  work.layer = request.layer;
  work.rows = request.rows;
  work.in = request.in;
  work.routing = request.routing;
  work.out = request.out;
  Completion completion;
  completion.ticket = next_ticket_++;
  if (request.rows > 0) completion.status = block_.run(work);
  const Instant end = now();
  completion.times.compute_us = completion.times.residence_us = microseconds_since(start, end);
  completion.last = {.rank = kTraceLocal, .arrived = end, .times = completion.times};
  finished_.push_back(std::move(completion));
  return finished_.back().ticket;
}

size_t LocalFfn::poll(std::span<Completion> out) {
  const size_t count = std::min(out.size(), finished_.size());
  std::move(finished_.begin(), finished_.begin() + static_cast<std::ptrdiff_t>(count), out.begin());
  finished_.erase(finished_.begin(), finished_.begin() + static_cast<std::ptrdiff_t>(count));
  return count;
}

void LocalFfn::cancel(Ticket ticket) {
  std::erase_if(finished_, [ticket](const Completion& completion) { return completion.ticket == ticket; });
}

}  // namespace tandem
