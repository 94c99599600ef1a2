#include "serving/balanced_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "attention/request_check.h"
#include "serving/rank_choice.h"

namespace tandem {
namespace {

// What this front has open on a rank. Shared with sinks.
struct OpenWork {
  std::atomic<uint64_t> tokens{0};
  std::atomic<uint32_t> requests{0};
  std::atomic<bool> lost{false};  // a request ended because the rank was lost: what it had cached is gone
};

class CountingSink final : public GenerationSink {
 public:
  CountingSink(std::shared_ptr<GenerationSink> sink, std::shared_ptr<OpenWork> work, uint64_t prompt_tokens)
      : sink_(std::move(sink)), work_(std::move(work)), tokens_(prompt_tokens) {
    work_->tokens += tokens_;
    ++work_->requests;
  }
  ~CountingSink() override { leave(); }
  void on_token(const TokenEvent& event) override {
    ++tokens_;
    ++work_->tokens;
    sink_->on_token(event);
  }
  void on_prompt_token(const TokenEvent& event) override { sink_->on_prompt_token(event); }
  void on_finish(const Finish& finish) override {
    if (finish.reason == FinishReason::error && finish.error.code == ErrorCode::unavailable)
      work_->lost = true;
    leave();
    sink_->on_finish(finish);
  }

 private:
  void leave() {  // once: at the end, or when the engine did not take it
    if (std::exchange(left_, true)) return;
    work_->tokens -= tokens_;
    --work_->requests;
  }
  const std::shared_ptr<GenerationSink> sink_;
  const std::shared_ptr<OpenWork> work_;
  uint64_t tokens_;
  bool left_ = false;
};

EngineLimits smallest(const std::vector<BalancedEngine::Rank>& ranks) {
  EngineLimits limits = ranks.front().engine->limits();
  for (const BalancedEngine::Rank& rank : ranks) {
    const EngineLimits& other = rank.engine->limits();
    limits.max_context_tokens = std::min(limits.max_context_tokens, other.max_context_tokens);
    limits.kv_pool_tokens = std::min(limits.kv_pool_tokens, other.kv_pool_tokens);
    limits.vocab_size = std::min(limits.vocab_size, other.vocab_size);
    limits.max_num_seqs = std::min(limits.max_num_seqs, other.max_num_seqs);
    limits.max_queue = std::min(limits.max_queue, other.max_queue);
  }
  return limits;
}

bool is_for_another_rank(const Error& error) {
  return error.code == ErrorCode::unavailable || error.code == ErrorCode::resource_exhausted;
}

}  // namespace

struct BalancedEngine::Impl {
  struct State {
    std::shared_ptr<OpenWork> work = std::make_shared<OpenWork>();
    PrefixIndex prefixes;
    uint64_t last_chosen = 0;
  };

  std::vector<Rank> ranks;
  EngineLimits limits;
  std::mutex mutex;  // for the next two
  std::vector<State> states;
  uint64_t chosen = 0;

  RankLoad load(size_t index, std::span<const uint64_t> hashes) {
    const Rank& rank = ranks[index];
    State& state = states[index];
    const EngineStats stats = rank.engine->stats();
    const EngineLimits& own = rank.engine->limits();
    RankLoad load;
    load.ready = rank.engine->health().has_value();
    if (!load.ready || state.work->lost.exchange(false)) state.prefixes.clear();
    load.queue_full = stats.waiting >= own.max_queue;
    load.shared_prefix_tokens = state.prefixes.longest(hashes);
    load.kv_pool_tokens = own.kv_pool_tokens;
    if (stats.kv_blocks_total > 0)
      load.kv_used_tokens = uint64_t{own.kv_pool_tokens} * stats.kv_blocks_used / stats.kv_blocks_total;
    load.open_tokens = state.work->tokens;
    load.open_requests = state.work->requests;
    load.last_chosen = state.last_chosen;
    return load;
  }
};

BalancedEngine::BalancedEngine(std::vector<Rank> ranks) : impl_(std::make_unique<Impl>()) {
  impl_->limits = smallest(ranks);
  impl_->states.resize(ranks.size());
  impl_->ranks = std::move(ranks);
}
BalancedEngine::~BalancedEngine() = default;

const EngineLimits& BalancedEngine::limits() const {
  return impl_->limits;
}

Result<RequestId> BalancedEngine::submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) {
  TANDEM_TRY(check_request(request, impl_->limits));  // the same on every rank
  const size_t count = impl_->ranks.size();
  const std::vector<uint64_t> hashes = prefix_hashes(request.prompt, request.cache_salt);
  // What is computed anew wherever it goes is drawn nowhere.
  const bool reads = !request.bypass_prefix_cache && request.sampling.prompt_logprobs < 0;
  const std::span<const uint64_t> sought =
      reads ? std::span<const uint64_t>(hashes) : std::span<const uint64_t>();
  std::vector<bool> refused(count, false);
  bool any_full = false;
  while (true) {
    size_t index = 0;
    std::shared_ptr<GenerationSink> counting;
    {
      const std::lock_guard lock(impl_->mutex);
      std::vector<RankLoad> loads;
      for (size_t i = 0; i < count; ++i) {
        loads.push_back(impl_->load(i, sought));
        any_full = any_full || (loads[i].ready && loads[i].queue_full);
        if (refused[i]) loads[i].ready = false;
      }
      const auto best = choose_rank(loads);
      if (!best) break;
      index = *best;
      Impl::State& state = impl_->states[index];
      state.last_chosen = ++impl_->chosen;
      state.prefixes.add(hashes);
      counting = std::make_shared<CountingSink>(sink, state.work, request.prompt.size());
    }
    const auto id = impl_->ranks[index].engine->submit(request, std::move(counting));
    if (id) return *id * count + index;  // says where it went: cancel needs no table
    if (!is_for_another_rank(id.error())) return std::unexpected(id.error());
    any_full = any_full || id.error().code == ErrorCode::resource_exhausted;
    refused[index] = true;
  }
  if (any_full) {
    return make_error(
        ErrorCode::resource_exhausted,
        fmt::format("the queues of all attention ranks that serve are full (of {} ranks); try again "
                    "later",
                    count));
  }
  const Status state = health();
  if (!state) return std::unexpected(state.error());
  return make_error(ErrorCode::unavailable,
                    "no attention rank took the request; try again");  // it came back just now
}

void BalancedEngine::cancel(RequestId id) {
  const size_t count = impl_->ranks.size();
  impl_->ranks[id % count].engine->cancel(id / count);
}

EngineStats BalancedEngine::stats() const {
  EngineStats sum;
  for (const Rank& rank : impl_->ranks) sum.add(rank.engine->stats());
  return sum;
}

Status BalancedEngine::health() const {
  std::string reasons;
  for (const Rank& rank : impl_->ranks) {
    const Status status = rank.engine->health();
    if (status) return {};
    reasons += (reasons.empty() ? "" : "; ") + status.error().message;
  }
  return make_error(ErrorCode::unavailable, "no attention rank serves: " + reasons);
}

std::vector<EngineRank> BalancedEngine::ranks() const {
  std::vector<EngineRank> list;
  for (uint32_t i = 0; i < impl_->ranks.size(); ++i) {
    const Rank& rank = impl_->ranks[i];
    list.push_back({i, rank.name, rank.engine->health(), rank.engine->stats()});
  }
  return list;
}

}  // namespace tandem
