#include "transport/tcp_receiver.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "transport/endpoint_rules.h"
#include "transport/system_error.h"

namespace tandem {
namespace {

constexpr size_t kStagingBytes =
    16 << 10;  // many small messages in one call; the most of a large one that is copied twice
constexpr int kReadsPerPoll = 64;  // a peer that never stops sending must not hold the poller

}  // namespace

Result<std::shared_ptr<TcpReceiver>> TcpReceiver::create(std::shared_ptr<TcpSender> sender,
                                                         const EndpointOptions& options) {
  TANDEM_ASSIGN(OwnedBuffer slots, OwnedBuffer::allocate(kNumChannels * options.slots_per_channel *
                                                         slot_stride(options.slot_bytes)));
  TANDEM_ASSIGN(OwnedBuffer staging, OwnedBuffer::allocate(kStagingBytes));
  return std::shared_ptr<TcpReceiver>(
      new TcpReceiver(std::move(sender), std::move(slots), std::move(staging), options));
}

TcpReceiver::TcpReceiver(std::shared_ptr<TcpSender> sender, OwnedBuffer slots, OwnedBuffer staging,
                         const EndpointOptions& options)
    : sender_(std::move(sender)),
      slots_buffer_(std::move(slots)),
      slots_(options.slots_per_channel),
      slot_bytes_(options.slot_bytes),
      slot_stride_(slot_stride(options.slot_bytes)),
      staging_(std::move(staging)) {
  for (auto& free : free_) free = FreeSlots(slots_);
  ready_.reserve(kNumChannels * slots_);
}

std::byte* TcpReceiver::slot_data(const Message& message) const {
  return slots_buffer_.data() + (static_cast<size_t>(message.channel) * slots_ + message.slot) * slot_stride_;
}

Result<void> TcpReceiver::begin_message(const TcpFrame& frame) {
  if (frame.value > slot_bytes_) {
    return make_error(ErrorCode::data_loss, "tcp frame: message of " + std::to_string(frame.value) +
                                                " bytes is larger than slot_bytes " +
                                                std::to_string(slot_bytes_));
  }
  if (!sender_->take_granted(frame.channel)) {
    return make_error(ErrorCode::data_loss, "tcp frame: message on channel " +
                                                std::to_string(static_cast<int>(frame.channel)) +
                                                " without a credit");
  }
  const std::lock_guard lock(mutex_);
  auto& free = free_[static_cast<size_t>(frame.channel)];  // a granted credit has a free slot
  partial_ = {frame.channel, free.take(), frame.value};
  partial_received_ = 0;
  in_message_ = true;
  return {};
}

// Takes whole frames, and the beginning of a message, out of staging.
Result<void> TcpReceiver::take_staged(Progress& progress) {
  size_t at = 0;
  while (!progress.ended) {
    if (in_message_) {
      const size_t take = std::min<size_t>(staged_ - at, partial_.bytes - partial_received_);
      std::memcpy(slot_data(partial_) + partial_received_, staging_.data() + at, take);
      partial_received_ += take;
      at += take;
      if (partial_received_ < partial_.bytes) break;
      ready_.push_back(partial_);
      in_message_ = false;
    }
    if (staged_ - at < TcpFrameLayout::kHeaderBytes) break;
    TANDEM_ASSIGN(const TcpFrame frame,
                  TcpFrameLayout::decode(std::span<const std::byte, TcpFrameLayout::kHeaderBytes>(
                      staging_.data() + at, TcpFrameLayout::kHeaderBytes)));
    at += TcpFrameLayout::kHeaderBytes;
    switch (frame.kind) {
      case TcpFrameKind::hello:
        return make_error(ErrorCode::data_loss, "tcp frame: a second hello");
      case TcpFrameKind::nonce:
      case TcpFrameKind::proof:
        return make_error(ErrorCode::data_loss, "tcp frame: a proof of the key behind the handshake");
      case TcpFrameKind::worker_address:
      case TcpFrameKind::messages_sent:
        return make_error(
            ErrorCode::data_loss,
            "tcp frame: kind " + std::to_string(static_cast<int>(frame.kind)) + " belongs to ucx");
      case TcpFrameKind::data:
        TANDEM_TRY(begin_message(frame));
        break;
      case TcpFrameKind::credit:
        TANDEM_TRY(sender_->add_credits(frame.channel, frame.value));
        break;
      case TcpFrameKind::heartbeat:
        break;
      case TcpFrameKind::bye:
        progress.ended = progress.orderly = true;
        progress.reason = "it ended the connection";
        break;
    }
  }
  std::memmove(staging_.data(), staging_.data() + at, staged_ - at);
  staged_ -= at;
  return {};
}

Result<TcpReceiver::Progress> TcpReceiver::read() {
  Progress progress;
  for (int round = 0; round < kReadsPerPoll && !progress.ended; ++round) {
    std::array<iovec, 2> vectors;
    size_t count = 0;
    size_t wanted = 0;
    if (in_message_) {  // then staging is empty
      vectors[count++] = {slot_data(partial_) + partial_received_, partial_.bytes - partial_received_};
      wanted += partial_.bytes - partial_received_;
    }
    vectors[count++] = {staging_.data() + staged_, kStagingBytes - staged_};
    wanted += kStagingBytes - staged_;
    const ssize_t got = sender_->stream().read(std::span(vectors).first(count));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (got <= 0) {
      progress.ended = true;
      progress.reason =
          got == 0 ? "the connection was closed" : "the connection was lost (" + why_lost(errno) + ")";
      break;
    }
    progress.heard = true;
    auto received = static_cast<size_t>(got);
    if (in_message_) {
      const size_t into_slot = std::min<size_t>(received, partial_.bytes - partial_received_);
      partial_received_ += into_slot;
      received -= into_slot;
    }
    staged_ += received;
    TANDEM_TRY(take_staged(progress));
    if (static_cast<size_t>(got) < wanted) break;  // the socket is empty
  }
  return progress;
}

std::string TcpReceiver::why_lost(int error_number) const {
  const auto failure = sender_->stream().failure();
  return failure ? failure->message : system_message(error_number);
}

std::optional<Incoming> TcpReceiver::next() {
  if (!has_waiting()) return std::nullopt;
  const Message message = ready_[ready_begin_++];
  if (ready_begin_ == ready_.size()) {
    ready_.clear();
    ready_begin_ = 0;
  }
  return Incoming{message.channel,
                  Lease(shared_from_this(), static_cast<uint64_t>(message.channel) << 32 | message.slot,
                        {slot_data(message), message.bytes})};
}

void TcpReceiver::release(uint64_t token) {
  const auto channel = static_cast<Channel>(token >> 32);
  {
    const std::lock_guard lock(mutex_);
    free_[static_cast<size_t>(channel)].give(static_cast<uint32_t>(token));
  }
  sender_->give_credit(channel);
}

}  // namespace tandem
