// RecordingSink: a GenerationSink for tests of engines: keeps what came, and lets the test wait for it.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <vector>

#include "attention/engine.h"

namespace tandem {

class RecordingSink final : public GenerationSink {
 public:
  void on_token(const TokenEvent& event) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(finished_) << "a token after the end";
    EXPECT_EQ(event.index, events_.size());
    events_.push_back(event);
    changed_.notify_all();
  }
  void on_prompt_token(const TokenEvent& event) override {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(events_.empty() && !finished_) << "a prompt's token behind one of the answer";
    prompt_.push_back(event);
  }
  void on_finish(const Finish& finish) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(finished_) << "ended twice";
    finish_ = finish;
    finished_ = true;
    changed_.notify_all();
  }
  Finish wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kHang, [&] { return finished_; })) << "a request never ended";
    return finish_;
  }
  bool wait_for_tokens(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kHang, [&] { return finished_ || events_.size() >= count; }) &&
           events_.size() >= count;
  }
  bool finished() {
    const std::lock_guard lock(mutex_);
    return finished_;
  }
  std::vector<TokenEvent> events() {
    const std::lock_guard lock(mutex_);
    return events_;
  }
  std::vector<TokenEvent> prompt() {
    const std::lock_guard lock(mutex_);
    return prompt_;
  }
  std::vector<int32_t> tokens() {
    std::vector<int32_t> ids;
    for (const TokenEvent& event : events()) ids.push_back(event.token);
    return ids;
  }

 private:
  static constexpr Duration kHang = std::chrono::seconds(30);
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<TokenEvent> events_, prompt_;
  Finish finish_;
  bool finished_ = false;
};

}  // namespace tandem
