#include "cli/batch_generation.h"

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>

namespace tandem {
namespace {

// Where sinks report that they have ended. Shared with them, for the engine may call after the caller has
// gone.
struct Ended {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<size_t> indices;

  void add(size_t index) {
    {
      std::lock_guard lock(mutex);
      indices.push_back(index);
    }
    changed.notify_one();
  }
  size_t wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return !indices.empty(); });
    const size_t index = indices.front();
    indices.pop_front();
    return index;
  }
};

class CollectingSink final : public GenerationSink {
 public:
  CollectingSink(size_t index, std::shared_ptr<Ended> ended) : index_(index), ended_(std::move(ended)) {}
  void on_token(const TokenEvent& event) override {
    const double seconds = seconds_since(start_);
    if (answer_.events.empty()) answer_.first_token_seconds = seconds;
    answer_.token_seconds.push_back(seconds);
    answer_.events.push_back(event);
  }
  void on_prompt_token(const TokenEvent& event) override {
    if (answer_.prompt_logprobs.size() <= event.index) answer_.prompt_logprobs.resize(event.index + 1);
    answer_.prompt_logprobs[event.index] = event.logprob;
  }
  void on_finish(const Finish& finish) override {
    answer_.finish = finish;
    answer_.seconds = seconds_since(start_);
    ended_->add(index_);
  }
  BatchAnswer take() { return std::move(answer_); }

 private:
  size_t index_;
  std::shared_ptr<Ended> ended_;
  Instant start_ = now();
  BatchAnswer answer_;
};

}  // namespace

std::vector<int32_t> BatchAnswer::tokens() const {
  std::vector<int32_t> ids;
  ids.reserve(events.size());
  for (const TokenEvent& event : events) ids.push_back(event.token);
  return ids;
}

uint64_t combined_hash(std::span<const BatchAnswer> answers) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const BatchAnswer& answer : answers) {
    for (int byte = 0; byte < 8; ++byte)
      hash = (hash ^ ((answer.finish.logits_hash >> (8 * byte)) & 0xff)) * 0x100000001b3ULL;
  }
  return hash;
}

std::vector<BatchAnswer> generate_batch(Engine& engine, std::span<const GenerationRequest> requests,
                                        uint32_t concurrency,
                                        const std::function<void(size_t, const BatchAnswer&)>& on_answer) {
  const auto ended = std::make_shared<Ended>();
  std::vector<std::shared_ptr<CollectingSink>> sinks(requests.size());
  std::vector<BatchAnswer> answers(requests.size());
  size_t next = 0;
  size_t in_flight = 0;
  size_t done = 0;
  while (done < requests.size()) {
    while (next < requests.size() && in_flight < concurrency) {
      sinks[next] = std::make_shared<CollectingSink>(next, ended);
      const auto id = engine.submit(requests[next], sinks[next]);
      if (!id) {
        Finish refused;
        refused.reason = FinishReason::error;
        refused.error = id.error();
        sinks[next]->on_finish(refused);
      }
      ++in_flight;
      ++next;
    }
    const size_t index = ended->wait();
    answers[index] = sinks[index]->take();
    sinks[index].reset();
    --in_flight;
    ++done;
    if (on_answer) on_answer(index, answers[index]);
  }
  return answers;
}

}  // namespace tandem
