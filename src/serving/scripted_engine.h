// ScriptedEngine: an Engine for tests whose tokens are written down beforehand. As strict as the real one: it
// refuses what the attention worker refuses, calls sinks on a thread of its own, ends each request exactly
// once, applies a cancel at a step's border, and counts blocks. Steps run freely or one by one.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "attention/engine.h"

namespace tandem {

struct ScriptedEngineOptions {
  EngineLimits limits{.max_context_tokens = 128,
                      .kv_pool_tokens = 16 * 1024,
                      .vocab_size = 300,
                      .max_num_seqs = 8,
                      .max_queue = 64};
  std::vector<int32_t> eos_token_ids = {};
  bool free_running = true;
  // What a request generates; after its last token the first of eos_token_ids follows for ever.
  std::function<std::vector<int32_t>(const GenerationRequest&)> script = {};
};

class ScriptedEngine : public Engine {
 public:
  explicit ScriptedEngine(ScriptedEngineOptions options);
  ~ScriptedEngine() override;

  const EngineLimits& limits() const override { return options_.limits; }
  Result<RequestId> submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) override;
  void cancel(RequestId id) override;
  EngineStats stats() const override;
  Status health() const override;

  // Lets `count` steps run; returns when they have. Not with free_running.
  void step(int count = 1);
  // Ends every request with this error, and health says so until heal().
  void lose_peer(const Error& error);
  void heal();

  // What was submitted, in order, and how many cancels came for requests that had not ended or had.
  std::vector<GenerationRequest> requests() const;
  int cancels() const;
  int late_cancels() const;
  // Waits until nothing runs or waits; false after 30 s.
  bool wait_idle() const;

 private:
  struct Sequence {
    RequestId id;
    GenerationRequest request;
    std::shared_ptr<GenerationSink> sink;
    std::vector<int32_t> tokens;
    uint32_t generated = 0;
    bool cancelled = false;
    bool scored = false;  // on_prompt_token was called
  };
  void run();
  void one_step(std::unique_lock<std::mutex>& lock);
  // Every token of a prompt has the log probability -1 - position / 8.
  void score_prompt(Sequence& sequence, std::unique_lock<std::mutex>& lock);
  // Calls the sink without the lock, as the real engine does.
  void finish(Sequence sequence, Finish end, std::unique_lock<std::mutex>& lock);
  static uint32_t blocks(const Sequence& sequence);

  const ScriptedEngineOptions options_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Sequence> waiting_, running_;
  std::vector<GenerationRequest> requests_;
  EngineStats stats_;
  Status health_;
  RequestId next_id_ = 1;
  int cancels_ = 0, late_cancels_ = 0;
  uint64_t steps_allowed_ = 0, steps_done_ = 0;
  bool stopping_ = false, in_step_ = false;
  std::thread thread_;
};

}  // namespace tandem
