#include "serving/scripted_engine.h"

#include <algorithm>
#include <utility>

namespace tandem {

using namespace std::chrono_literals;

namespace {
constexpr uint32_t kTokensPerBlock = 16;
}

ScriptedEngine::ScriptedEngine(ScriptedEngineOptions options) : options_(std::move(options)) {
  thread_ = std::thread([this] { run(); });
}

ScriptedEngine::~ScriptedEngine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Result<RequestId> ScriptedEngine::submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) {
  const EngineLimits& limits = options_.limits;
  const auto refuse = [](std::string message) {
    return make_error(ErrorCode::invalid_argument, std::move(message));
  };
  const size_t prompt = request.prompt.size();
  if (prompt == 0) return refuse("prompt: it has no tokens");
  if (prompt >= limits.max_context_tokens || prompt > limits.kv_pool_tokens) {
    return refuse("prompt: " + std::to_string(prompt) + " tokens do not fit");
  }
  for (const int32_t id : request.prompt) {
    if (id < 0 || static_cast<uint32_t>(id) >= limits.vocab_size)
      return refuse("prompt: token id " + std::to_string(id));
  }
  if (request.sampling.min_tokens > request.sampling.max_tokens)
    return refuse("min_tokens is above max_tokens");
  const std::lock_guard lock(mutex_);
  if (!health_) return std::unexpected(health_.error());
  if (waiting_.size() >= limits.max_queue)
    return make_error(ErrorCode::resource_exhausted, "the queue is full");
  const RequestId id = next_id_++;
  requests_.push_back(request);
  std::vector<int32_t> tokens = options_.script(request);
  waiting_.push_back({id, std::move(request), std::move(sink), std::move(tokens)});
  changed_.notify_all();
  return id;
}

void ScriptedEngine::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  for (auto* queue : {&waiting_, &running_}) {
    for (Sequence& sequence : *queue) {
      if (sequence.id != id) continue;
      sequence.cancelled = true;
      ++cancels_;
      changed_.notify_all();
      return;
    }
  }
  ++late_cancels_;
}

uint32_t ScriptedEngine::blocks(const Sequence& sequence) {
  const auto tokens = static_cast<uint32_t>(sequence.request.prompt.size()) + sequence.generated;
  return (tokens + kTokensPerBlock - 1) / kTokensPerBlock;
}

EngineStats ScriptedEngine::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.waiting = static_cast<uint32_t>(waiting_.size());
  stats.running = static_cast<uint32_t>(running_.size());
  stats.kv_blocks_total = options_.limits.kv_pool_tokens / kTokensPerBlock;
  for (const Sequence& sequence : running_) stats.kv_blocks_used += blocks(sequence);
  return stats;
}

Status ScriptedEngine::health() const {
  const std::lock_guard lock(mutex_);
  return health_;
}

void ScriptedEngine::step(int count) {
  std::unique_lock lock(mutex_);
  steps_allowed_ += static_cast<uint64_t>(count);
  changed_.notify_all();
  changed_.wait(lock, [&] { return steps_done_ == steps_allowed_; });
}

void ScriptedEngine::lose_peer(const Error& error) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !in_step_; });
  health_ = std::unexpected(error);
  std::deque<Sequence> all = std::exchange(waiting_, {});
  for (Sequence& sequence : std::exchange(running_, {})) all.push_back(std::move(sequence));
  for (Sequence& sequence : all) {
    ++stats_.failed;
    finish(std::move(sequence), {.reason = FinishReason::error, .error = error}, lock);
  }
  changed_.notify_all();
}

void ScriptedEngine::heal() {
  const std::lock_guard lock(mutex_);
  health_ = {};
}

std::vector<GenerationRequest> ScriptedEngine::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}
int ScriptedEngine::cancels() const {
  const std::lock_guard lock(mutex_);
  return cancels_;
}
int ScriptedEngine::late_cancels() const {
  const std::lock_guard lock(mutex_);
  return late_cancels_;
}

bool ScriptedEngine::wait_idle() const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, 30s, [&] { return waiting_.empty() && running_.empty() && !in_step_; });
}

void ScriptedEngine::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] {
      const bool work = !waiting_.empty() || !running_.empty();
      return stopping_ || (options_.free_running ? work : steps_done_ < steps_allowed_);
    });
    if (stopping_) break;
    in_step_ = true;
    one_step(lock);
    in_step_ = false;
    ++steps_done_;
    if (options_.free_running) steps_allowed_ = steps_done_;
    changed_.notify_all();
  }
  std::deque<Sequence> all = std::exchange(waiting_, {});
  for (Sequence& sequence : std::exchange(running_, {})) all.push_back(std::move(sequence));
  for (Sequence& sequence : all)
    finish(std::move(sequence), {.reason = FinishReason::cancelled, .error = {}}, lock);
}

void ScriptedEngine::finish(Sequence sequence, Finish end, std::unique_lock<std::mutex>& lock) {
  end.prompt_tokens = static_cast<uint32_t>(sequence.request.prompt.size());
  end.completion_tokens = sequence.generated;
  lock.unlock();
  sequence.sink->on_finish(end);
  sequence.sink.reset();
  lock.lock();
}

void ScriptedEngine::score_prompt(Sequence& sequence, std::unique_lock<std::mutex>& lock) {
  if (std::exchange(sequence.scored, true) || sequence.request.sampling.prompt_logprobs < 0) return;
  const std::vector<int32_t>& prompt = sequence.request.prompt;
  const auto top = static_cast<uint32_t>(sequence.request.sampling.prompt_logprobs);
  lock.unlock();
  for (uint32_t position = 1; position < prompt.size(); ++position) {
    TokenEvent event{.token = prompt[position],
                     .logprob = -1.0f - static_cast<float>(position) / 8,
                     .top_logprobs = {},
                     .index = position,
                     .rank = 2};
    for (uint32_t i = 0; i < top; ++i)
      event.top_logprobs.push_back({static_cast<int32_t>(i), -0.5f - static_cast<float>(i)});
    sequence.sink->on_prompt_token(event);
  }
  lock.lock();
}

void ScriptedEngine::one_step(std::unique_lock<std::mutex>& lock) {
  ++stats_.steps;
  for (auto* queue : {&waiting_, &running_}) {
    for (size_t i = 0; i < queue->size();) {
      if (!(*queue)[i].cancelled) {
        ++i;
        continue;
      }
      Sequence sequence = std::move((*queue)[i]);
      queue->erase(queue->begin() + static_cast<std::ptrdiff_t>(i));
      ++stats_.cancelled;
      finish(std::move(sequence), {.reason = FinishReason::cancelled, .error = {}}, lock);
      i = 0;  // the queue may have changed meanwhile
    }
  }
  while (!waiting_.empty() && running_.size() < options_.limits.max_num_seqs) {
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  std::vector<RequestId> ids;
  ids.reserve(running_.size());
  for (const Sequence& sequence : running_) ids.push_back(sequence.id);
  for (const RequestId id : ids) {
    const auto find = [&] {
      return std::find_if(running_.begin(), running_.end(),
                          [&](const Sequence& each) { return each.id == id; });
    };
    score_prompt(*find(), lock);
    Sequence& sequence = *find();
    const auto end = [&](FinishReason reason) {
      const auto at = find();
      Sequence done = std::move(*at);
      running_.erase(at);
      ++stats_.finished;
      finish(std::move(done), {.reason = reason, .error = {}}, lock);
    };
    if (sequence.request.sampling.max_tokens == 0) {
      end(FinishReason::length);
      continue;
    }
    const SamplingParams& sampling = sequence.request.sampling;
    const int32_t eos = options_.eos_token_ids.empty() ? 0 : options_.eos_token_ids[0];
    TokenEvent event;
    event.index = sequence.generated;
    event.token = sequence.generated < sequence.tokens.size() ? sequence.tokens[sequence.generated] : eos;
    if (sampling.top_logprobs >= 0) {
      event.logprob = -0.5f;
      event.rank = 1;
      for (int32_t i = 0; i < sampling.top_logprobs; ++i) {
        event.top_logprobs.push_back({(event.token + i) % 256, i == 0 ? -0.5f : -9999.0f});
      }
    }
    ++sequence.generated;
    ++stats_.generated_tokens;
    const auto is_in = [&](const std::vector<int32_t>& list) {
      return std::find(list.begin(), list.end(), event.token) != list.end();
    };
    const bool stop =
        (!sampling.ignore_eos && is_in(options_.eos_token_ids)) || is_in(sampling.stop_token_ids);
    const bool length =
        sequence.generated >= sampling.max_tokens ||
        sequence.request.prompt.size() + sequence.generated >= options_.limits.max_context_tokens;
    const auto sink = sequence.sink;
    lock.unlock();
    sink->on_token(event);
    lock.lock();
    if (stop || length) end(stop ? FinishReason::stop : FinishReason::length);
  }
}

}  // namespace tandem
