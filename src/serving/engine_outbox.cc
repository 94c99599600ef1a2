#include "serving/engine_outbox.h"

#include <utility>

namespace tandem {
namespace {

class OutboxSink final : public GenerationSink {
 public:
  OutboxSink(std::shared_ptr<EngineOutbox> outbox, uint64_t request)
      : outbox_(std::move(outbox)), request_(request) {}
  void on_token(const TokenEvent& event) override { outbox_->token(request_, event); }
  void on_prompt_token(const TokenEvent& event) override { outbox_->prompt_token(request_, event); }
  void on_finish(const Finish& finish) override { outbox_->finish(request_, finish); }

 private:
  const std::shared_ptr<EngineOutbox> outbox_;
  const uint64_t request_;
};

}  // namespace

std::shared_ptr<GenerationSink> EngineOutbox::open(uint64_t request) {
  {
    const std::lock_guard lock(mutex_);
    if (!requests_.try_emplace(request).second) return nullptr;
  }
  return std::make_shared<OutboxSink>(shared_from_this(), request);
}

std::optional<RequestId> EngineOutbox::cancel(uint64_t request) {
  const std::lock_guard lock(mutex_);
  const auto it = requests_.find(request);
  if (it == requests_.end()) return std::nullopt;
  it->second.cancelled = true;
  return it->second.engine_id;
}

bool EngineOutbox::is_wanted(uint64_t request) const {
  const std::lock_guard lock(mutex_);
  const auto it = requests_.find(request);
  return it != requests_.end() && !it->second.cancelled;
}

bool EngineOutbox::set_engine_id(uint64_t request, RequestId id) {
  const std::lock_guard lock(mutex_);
  if (!open_) return false;
  const auto it = requests_.find(request);
  if (it == requests_.end()) return true;  // it has ended already
  it->second.engine_id = id;
  return !it->second.dropped && !it->second.cancelled;
}

void EngineOutbox::refuse(uint64_t request, const Error& error) {
  Finish end;
  end.reason = FinishReason::error;
  end.error = error;
  finish(request, end);
}

void EngineOutbox::take(size_t limit, std::vector<std::byte>& out) {
  const std::lock_guard lock(mutex_);
  const std::span<const std::byte> waiting = std::span<const std::byte>(records_).subspan(taken_);
  const size_t bytes = EventLayout::whole_records(waiting, limit);
  out.assign(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(bytes));
  taken_ += bytes;
  // A front that keeps up finds the buffer empty; one that does not must not make every take copy the rest.
  if (taken_ == records_.size() || taken_ > max_bytes_) {
    records_.erase(records_.begin(), records_.begin() + static_cast<std::ptrdiff_t>(taken_));
    taken_ = 0;
  }
}

bool EngineOutbox::has_events() const {
  const std::lock_guard lock(mutex_);
  return taken_ < records_.size() || !overrun_.empty();
}

size_t EngineOutbox::num_requests() const {
  const std::lock_guard lock(mutex_);
  return requests_.size();
}

std::vector<RequestId> EngineOutbox::take_overrun() {
  const std::lock_guard lock(mutex_);
  return std::exchange(overrun_, {});
}

std::vector<RequestId> EngineOutbox::close() {
  const std::lock_guard lock(mutex_);
  open_ = false;
  std::vector<RequestId> ids;
  for (const auto& [request, state] : requests_) {
    if (state.engine_id) ids.push_back(*state.engine_id);
  }
  requests_.clear();
  records_.clear();
  taken_ = 0;
  return ids;
}

void EngineOutbox::token(uint64_t request, const TokenEvent& event) {
  append(request, [&] { EventLayout::append(request, event, records_); });
}

void EngineOutbox::prompt_token(uint64_t request, const TokenEvent& event) {
  append(request, [&] { EventLayout::append_prompt(request, event, records_); });
}

template <class Append>
void EngineOutbox::append(uint64_t request, Append append_record) {
  {
    const std::lock_guard lock(mutex_);
    const auto it = requests_.find(request);
    if (!open_ || it == requests_.end() || it->second.dropped) return;
    if (records_.size() - taken_ >= max_bytes_) {
      it->second.dropped = true;
      if (it->second.engine_id) overrun_.push_back(*it->second.engine_id);
    } else {
      append_record();
    }
  }
  bell_->ring();
}

void EngineOutbox::finish(uint64_t request, const Finish& finish) {
  {
    const std::lock_guard lock(mutex_);
    const auto it = requests_.find(request);
    if (!open_ || it == requests_.end()) return;
    if (it->second.dropped) {
      Finish end = finish;
      end.reason = FinishReason::error;
      end.error = {ErrorCode::resource_exhausted, "the front reads tokens too slowly: " +
                                                      std::to_string(max_bytes_) + " bytes of them wait"};
      EventLayout::append(request, end, records_);
    } else {
      EventLayout::append(request, finish, records_);
    }
    requests_.erase(it);
  }
  bell_->ring();
}

}  // namespace tandem
