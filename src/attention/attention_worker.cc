#include "attention/attention_worker.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "attention/request_check.h"
#include "attention/step_builder.h"
#include "base/log.h"

namespace tandem {
namespace {

// How long the worker sleeps when nothing wakes it: the time in which it notices a peer that was lost while
// idle.
constexpr int kIdleMilliseconds = 100;

// FNV-1a over 32-bit words: enough to tell whether two runs had the same bits, and cheap beside a step.
uint64_t hash_logits(uint64_t hash, std::span<const float> logits) {
  if (hash == 0) hash = 0xcbf29ce484222325ULL;
  for (float logit : logits) hash = (hash ^ std::bit_cast<uint32_t>(logit)) * 0x100000001b3ULL;
  return hash;
}

bool peer_is_lost(const Error& error) {
  return error.code == ErrorCode::unavailable || error.code == ErrorCode::deadline_exceeded;
}

}  // namespace

struct AttentionWorker::Impl {
  // One lane with what its step in work is made of.
  struct LaneWork {
    std::unique_ptr<Lane> lane;
    RowClass row_class = RowClass::decode;
    StepBuilder builder{0};
    std::vector<StepPart> parts;
  };
  struct Submission {
    RequestId id = 0;
    GenerationRequest request;
    std::shared_ptr<GenerationSink> sink;
  };

  AttentionWorkerOptions options;
  EngineLimits limits;
  BlockPool pool;
  FfnPort* port = nullptr;
  Executor executor;
  Scheduler scheduler;
  LaneWork decode, prefill;
  Sampler sampler;
  std::vector<int32_t> never;
  StepId next_step = 1;

  // Shared with callers.
  mutable std::mutex mutex;
  std::vector<Submission> submissions;
  std::vector<RequestId> cancellations;
  EngineStats stats;
  Status health_now;
  RequestId next_id = 1;
  std::random_device entropy;

  int wake_fd = -1;
  std::atomic<bool> stop{false};
  std::thread thread;

  Impl(const AttentionWorkerOptions& worker_options, BlockPool block_pool, KernelRunner& kernels,
       FfnPort& ffn_port)
      : options(worker_options),
        pool(std::move(block_pool)),
        port(&ffn_port),
        executor(kernels, ffn_port),
        scheduler(worker_options.scheduler, pool) {}

  ~Impl() {
    if (wake_fd >= 0) ::close(wake_fd);
  }

  void wake() const {
    const uint64_t one = 1;
    // A full counter wakes as well; nothing else can fail here.
    [[maybe_unused]] const ssize_t written = ::write(wake_fd, &one, sizeof(one));
  }

  // ---- worker thread ----

  void loop() {
    pthread_setname_np(pthread_self(), "tandem-attn");
    while (!stop.load()) {
      take_inbox();
      check_peer();
      executor.poll();
      bool progress = step(decode);
      progress = step(prefill) || progress;
      publish_stats();
      if (!progress) sleep();
    }
    const Error stopping{ErrorCode::unavailable, "the server is stopping"};
    {
      std::lock_guard lock(mutex);
      health_now = std::unexpected(stopping);  // nothing is taken in any more
    }
    take_inbox();
    end_all(stopping, FinishReason::cancelled);
    publish_stats();
  }

  void take_inbox() {
    std::vector<Submission> arrived;
    std::vector<RequestId> cancelled;
    {
      std::lock_guard lock(mutex);
      arrived.swap(submissions);
      cancelled.swap(cancellations);
    }
    for (Submission& submission : arrived) {
      auto sequence =
          std::make_unique<Sequence>(submission.id, std::move(submission.request), std::move(submission.sink),
                                     pool, options.max_context_tokens);
      const SamplingParams& sampling = sequence->request.sampling;
      sequence->seed = sampling.seed.value_or(random_seed());
      if (sampling.repetition_penalty != 1.0f) {
        for (int32_t token : sequence->tokens) ++sequence->history.prompt[token];
      }
      scheduler.add(std::move(sequence));
    }
    for (RequestId id : cancelled) {
      Sequence* sequence = scheduler.find(id);
      if (sequence == nullptr) continue;  // ended meanwhile
      sequence->is_cancelled = true;
      if (!sequence->in_step) finish(*sequence, FinishReason::cancelled, {});
    }
  }

  uint64_t random_seed() { return (uint64_t{entropy()} << 32) | entropy(); }

  void check_peer() {
    Status health = port->health();
    const bool lost = !health.has_value();
    if (lost && (scheduler.num_running() > 0 || scheduler.num_waiting() > 0))
      end_all(health.error(), FinishReason::error);
    std::lock_guard lock(mutex);
    health_now = std::move(health);
  }

  // Starts a step where the lane is free and there is work, and runs it as far as it goes. False: nothing to
  // do now.
  bool step(LaneWork& work) {
    if (!work.lane->active() && !start(work)) return false;
    const Advance advance = executor.advance(*work.lane);
    switch (advance.state) {
      case AdvanceState::waiting:
        return false;
      case AdvanceState::done:
        finish_step(work);
        return true;
      case AdvanceState::failed:
        fail_step(work, advance.error);
        return true;
    }
    return false;
  }

  bool start(LaneWork& work) {
    if (work.row_class == RowClass::decode) {
      std::vector<Sequence*> out_of_blocks;
      work.parts = scheduler.plan_decode(out_of_blocks);
      for (Sequence* sequence : out_of_blocks) finish(*sequence, FinishReason::length, {});
    } else {
      work.parts = scheduler.plan_prefill();
    }
    if (work.parts.empty()) return false;
    const StepBatch batch =
        work.builder.build(work.parts, next_step++, work.row_class, now() + options.ffn_deadline);
    const Status started = executor.start(*work.lane, batch);
    if (!started) {
      fail_step(work, started.error());
      return true;
    }
    return true;
  }

  void finish_step(LaneWork& work) {
    const StepStats& step_stats = work.lane->stats();
    {
      std::lock_guard lock(mutex);
      ++stats.steps;
      stats.ffn_submits += step_stats.submits;
      stats.ffn_wait_seconds += std::chrono::duration<double>(step_stats.waited).count();
      stats.step_seconds += std::chrono::duration<double>(step_stats.elapsed).count();
    }
    uint32_t logit_row = 0;
    for (const StepPart& part : work.parts) {
      const bool samples = part.samples();
      scheduler.finish_part(part);
      if (part.sequence->is_cancelled) {
        finish(*part.sequence, FinishReason::cancelled, {});
      } else if (samples) {
        sample(*part.sequence, work.lane->logits(logit_row));
      }
      if (samples) ++logit_row;
    }
    work.parts.clear();
  }

  void sample(Sequence& sequence, std::span<const float> logits) {
    const SamplingParams& sampling = sequence.request.sampling;
    if (sequence.request.hash_logits) sequence.logits_hash = hash_logits(sequence.logits_hash, logits);
    never.clear();
    if (sequence.generated() < sampling.min_tokens) {
      never.insert(never.end(), options.eos_token_ids.begin(), options.eos_token_ids.end());
      never.insert(never.end(), sampling.stop_token_ids.begin(), sampling.stop_token_ids.end());
    }
    auto event =
        sampler.sample(logits, sampling, sequence.seed, sequence.history, never, sequence.generated());
    if (!event) {
      finish(sequence, FinishReason::error, event.error());
      return;
    }
    const int32_t token = event->token;
    sequence.tokens.push_back(token);
    ++sequence.history.generated[token];
    sequence.sink->on_token(*event);

    const auto is_one_of = [token](const std::vector<int32_t>& ids) {
      return std::find(ids.begin(), ids.end(), token) != ids.end();
    };
    if ((!sampling.ignore_eos && is_one_of(options.eos_token_ids)) || is_one_of(sampling.stop_token_ids)) {
      finish(sequence, FinishReason::stop, {});
    } else if (sequence.generated() >= sampling.max_tokens ||
               sequence.tokens.size() >= options.max_context_tokens) {
      finish(sequence, FinishReason::length, {});
    } else if (now() >= sequence.request.deadline) {
      finish(sequence, FinishReason::error,
             {ErrorCode::deadline_exceeded, "the request's deadline has passed"});
    }
  }

  void fail_step(LaneWork& work, const Error& error) {
    for (const StepPart& part : work.parts) scheduler.drop_part(part);
    if (peer_is_lost(error)) {
      end_all(error, FinishReason::error);
      return;
    }
    log_error("a step failed: " + error.message);
    for (const StepPart& part : std::exchange(work.parts, {}))
      finish(*part.sequence, FinishReason::error, error);
  }

  // Ends every request. Steps in work are cancelled first: nobody writes into blocks that are given back.
  void end_all(const Error& error, FinishReason reason) {
    for (LaneWork* work : {&decode, &prefill}) {
      executor.cancel(*work->lane);
      for (const StepPart& part : work->parts) scheduler.drop_part(part);
      work->parts.clear();
    }
    std::vector<Sequence*> all;
    scheduler.for_each([&](Sequence& sequence) { all.push_back(&sequence); });
    for (Sequence* sequence : all) finish(*sequence, reason, error);
  }

  void finish(Sequence& sequence, FinishReason reason, const Error& error) {
    const std::unique_ptr<Sequence> ended = scheduler.remove(sequence);
    Finish finish;
    finish.reason = reason;
    finish.error = error;
    finish.prompt_tokens = ended->prompt_tokens;
    finish.completion_tokens = ended->generated();
    finish.logits_hash = ended->logits_hash;
    ended->state.clear();
    {
      std::lock_guard lock(mutex);
      stats.prompt_tokens += ended->prompt_tokens;
      stats.generated_tokens += ended->generated();
      ++(reason == FinishReason::cancelled ? stats.cancelled
         : reason == FinishReason::error   ? stats.failed
                                           : stats.finished);
    }
    publish_stats();  // before the listener can look: an ended request holds nothing
    ended->sink->on_finish(finish);
  }

  void publish_stats() {
    std::lock_guard lock(mutex);
    stats.waiting = static_cast<uint32_t>(scheduler.num_waiting() + submissions.size());
    stats.running = static_cast<uint32_t>(scheduler.num_running());
    stats.kv_blocks_total = pool.num_blocks();
    stats.kv_blocks_used = pool.num_blocks() - pool.free_blocks();
    stats.preempted = scheduler.num_preempted();
  }

  void sleep() {
    const bool waits = decode.lane->active() || prefill.lane->active();
    // A port without a descriptor has its completions at once: it cannot be what we wait for.
    pollfd fds[2] = {{wake_fd, POLLIN, 0}, {port->wait_fd(), POLLIN, 0}};
    ::poll(fds, waits && fds[1].fd >= 0 ? 2 : 1, kIdleMilliseconds);
    if ((fds[0].revents & POLLIN) != 0) {
      uint64_t count = 0;
      [[maybe_unused]] const ssize_t got = ::read(wake_fd, &count, sizeof(count));
    }
  }
};

AttentionWorker::AttentionWorker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  impl_->thread = std::thread([this] { impl_->loop(); });
}

AttentionWorker::~AttentionWorker() {
  impl_->stop.store(true);
  impl_->wake();
  impl_->thread.join();
}

Result<std::unique_ptr<AttentionWorker>> AttentionWorker::create(const AttentionWorkerOptions& options,
                                                                 BlockPool pool, AttentionPrograms programs,
                                                                 KernelRunner& kernels, FfnPort& port) {
  auto impl = std::make_unique<Impl>(options, std::move(pool), kernels, port);
  if (programs.decode->shape().capacity < options.scheduler.max_num_seqs ||
      programs.prefill->shape().capacity < options.scheduler.max_num_batched_tokens) {
    return make_error(ErrorCode::internal, "the programs are smaller than the scheduler's limits");
  }
  impl->wake_fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (impl->wake_fd < 0)
    return make_error(ErrorCode::resource_exhausted, std::string("eventfd: ") + std::strerror(errno));
  impl->limits.max_context_tokens = options.max_context_tokens;
  impl->limits.kv_pool_tokens = impl->pool.num_blocks() * impl->pool.spec().tokens_per_block;
  impl->limits.vocab_size = options.vocab_size;
  impl->limits.max_num_seqs = options.scheduler.max_num_seqs;
  impl->limits.max_queue = options.max_queue;
  impl->decode.row_class = RowClass::decode;
  impl->decode.builder = StepBuilder(options.scheduler.max_num_seqs);
  TANDEM_ASSIGN(impl->decode.lane, impl->executor.create_lane(std::move(programs.decode), 0));
  impl->prefill.row_class = RowClass::prefill;
  impl->prefill.builder = StepBuilder(options.scheduler.max_num_batched_tokens);
  TANDEM_ASSIGN(impl->prefill.lane, impl->executor.create_lane(std::move(programs.prefill), 1));
  impl->publish_stats();
  return std::unique_ptr<AttentionWorker>(new AttentionWorker(std::move(impl)));
}

const EngineLimits& AttentionWorker::limits() const {
  return impl_->limits;
}

Result<RequestId> AttentionWorker::submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) {
  const EngineLimits& limits = impl_->limits;
  TANDEM_TRY(check_request(request, limits));
  RequestId id = 0;
  {
    std::lock_guard lock(impl_->mutex);
    if (!impl_->health_now) return std::unexpected(impl_->health_now.error());
    if (impl_->stats.waiting >= limits.max_queue) return queue_is_full(limits);
    id = impl_->next_id++;
    ++impl_->stats.waiting;
    impl_->submissions.push_back({id, std::move(request), std::move(sink)});
  }
  impl_->wake();
  return id;
}

void AttentionWorker::cancel(RequestId id) {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->cancellations.push_back(id);
  }
  impl_->wake();
}

EngineStats AttentionWorker::stats() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

Status AttentionWorker::health() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->health_now;
}

}  // namespace tandem
