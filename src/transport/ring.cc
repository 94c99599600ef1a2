#include "transport/ring.h"

#include <sys/mman.h>

#include <string>

#include "transport/endpoint_rules.h"

namespace tandem {
namespace {

std::unexpected<Error> lie(Channel channel, const std::string& what) {
  return make_error(ErrorCode::data_loss,
                    "ring of channel " + std::to_string(static_cast<int>(channel)) + ": " + what);
}

uint64_t make_token(Channel channel, uint32_t slot) {
  return static_cast<uint64_t>(channel) << 32 | slot;
}

}  // namespace

RingMemory::~RingMemory() {
  munmap(base_, layout_.total_bytes());
}

void RingMemory::ring(int side) const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t put =
      write(doorbells_[side].get(), &one, sizeof(one));  // full: it is ringing already
}

bool RingMemory::drain(int side) const {
  uint64_t drained = 0;
  return read(doorbells_[side].get(), &drained, sizeof(drained)) == sizeof(drained);
}

RingSender::RingSender(std::shared_ptr<RingMemory> memory, int side, size_t slot_bytes)
    : memory_(std::move(memory)), side_(side), slot_bytes_(slot_bytes) {
  const uint32_t slots = memory_->layout().slots();
  for (Ring& ring : rings_) {
    ring.states.assign(slots, SlotState::free);
    ring.free = FreeSlots(slots);
  }
}

Result<void> RingSender::collect_freed(Channel channel) {
  Ring& ring = rings_[static_cast<size_t>(channel)];
  const uint64_t freed = memory_->control(side_, channel).freed.load(std::memory_order_seq_cst);
  if (freed - ring.freed > ring.in_flight) return lie(channel, "more slots given back than were sent");
  while (ring.freed != freed) {
    const uint32_t slot = memory_->freed_entry(side_, channel, ring.freed).load(std::memory_order_relaxed);
    if (slot >= ring.states.size() || ring.states[slot] != SlotState::in_flight) {
      return lie(channel, "slot " + std::to_string(slot) + " given back but not sent");
    }
    ring.states[slot] = SlotState::free;
    ring.free.give(slot);
    --ring.in_flight;
    ++ring.freed;
  }
  return {};
}

Result<SendSlot> RingSender::acquire(Channel channel, size_t bytes) {
  const std::lock_guard lock(mutex_);
  Ring& ring = rings_[static_cast<size_t>(channel)];
  TANDEM_TRY(collect_freed(channel));
  if (ring.free.empty()) {
    // Say that a credit is missed, then look again: either we see the slot or the receiver sees the wish.
    memory_->control(side_, channel).starved.store(1, std::memory_order_seq_cst);
    TANDEM_TRY(collect_freed(channel));
    if (ring.free.empty()) {
      ring.missed = true;
      return make_error(ErrorCode::would_block, "no credit");
    }
  }
  const uint32_t slot = ring.free.take();
  ring.states[slot] = SlotState::acquired;
  return SendSlot{{memory_->slot(side_, channel, slot), bytes}, channel, make_token(channel, slot)};
}

Result<void> RingSender::commit(const SendSlot& slot, size_t bytes, bool send) {
  const size_t channel_index = static_cast<size_t>(slot.channel);
  const std::lock_guard lock(mutex_);
  const uint32_t index = static_cast<uint32_t>(slot.token);
  if (channel_index >= kNumChannels || slot.token >> 32 != channel_index ||
      index >= rings_[channel_index].states.size() ||
      rings_[channel_index].states[index] != SlotState::acquired) {
    return slot_not_acquired();
  }
  TANDEM_TRY(check_commit(slot, bytes, slot_bytes_));
  Ring& ring = rings_[channel_index];
  if (!send || bytes == 0) {
    ring.states[index] = SlotState::free;
    ring.free.give(index);
    // Another thread of this side may have missed this very credit.
    if (memory_->control(side_, slot.channel).starved.exchange(0) != 0) memory_->ring(side_);
    return {};
  }
  ring.states[index] = SlotState::in_flight;
  ++ring.in_flight;
  memory_->sent_entry(side_, slot.channel, ring.sent)
      .store(static_cast<uint64_t>(index) << 32 | bytes, std::memory_order_relaxed);
  ++ring.sent;
  memory_->control(side_, slot.channel).sent.store(ring.sent, std::memory_order_seq_cst);
  const int peer = 1 - side_;
  // Publish, then look whether it sleeps; the receiver arms, then looks whether something was published.
  if (memory_->side(peer).armed.load(std::memory_order_seq_cst) != 0 &&
      memory_->side(peer).armed.exchange(0, std::memory_order_seq_cst) != 0) {
    memory_->ring(peer);
  }
  return {};
}

bool RingSender::take_credit_news() {
  const std::lock_guard lock(mutex_);
  bool news = false;
  for (size_t i = 0; i < kNumChannels; ++i) {
    Ring& ring = rings_[i];
    if (!ring.missed) continue;
    const uint64_t freed =
        memory_->control(side_, static_cast<Channel>(i)).freed.load(std::memory_order_seq_cst);
    if (freed == ring.freed && ring.free.empty()) continue;
    ring.missed = false;
    news = true;
  }
  return news;
}

RingReceiver::RingReceiver(std::shared_ptr<RingMemory> memory, int side, size_t slot_bytes)
    : memory_(std::move(memory)), direction_(1 - side), slot_bytes_(slot_bytes) {
  for (Ring& ring : rings_) ring.leased.assign(memory_->layout().slots(), false);
}

Result<std::optional<Lease>> RingReceiver::receive(Channel channel) {
  Ring& ring = rings_[static_cast<size_t>(channel)];
  const uint64_t sent = memory_->control(direction_, channel).sent.load(std::memory_order_acquire);
  if (sent == ring.received) return std::nullopt;
  if (sent - ring.received > memory_->layout().slots())
    return lie(channel, "more messages sent than there are slots");
  const uint64_t entry =
      memory_->sent_entry(direction_, channel, ring.received).load(std::memory_order_relaxed);
  const uint32_t slot = static_cast<uint32_t>(entry >> 32);
  const uint32_t bytes = static_cast<uint32_t>(entry);
  if (slot >= memory_->layout().slots()) return lie(channel, "message in slot " + std::to_string(slot));
  if (bytes == 0 || bytes > slot_bytes_)
    return lie(channel, "message of " + std::to_string(bytes) + " bytes");
  {
    const std::lock_guard lock(mutex_);
    if (ring.leased[slot])
      return lie(channel, "slot " + std::to_string(slot) + " sent again before it was given back");
    ring.leased[slot] = true;
  }
  ++ring.received;
  return Lease(shared_from_this(), make_token(channel, slot),
               {memory_->slot(direction_, channel, slot), bytes});
}

bool RingReceiver::has_waiting() const {
  for (size_t i = 0; i < kNumChannels; ++i) {
    const auto channel = static_cast<Channel>(i);
    if (memory_->control(direction_, channel).sent.load(std::memory_order_seq_cst) != rings_[i].received)
      return true;
  }
  return false;
}

void RingReceiver::release(uint64_t token) {
  const auto channel = static_cast<Channel>(token >> 32);
  const uint32_t slot = static_cast<uint32_t>(token);
  Ring& ring = rings_[static_cast<size_t>(channel)];
  RingControl& control = memory_->control(direction_, channel);
  {
    const std::lock_guard lock(mutex_);
    ring.leased[slot] = false;
    memory_->freed_entry(direction_, channel, ring.freed).store(slot, std::memory_order_relaxed);
    ++ring.freed;
    control.freed.store(ring.freed, std::memory_order_seq_cst);
  }
  if (control.starved.load(std::memory_order_seq_cst) != 0 &&
      control.starved.exchange(0, std::memory_order_seq_cst) != 0) {
    memory_->ring(direction_);
  }
}

}  // namespace tandem
