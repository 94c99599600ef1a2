// What the tests of the worker share: a listener, ports that behave worse than a colocated one, and a drafter
// that knows the answers.
#pragma once

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "attention/engine.h"
#include "attention/speculation.h"
#include "moe/local_ffn.h"

namespace tandem {

class Recorder final : public GenerationSink {
 public:
  // `then` is called on the engine's thread with the answer's token of this number, from 1 on, before
  // anything else happens there: what is to be in the midst of an answer is, however slowly the test's thread
  // goes on. Before the submit.
  void at_token(size_t number, std::function<void()> then) { then_[number] = std::move(then); }

  void on_token(const TokenEvent& event) override {
    {
      std::lock_guard lock(mutex_);
      EXPECT_FALSE(finished_);
      EXPECT_EQ(event.index, tokens_.size());
      tokens_.push_back(event.token);
      events_.push_back(event);
      changed_.notify_all();
    }
    if (const auto then = then_.find(event.index + 1); then != then_.end()) then->second();
  }
  void on_prompt_token(const TokenEvent& event) override {
    std::lock_guard lock(mutex_);
    EXPECT_TRUE(tokens_.empty() && !finished_) << "a prompt's token behind one of the answer";
    EXPECT_TRUE(prompt_.emplace(event.index, event).second) << "position " << event.index << " twice";
  }
  void on_finish(const Finish& finish) override {
    std::lock_guard lock(mutex_);
    EXPECT_FALSE(finished_) << "ended twice";
    finish_ = finish;
    finished_ = true;
    changed_.notify_all();
  }
  Finish wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return finished_; }))
        << "a request never ended";
    return finish_;
  }
  void wait_for_tokens(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(60), [&] { return finished_ || tokens_.size() >= count; });
  }
  std::vector<TokenEvent> events() {
    std::lock_guard lock(mutex_);
    return events_;
  }
  std::map<uint32_t, TokenEvent> prompt() {  // by position
    std::lock_guard lock(mutex_);
    return prompt_;
  }
  std::vector<int32_t> tokens() {
    std::lock_guard lock(mutex_);
    return tokens_;
  }

 private:
  std::map<size_t, std::function<void()>> then_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int32_t> tokens_;
  std::vector<TokenEvent> events_;
  std::map<uint32_t, TokenEvent> prompt_;
  Finish finish_;
  bool finished_ = false;
};

// Requests that are all there before any of them ends: with the first token of `first` the engine's thread
// stands still until `go`. Lives as long as they do.
class AllAtOnce {
 public:
  explicit AllAtOnce(Recorder& first) {
    first.at_token(1, [this] { all_here_.get_future().wait(); });
  }
  void go() { all_here_.set_value(); }

 private:
  std::promise<void> all_here_;
};

// The experts of this process behind a door that a test can shut: what RemoteFfn does when its peer is lost,
// with the same promises (requests in flight complete with unavailable, health and submit say so until the
// peer is back).
class LosablePort final : public FfnPort {
 public:
  explicit LosablePort(MoeBlock& block) : local_(block) {}
  const FfnTraits& traits() const override { return local_.traits(); }
  Result<Ticket> submit(const FfnRequest& request) override {
    if (lost) return make_error(ErrorCode::unavailable, kReason);
    return local_.submit(request);
  }
  size_t poll(std::span<Completion> out) override {
    const size_t count = local_.poll(out);
    for (size_t i = 0; i < count && lost; ++i) out[i].status = make_error(ErrorCode::unavailable, kReason);
    return count;
  }
  void cancel(Ticket ticket) override { local_.cancel(ticket); }
  int wait_fd() const override { return -1; }
  Status health() const override {
    if (lost) return make_error(ErrorCode::unavailable, kReason);
    return {};
  }
  static constexpr const char* kReason = "FFN rank 0 at test://ffn: connection closed";
  std::atomic<bool> lost{false};

 private:
  LocalFfn local_;
};

// The experts of this process, some time later and in another order: a request is computed when its reply is
// due, so that lanes wait, overtake each other and find another port at every layer.
class LatePort final : public FfnPort {
 public:
  LatePort(MoeBlock& block, uint32_t seed)
      : local_(block), random_(seed), always_(::eventfd(1, EFD_CLOEXEC)) {}
  ~LatePort() override { ::close(always_); }
  const FfnTraits& traits() const override { return local_.traits(); }
  Result<Ticket> submit(const FfnRequest& request) override {
    if (random_() % 8 == 0) return make_error(ErrorCode::would_block, {});
    waiting_.push_back({next_ticket_++, request});
    most_waiting = std::max(most_waiting.load(), waiting_.size());
    return waiting_.back().first;
  }
  size_t poll(std::span<Completion> out) override {
    size_t count = 0;
    while (count < out.size() && !waiting_.empty() && random_() % 4 == 0) {
      const auto due = waiting_.begin() + static_cast<std::ptrdiff_t>(random_() % waiting_.size());
      EXPECT_TRUE(local_.submit(due->second).has_value());
      EXPECT_EQ(local_.poll(out.subspan(count, 1)), 1u);
      out[count++].ticket = due->first;
      waiting_.erase(due);
    }
    return count;
  }
  void cancel(Ticket ticket) override {
    std::erase_if(waiting_, [ticket](const auto& entry) { return entry.first == ticket; });
  }
  int wait_fd() const override { return always_; }
  Status health() const override { return {}; }
  std::atomic<size_t> most_waiting{0};

 private:
  LocalFfn local_;
  std::mt19937 random_;
  int always_;  // readable
  Ticket next_ticket_ = 1;
  std::vector<std::pair<Ticket, FfnRequest>> waiting_;
};

// Knows what the answers will be, and says something else now and then.
class Prophet final : public Drafter {
 public:
  Prophet(double truth, uint32_t seed) : truth_(truth), random_(seed) {}
  // Before the worker runs.
  void learn(std::vector<int32_t> prompt, const std::vector<int32_t>& answer) {
    prompt.insert(prompt.end(), answer.begin(), answer.end());
    texts_.push_back(std::move(prompt));
  }
  void propose(std::span<const int32_t> tokens, uint32_t most, std::vector<int32_t>& drafts) override {
    for (const std::vector<int32_t>& text : texts_) {
      if (text.size() < tokens.size() || !std::equal(tokens.begin(), tokens.end(), text.begin())) continue;
      const uint32_t count = random_() % (most + 1);
      for (size_t i = tokens.size(); i < text.size() && drafts.size() < count; ++i) {
        const bool right = std::uniform_real_distribution<double>(0, 1)(random_) < truth_;
        drafts.push_back(right ? text[i] : (text[i] + 1) % 60);
      }
      return;
    }
  }

 private:
  double truth_;
  std::mt19937 random_;
  std::vector<std::vector<int32_t>> texts_;
};

}  // namespace tandem
