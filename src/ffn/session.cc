#include "ffn/session.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"

namespace tandem {

Session::Session(uint64_t id, std::unique_ptr<Endpoint> endpoint, const SplitSettings& settings,
                 const PeerIdentity& self, std::span<const Piece> pieces, const FfnAdmission& admission)
    : id_(id),
      settings_(settings),
      endpoint_(std::move(endpoint)),
      handshake_(settings, self, pieces, id, admission) {
  load_->number = load_->account->number = static_cast<uint32_t>(id);  // the part that counts up
}

std::string Session::peer_text() const {
  return handshake_.greeted() ? handshake_.peer().text() : endpoint_->peer_name();
}

std::string_view Session::host() const {
  const std::string_view name = endpoint_->peer_name();
  const bool has_port = name.starts_with("tcp://") || name.starts_with("ucx://");
  return has_port ? name.substr(0, name.rfind(':')) : name;
}

void Session::close() {
  const std::lock_guard lock(mutex_);
  open_ = false;
  replies_.clear();
  endpoint_->fence();
  phase_ = Phase::closed;
}

bool Session::replies_waiting() const {
  const std::lock_guard lock(mutex_);
  return !replies_.empty();
}

void Session::pump_replies() {
  if (!waiting_.load()) return;  // the compute thread may be sending: nobody waits for that
  const std::lock_guard lock(mutex_);
  while (open_ && !replies_.empty()) {
    QueuedReply& reply = replies_.front();
    const auto slot = endpoint_->acquire(channel(), reply.frame.size());
    if (!slot) return;  // no credit yet, or the peer is gone, which the poller notices
    std::memcpy(slot->bytes.data(), reply.frame.data(), reply.frame.size());
    reply.request_lease = Lease();
    (void)endpoint_->commit(*slot, reply.frame.size());
    replies_.pop_front();
  }
  waiting_.store(!replies_.empty());
}

Result<SendSlot> Session::acquire_reply(const FrameLayout& layout) {
  const std::lock_guard lock(mutex_);
  if (!open_) return make_error(ErrorCode::unavailable, "session closed");
  if (!replies_.empty()) return make_error(ErrorCode::would_block, "earlier replies");
  return endpoint_->acquire(channel(), layout.total_bytes());
}

void Session::commit_reply(const SendSlot& slot, size_t bytes) {
  const std::lock_guard lock(mutex_);
  (void)endpoint_->commit(slot, bytes);  // a peer that is gone misses nothing; the poller notices
}

template <class Fill>
void Session::send(const FrameLayout& layout, Lease request_lease, Fill&& fill) {
  const std::lock_guard lock(mutex_);
  if (!open_) return;
  // Before a credit is missed: the poller, which hears of the next one, must come and wait for the mutex.
  waiting_.store(true);
  if (replies_.empty()) {
    if (const auto slot = endpoint_->acquire(channel(), layout.total_bytes())) {
      fill(slot->bytes);
      request_lease = Lease();  // before the reply: whoever sees the reply sees the credit
      waiting_.store(false);
      (void)endpoint_->commit(*slot, layout.total_bytes());
      return;
    }
  }
  std::vector<std::byte> frame(layout.total_bytes());
  fill(std::span(frame));
  replies_.push_back({std::move(frame), std::move(request_lease)});
}

void Session::reply(const FrameHeader& request, const FfnTimes& times, std::span<const std::byte> output,
                    Lease request_lease) {
  const auto layout = reply_layout(request, settings_);
  if (!layout) return reply_error(request, times, layout.error(), std::move(request_lease));
  send(*layout, std::move(request_lease), [&](std::span<std::byte> frame) {
    const std::span<std::byte> to = write_reply(*layout, times, frame);
    if (!output.empty()) std::memcpy(to.data(), output.data(), to.size());
  });
}

void Session::reply_error(const FrameHeader& request, const FfnTimes& times, const Error& error,
                          Lease request_lease) {
  const auto layout = error_reply_layout(request, error);
  if (!layout) {
    log_error("a reply could not be laid out: " + layout.error().message);
    return;
  }
  send(*layout, std::move(request_lease),
       [&](std::span<std::byte> frame) { write_error_reply(*layout, times, error, frame); });
}

}  // namespace tandem
