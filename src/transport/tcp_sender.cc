#include "transport/tcp_sender.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "transport/endpoint_rules.h"
#include "transport/system_error.h"

namespace tandem {
namespace {

constexpr size_t kFramesPerWrite = 16;  // two vectors a frame; far more than usually wait

}  // namespace

Result<std::shared_ptr<TcpSender>> TcpSender::create(TcpStream stream, const EndpointOptions& options) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  if (!epoll || epoll_ctl(epoll.get(), EPOLL_CTL_ADD, stream.socket(), &event) != 0)
    return no_descriptor("epoll");
  TANDEM_ASSIGN(OwnedBuffer buffer, OwnedBuffer::allocate(kNumChannels * options.slots_per_channel *
                                                          slot_stride(options.slot_bytes)));
  return std::shared_ptr<TcpSender>(
      new TcpSender(std::move(stream), std::move(epoll), std::move(buffer), options));
}

TcpSender::TcpSender(TcpStream stream, UniqueFd epoll, OwnedBuffer buffer, const EndpointOptions& options)
    : stream_(std::move(stream)),
      epoll_(std::move(epoll)),
      buffer_(std::move(buffer)),
      slots_(options.slots_per_channel),
      slot_bytes_(options.slot_bytes),
      slot_stride_(slot_stride(options.slot_bytes)) {
  for (Ring& ring : rings_) {
    ring.acquired.assign(slots_, false);
    ring.free = FreeSlots(slots_);
    ring.credits = ring.granted = slots_;
  }
  queue_.reserve(2 * kNumChannels * slots_ + 1);  // every slot, every credit told alone, a heartbeat
}

Result<SendSlot> TcpSender::acquire(Channel channel, size_t bytes) {
  const std::lock_guard lock(mutex_);
  Ring& ring = rings_[static_cast<size_t>(channel)];
  if (ring.credits == 0) {
    ring.starved = true;
    return make_error(ErrorCode::would_block, "no credit");
  }
  // A slot that is not free holds a credit, so there is a free one.
  const uint32_t slot = ring.free.take();
  --ring.credits;
  ring.acquired[slot] = true;
  std::byte* data = buffer_.data() + (static_cast<size_t>(channel) * slots_ + slot) * slot_stride_;
  return SendSlot{{data, bytes}, channel, static_cast<uint64_t>(channel) << 32 | slot};
}

Result<void> TcpSender::commit(const SendSlot& slot, size_t bytes, bool send) {
  const size_t channel_index = static_cast<size_t>(slot.channel);
  const auto index = static_cast<uint32_t>(slot.token);
  const std::lock_guard lock(mutex_);
  if (channel_index >= kNumChannels || slot.token >> 32 != channel_index || index >= slots_ ||
      !rings_[channel_index].acquired[index]) {
    return slot_not_acquired();
  }
  TANDEM_TRY(check_commit(slot, bytes, slot_bytes_));
  Ring& ring = rings_[channel_index];
  ring.acquired[index] = false;
  if (!send || bytes == 0 || dead_) {
    ring.free.give(index);
    ++ring.credits;
    if (ring.starved) {
      ring.starved = false;
      credit_news_ = true;
      watch_writable(
          true);  // wakes the poller: the socket is writable, and its next flush finds nothing to do
    }
    if (dead_ && bytes != 0) return make_error(ErrorCode::unavailable, "the connection is gone");
    return {};
  }
  const std::byte* data = buffer_.data() + (channel_index * slots_ + index) * slot_stride_;
  queue_.push_back({TcpFrameLayout::encode({TcpFrameKind::data, slot.channel, static_cast<uint32_t>(bytes)}),
                    {data, bytes},
                    slot.channel,
                    index});
  flush_locked();
  return {};
}

void TcpSender::give_credit(Channel channel) {
  const std::lock_guard lock(mutex_);
  Ring& ring = rings_[static_cast<size_t>(channel)];
  ++ring.to_grant;
  if (asleep_ || ring.to_grant >= (slots_ + 1) / 2) flush_locked();
}

bool TcpSender::take_granted(Channel channel) {
  const std::lock_guard lock(mutex_);
  Ring& ring = rings_[static_cast<size_t>(channel)];
  if (ring.granted == 0) return false;
  --ring.granted;
  return true;
}

Result<void> TcpSender::add_credits(Channel channel, uint32_t count) {
  const std::lock_guard lock(mutex_);
  Ring& ring = rings_[static_cast<size_t>(channel)];
  // Slots that are free, and credits that are not, belong to messages on the way or at the peer: only these
  // can return.
  const auto out = ring.free.size() - ring.credits;
  if (count > out) {
    return make_error(ErrorCode::data_loss, "tcp frame: " + std::to_string(count) + " credits given back, " +
                                                std::to_string(out) + " are out");
  }
  ring.credits += count;
  if (ring.starved) {
    ring.starved = false;
    credit_news_ = true;
  }
  return {};
}

void TcpSender::beat() {
  const std::lock_guard lock(mutex_);
  beat_waits_ = true;
}

void TcpSender::flush() {
  const std::lock_guard lock(mutex_);
  flush_locked();
}

bool TcpSender::sleep() {
  const std::lock_guard lock(mutex_);
  flush_locked();
  if (credit_news_) {
    credit_news_ = false;
    return false;
  }
  asleep_ = true;
  return true;
}

void TcpSender::wake() {
  const std::lock_guard lock(mutex_);
  asleep_ = false;
}

void TcpSender::insert_control(const TcpFrame& frame) {
  // Behind a frame that has begun, before all others: a full queue must not look like silence.
  const auto at = queue_.begin() + (front_written_ > 0 ? 1 : 0);
  queue_.insert(at, WireFrame{TcpFrameLayout::encode(frame), {}, frame.channel, 0});
}

void TcpSender::flush_locked() {
  if (dead_) return;
  for (size_t i = 0; i < kNumChannels; ++i) {
    Ring& ring = rings_[i];
    if (ring.to_grant == 0) continue;
    insert_control({TcpFrameKind::credit, static_cast<Channel>(i), ring.to_grant});
    ring.granted += ring.to_grant;
    ring.to_grant = 0;
  }
  if (beat_waits_ && queue_.empty()) insert_control({TcpFrameKind::heartbeat, Channel::control, 0});
  beat_waits_ = false;  // anything that is written is a sign of life
  while (!queue_.empty() || stream_.has_unsent()) {
    std::array<iovec, 2 * kFramesPerWrite> vectors;
    size_t count = 0;
    size_t skip = front_written_;
    const auto add = [&](std::span<const std::byte> bytes) {
      const size_t skipped = std::min(skip, bytes.size());
      skip -= skipped;
      bytes = bytes.subspan(skipped);
      if (!bytes.empty()) vectors[count++] = {const_cast<std::byte*>(bytes.data()), bytes.size()};
    };
    for (size_t i = 0; i < std::min(queue_.size(), kFramesPerWrite); ++i) {
      add(queue_[i].header);
      add(queue_[i].payload);
    }
    const ssize_t written = count > 0 ? stream_.write(std::span(vectors).first(count)) : stream_.flush();
    if (written >= 0) {
      advance(static_cast<size_t>(written));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) break;
    // The peer is gone. The poller reads what came before the end, and finds the end, on the socket.
    dead_ = true;
    for (const WireFrame& frame : queue_) {
      if (!frame.payload.empty()) rings_[static_cast<size_t>(frame.channel)].free.give(frame.slot);
    }
    queue_.clear();
    front_written_ = 0;
    return;
  }
  watch_writable(!queue_.empty() || stream_.has_unsent());
}

void TcpSender::advance(size_t written) {
  front_written_ += written;
  size_t done = 0;
  while (done < queue_.size()) {
    const WireFrame& frame = queue_[done];
    const size_t bytes = frame.header.size() + frame.payload.size();
    if (front_written_ < bytes) break;
    front_written_ -= bytes;
    if (!frame.payload.empty()) rings_[static_cast<size_t>(frame.channel)].free.give(frame.slot);
    ++done;
  }
  queue_.erase(queue_.begin(), queue_.begin() + static_cast<ptrdiff_t>(done));
}

void TcpSender::watch_writable(bool wanted) {
  if (wanted == watching_writable_ || !stream_) return;
  watching_writable_ = wanted;
  epoll_event event{};
  event.events = EPOLLIN | (wanted ? EPOLLOUT : 0u);
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, stream_.socket(), &event);
}

void TcpSender::close(bool say_bye) {
  const std::lock_guard lock(mutex_);
  if (!stream_) return;
  flush_locked();
  if (say_bye && !dead_ && queue_.empty()) {
    const auto bye = TcpFrameLayout::encode({TcpFrameKind::bye, Channel::control, 0});
    [[maybe_unused]] const bool sent = stream_.write_short(bye);
  }
  // Unread bytes would turn the close into a reset, and a reset throws away what is still on the way to the
  // peer.
  std::array<std::byte, 4096> ignored;
  for (int i = 0; i < 64 && recv(stream_.socket(), ignored.data(), ignored.size(), MSG_DONTWAIT) > 0; ++i) {
  }
  dead_ = true;
  queue_.clear();
  stream_.reset();
}

}  // namespace tandem
