#include "attention/attention_worker.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "attention/attention_worker_impl.h"
#include "attention/request_check.h"
#include "base/log.h"

namespace tandem {
namespace {

// How long the worker sleeps when nothing wakes it: the time in which it notices a peer that was lost while
// idle.
constexpr int kIdleMilliseconds = 100;

// FNV-1a over 32-bit words: enough to tell whether two runs had the same bits, and cheap beside a step. Four
// chains, each over every fourth logit: one alone waits for its own multiplication, 0.2 ms for each token of
// a vocabulary of 151,936.
uint64_t hash_logits(uint64_t hash, std::span<const float> logits) {
  constexpr uint64_t kPrime = 0x100000001b3ULL;
  std::array<uint64_t, 4> chains;
  chains.fill(hash == 0 ? 0xcbf29ce484222325ULL : hash);
  size_t i = 0;
  for (; i + chains.size() <= logits.size(); i += chains.size()) {
    for (size_t c = 0; c < chains.size(); ++c) {
      chains[c] = (chains[c] ^ std::bit_cast<uint32_t>(logits[i + c])) * kPrime;
    }
  }
  for (; i < logits.size(); ++i) chains[0] = (chains[0] ^ std::bit_cast<uint32_t>(logits[i])) * kPrime;
  for (size_t c = 1; c < chains.size(); ++c) chains[0] = (chains[0] ^ chains[c]) * kPrime;
  return chains[0];
}

}  // namespace

AttentionWorker::Impl::~Impl() {
  if (wake_fd >= 0) ::close(wake_fd);
}

void AttentionWorker::Impl::wake() const {
  const uint64_t one = 1;
  // A full counter wakes as well; nothing else can fail here.
  [[maybe_unused]] const ssize_t written = ::write(wake_fd, &one, sizeof(one));
}

void AttentionWorker::Impl::loop() {
  pthread_setname_np(pthread_self(), "tandem-attn");
  if (options.on_start) options.on_start();
  Instant looked = now();
  while (!stop.load()) {
    const Instant began = now();
    const bool traced = options.trace != nullptr && options.trace->turn();
    if (!traced) looked = began;
    take_inbox();
    check_peer();
    end_overdue();
    executor.poll();
    const Instant polled = now();
    start_streams();
    const bool progress = run_lanes();
    const Instant ran = now();
    publish_stats();
    loop_host += polled - began + (now() - ran);
    tend_prefix_file();
    if (traced) {
      const Instant done = now();
      trace_loop(TraceKind::loop, looked, done);
      looked = done;
    }
    if (progress) continue;
    sleep();
    if (traced) {
      const Instant woken = now();
      trace_loop(TraceKind::sleep, looked, woken);
      looked = woken;
    }
  }
  const Error stopping{ErrorCode::unavailable, "the server is stopping"};
  {
    std::lock_guard lock(mutex);
    health_now = std::unexpected(stopping);  // nothing is taken in any more
  }
  take_inbox();
  end_all(stopping, FinishReason::cancelled);
  publish_stats();
  save_prefixes_to_file();
}

void AttentionWorker::Impl::take_inbox() {
  std::vector<Submission> arrived;
  std::vector<RequestId> cancelled;
  {
    std::lock_guard lock(mutex);
    arrived.swap(submissions);
    cancelled.swap(cancellations);
  }
  for (Submission& submission : arrived) {
    auto sequence = std::make_unique<Sequence>(submission.id, std::move(submission.request),
                                               std::move(submission.sink), pools, options.max_context_tokens);
    const SamplingParams& sampling = sequence->request.sampling;
    sequence->seed = sampling.seed.value_or(random_seed());
    sequence->form = std::move(submission.form);
    sequence->arrived = submission.arrived;
    if (sampling.repetition_penalty != 1.0f) {
      for (int32_t token : sequence->tokens) ++sequence->history.prompt[token];
    }
    first_deadline = std::min(first_deadline, sequence->limit());
    scheduler.add(std::move(sequence));
  }
  for (RequestId id : cancelled) {
    Sequence* sequence = scheduler.find(id);
    if (sequence == nullptr) continue;  // ended meanwhile
    sequence->is_cancelled = true;
    if (!sequence->in_step) finish(*sequence, FinishReason::cancelled, {});
  }
}

void AttentionWorker::Impl::note_scheduled(Sequence& sequence) {
  if (std::exchange(sequence.was_scheduled, true)) return;
  const std::lock_guard lock(mutex);
  stats.queue.observe(seconds_since(sequence.arrived));
}

void AttentionWorker::Impl::check_peer() {
  Status health = port->health();
  const bool lost = !health.has_value();
  if (lost && (scheduler.num_running() > 0 || scheduler.num_waiting() > 0))
    end_all(health.error(), FinishReason::error);
  std::lock_guard lock(mutex);
  health_now = std::move(health);
}

void AttentionWorker::Impl::end_overdue() {
  const Instant at = now();
  if (at < first_deadline) return;
  first_deadline = Instant::max();
  std::vector<Sequence*> overdue;
  scheduler.for_each([&](Sequence& sequence) {
    const bool is_over = sequence.limit() <= at && !sequence.in_step;
    if (is_over) overdue.push_back(&sequence);
    if (!is_over) first_deadline = std::min(first_deadline, sequence.limit());
  });
  for (Sequence* sequence : overdue) finish_overdue(*sequence);
}

void AttentionWorker::Impl::finish_overdue(Sequence& sequence) {
  {
    const std::lock_guard lock(mutex);
    ++stats.overdue;
  }
  const std::string seconds = fmt::format("{:.3g} s", seconds_since(sequence.arrived));
  const Error error =
      sequence.was_scheduled
          ? Error{ErrorCode::deadline_exceeded,
                  fmt::format("the request's time is over: it had {}, in which {} tokens were generated",
                              seconds, sequence.generated())}
          : Error{
                ErrorCode::resource_exhausted,
                fmt::format("the request has waited in the queue for {}, as long as it may: try again later",
                            seconds)};
  finish(sequence, FinishReason::error, error);
}

TokenBans AttentionWorker::Impl::bans_of(const SamplingParams& sampling, const AnswerForm& form,
                                         uint32_t index) {
  TokenBans bans;
  const bool may_end = index >= sampling.min_tokens;
  if (may_end && form.is_free()) return bans;
  ends.assign(options.eos_token_ids.begin(), options.eos_token_ids.end());
  ends.insert(ends.end(), sampling.stop_token_ids.begin(), sampling.stop_token_ids.end());
  if (!may_end) bans.never = ends;
  if (!form.is_free()) {
    // An end that does not end the answer has no place in its text.
    const size_t ignored = sampling.ignore_eos ? options.eos_token_ids.size() : 0;
    form.allowed(std::span(ends).subspan(ignored), allowed);
    bans.allowed = allowed;
  }
  return bans;
}

int32_t AttentionWorker::Impl::sample(Sequence& sequence, std::span<const float> logits) {
  const SamplingParams& sampling = sequence.request.sampling;
  if (sampling.max_tokens == 0) {
    finish(sequence, FinishReason::length, {});
    return -1;
  }
  if (sequence.request.hash_logits) sequence.logits_hash = hash_logits(sequence.logits_hash, logits);
  auto event = sampler.sample(logits, sampling, sequence.seed, sequence.history,
                              bans_of(sampling, sequence.form, sequence.generated()), sequence.generated());
  if (!event) {
    finish(sequence, FinishReason::error, event.error());
    return -1;
  }
  const int32_t token = event->token;
  sequence.tokens.push_back(token);
  ++num_generated;
  if (sampling.has_penalties()) ++sequence.history.generated[token];
  sequence.sink->on_token(*event);

  const auto is_one_of = [token](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  const bool ends_here =
      (!sampling.ignore_eos && is_one_of(options.eos_token_ids)) || is_one_of(sampling.stop_token_ids);
  if (!ends_here) sequence.form.advance(token);
  if (ends_here || sequence.form.must_end()) {
    finish(sequence, FinishReason::stop, {});
  } else if (sequence.generated() >= sampling.max_tokens ||
             sequence.tokens.size() >= options.max_context_tokens) {
    finish(sequence, FinishReason::length, {});
  } else if (now() >= sequence.request.deadline) {
    finish_overdue(sequence);
  } else {
    return token;
  }
  return -1;
}

void AttentionWorker::Impl::end_all(const Error& error, FinishReason reason) {
  for (StepStream& stream : streams) {
    drop(stream);
    for (StepLane& lane : stream.lanes) lane.parts.clear();
    stream.drafted_for.clear();
  }
  std::vector<Sequence*> all;
  scheduler.for_each([&](Sequence& sequence) { all.push_back(&sequence); });
  for (Sequence* sequence : all) finish(*sequence, reason, error);
}

void AttentionWorker::Impl::finish(Sequence& sequence, FinishReason reason, const Error& error) {
  const std::unique_ptr<Sequence> ended = scheduler.remove(sequence);
  Finish finish;
  finish.reason = reason;
  finish.error = error;
  finish.prompt_tokens = ended->prompt_tokens;
  finish.cached_tokens = ended->cached_tokens.value_or(0);
  finish.completion_tokens = ended->generated();
  finish.logits_hash = ended->logits_hash;
  {
    std::lock_guard lock(mutex);
    stats.prompt_tokens += ended->prompt_tokens;
    ++(reason == FinishReason::cancelled ? stats.cancelled
       : reason == FinishReason::error   ? stats.failed
                                         : stats.finished);
    // At once, and before the listener can look: a request runs or has ended, and one that has holds nothing.
    update_stats();
  }
  ended->sink->on_finish(finish);
}

void AttentionWorker::Impl::publish_stats() {
  const std::lock_guard lock(mutex);
  update_stats();
}

void AttentionWorker::Impl::update_stats() {
  stats.waiting = static_cast<uint32_t>(scheduler.num_waiting() + submissions.size());
  stats.running = static_cast<uint32_t>(scheduler.num_running());
  const BlockPool& pool = pools.fullest_by_design();
  stats.kv_blocks_total = pool.num_blocks();
  stats.kv_blocks_used = pool.num_blocks() - pool.free_blocks();
  stats.generated_tokens = num_generated;
  stats.preempted = scheduler.num_preempted();
  stats.prefix = {scheduler.queried_tokens(), scheduler.hit_tokens(), pool.kept_blocks()};
  stats.decode_lanes = num_decode_lanes;
  stats.speculation.tokens = drafts.tokens();
}

void AttentionWorker::Impl::trace_loop(TraceKind kind, Instant begin, Instant end) {
  options.trace->add({.begin_ns = trace_time(begin), .end_ns = trace_time(end), .kind = kind});
}

void AttentionWorker::Impl::sleep() {
  const bool waits = std::ranges::any_of(streams, [](const StepStream& stream) { return stream.busy(); });
  // A port without a descriptor has its completions at once: it cannot be what we wait for.
  pollfd fds[2] = {{wake_fd, POLLIN, 0}, {port->wait_fd(), POLLIN, 0}};
  ::poll(fds, waits && fds[1].fd >= 0 ? 2 : 1, copies_prefixes ? 0 : kIdleMilliseconds);
  if ((fds[0].revents & POLLIN) != 0) {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_fd, &count, sizeof(count));
  }
}

AttentionWorker::AttentionWorker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {
  impl_->thread = std::thread([this] { impl_->loop(); });
}

AttentionWorker::~AttentionWorker() {
  impl_->stop.store(true);
  impl_->wake();
  impl_->thread.join();
}

Result<std::unique_ptr<AttentionWorker>> AttentionWorker::create(const AttentionWorkerOptions& options,
                                                                 StatePools pools,
                                                                 const AttentionPrograms& programs,
                                                                 KernelRunner& kernels, FfnPort& port) {
  auto impl = std::make_unique<Impl>(options, std::move(pools), kernels, port);
  impl->wake_fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (impl->wake_fd < 0)
    return make_error(ErrorCode::resource_exhausted, std::string("eventfd: ") + std::strerror(errno));
  impl->limits.max_context_tokens = options.max_context_tokens;
  impl->limits.kv_pool_tokens =
      static_cast<uint32_t>(std::min<uint64_t>(impl->pools.max_sequence_tokens(), UINT32_MAX));
  impl->limits.vocab_size = options.vocab_size;
  impl->limits.max_num_seqs = options.scheduler.max_num_seqs;
  impl->limits.max_queue = options.max_queue;
  port.trace_to(options.trace);
  TANDEM_TRY(impl->create_streams(programs));
  TANDEM_TRY(impl->warm_up());
  impl->load_prefixes_from_file();
  impl->publish_stats();
  return std::unique_ptr<AttentionWorker>(new AttentionWorker(std::move(impl)));
}

const EngineLimits& AttentionWorker::limits() const {
  return impl_->limits;
}

Result<RequestId> AttentionWorker::submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) {
  const EngineLimits& limits = impl_->limits;
  TANDEM_TRY(check_request(request, limits));
  TANDEM_ASSIGN(AnswerForm form, impl_->grammars.form(request.sampling.grammar));
  RequestId id = 0;
  {
    std::lock_guard lock(impl_->mutex);
    if (!impl_->health_now) return std::unexpected(impl_->health_now.error());
    if (impl_->stats.waiting >= limits.max_queue) return queue_is_full(limits);
    id = impl_->next_id++;
    ++impl_->stats.waiting;
    impl_->submissions.push_back({id, std::move(request), std::move(sink), std::move(form), now()});
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
  EngineStats stats;
  {
    const std::lock_guard lock(impl_->mutex);
    stats = impl_->stats;
  }
  if (impl_->options.router != nullptr) {
    const RouterTimes times = impl_->options.router->router_times();
    stats.router_calls = times.calls;
    stats.router_seconds = static_cast<double>(times.nanoseconds) * 1e-9;
  }
  return stats;
}

Status AttentionWorker::health() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->health_now;
}

}  // namespace tandem
