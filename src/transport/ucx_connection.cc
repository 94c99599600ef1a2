#include "transport/ucx_connection.h"

#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cstring>

#include "transport/endpoint_rules.h"
#include "transport/system_error.h"

namespace tandem {
namespace {

// UCX cannot be waited for while a send waits for room in a queue of the peer: arm says so, and the poller
// comes again. After so many times in vain (some ten microseconds) the peer is busy or stopped, and looking
// once a millisecond is enough: it costs no CPU and less than one heartbeat.
constexpr int kBusyArms = 64;
constexpr long kBusyPauseNanoseconds = 1'000'000;

// Rounds of UCX's queue in one poll: a peer that never stops sending must not hold the poller.
constexpr int kRoundsPerPoll = 64;

std::unexpected<Error> bad(Channel channel, const std::string& what) {
  return make_error(ErrorCode::data_loss,
                    "ucx frame: channel " + std::to_string(static_cast<int>(channel)) + ": " + what);
}

void drain_descriptor(int fd) {
  uint64_t drained = 0;
  [[maybe_unused]] const ssize_t got = read(fd, &drained, sizeof(drained));
}

}  // namespace

Result<std::shared_ptr<UcxConnection>> UcxConnection::create(const EndpointOptions& options,
                                                             const UcxPath& path) {
  const size_t bytes = kNumChannels * options.slots_per_channel * slot_stride(options.slot_bytes);
  TANDEM_ASSIGN(OwnedBuffer send_buffer, OwnedBuffer::allocate(bytes));
  TANDEM_ASSIGN(OwnedBuffer receive_buffer, OwnedBuffer::allocate(bytes));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  UniqueFd timer(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!wake || !timer) return no_descriptor("eventfd");
  std::shared_ptr<UcxConnection> connection(new UcxConnection(
      std::move(send_buffer), std::move(receive_buffer), std::move(wake), std::move(timer), options));
  TANDEM_ASSIGN(connection->worker_,
                UcxWorker::create(*connection, kNumChannels * options.slots_per_channel + 1, path));
  return connection;
}

UcxConnection::UcxConnection(OwnedBuffer send_buffer, OwnedBuffer receive_buffer, UniqueFd wake,
                             UniqueFd timer, const EndpointOptions& options)
    : send_buffer_(std::move(send_buffer)),
      receive_buffer_(std::move(receive_buffer)),
      wake_(std::move(wake)),
      timer_(std::move(timer)),
      slots_(options.slots_per_channel),
      slot_bytes_(options.slot_bytes),
      slot_stride_(slot_stride(options.slot_bytes)) {
  for (Ring& ring : rings_) {
    ring.acquired.assign(slots_, false);
    ring.window.resize(slots_);
    ring.send_free = ring.receive_free = FreeSlots(slots_);
    ring.credits = slots_;
  }
  const size_t operations = kNumChannels * slots_ + 1;
  headers_.resize(operations);
  fetching_.resize(operations);
  outbox_.reserve(operations);
  batch_.reserve(operations);
  tickets_.reserve(operations);
}

UcxConnection::~UcxConnection() {
  worker_.reset();  // its last callbacks need the members above
}

Result<void> UcxConnection::connect(std::span<const std::byte> peer_address) {
  const std::lock_guard worker(worker_lock_);
  TANDEM_TRY(worker_->connect(peer_address));
  hello_due_ = true;
  push_out();
  return {};
}

Result<SendSlot> UcxConnection::acquire(Channel channel, size_t bytes) {
  bool tell = false;
  {
    const std::lock_guard state(state_);
    Ring& ring = rings_[static_cast<size_t>(channel)];
    // A credit can be back before UCX has told that the send has ended: both are needed.
    if (ring.credits > 0 && !ring.send_free.empty()) {
      const uint32_t slot = ring.send_free.take();
      --ring.credits;
      ring.acquired[slot] = true;
      return SendSlot{
          {send_data(channel, slot), bytes}, channel, static_cast<uint64_t>(channel) << 32 | slot};
    }
    ring.starved = true;
    if (ring.credits == 0 && !ring.starved_told) tell = control_due_ = true;
  }
  if (tell) drain();
  return make_error(ErrorCode::would_block, "no credit");
}

void UcxConnection::credit_came(Ring& ring) {
  ring.starved_told = false;
  if (!ring.starved) return;
  ring.starved = false;
  credit_news_ = true;
}

void UcxConnection::free_send_slot(Channel channel, uint32_t slot) {
  Ring& ring = rings_[static_cast<size_t>(channel)];
  ring.send_free.give(slot);
  if (ring.starved && ring.credits > 0) credit_came(ring);
}

Result<void> UcxConnection::commit(const SendSlot& slot, size_t bytes, bool send) {
  const size_t channel_index = static_cast<size_t>(slot.channel);
  const auto index_of_slot = static_cast<uint32_t>(slot.token);
  const bool sends = send && bytes != 0;
  {
    const std::lock_guard state(state_);
    if (channel_index >= kNumChannels || slot.token >> 32 != channel_index || index_of_slot >= slots_ ||
        !rings_[channel_index].acquired[index_of_slot]) {
      return slot_not_acquired();
    }
    TANDEM_TRY(check_commit(slot, bytes, slot_bytes_));
    Ring& ring = rings_[channel_index];
    ring.acquired[index_of_slot] = false;
    if (sends) {
      outbox_.push_back({slot.channel, index_of_slot, static_cast<uint32_t>(bytes), ring.sent++});
    } else {
      ++ring.credits;
      free_send_slot(slot.channel, index_of_slot);
    }
  }
  if (sends) {
    drain();
  } else {
    wake_poller();  // another thread may have missed this very credit
  }
  return {};
}

void UcxConnection::wake_poller() {
  if (!asleep_.load(std::memory_order_seq_cst) || !asleep_.exchange(false, std::memory_order_seq_cst)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = write(wake_.get(), &one, sizeof(one));
}

void UcxConnection::release(uint64_t token) {
  const auto channel = static_cast<Channel>(token >> 32);
  {
    const std::lock_guard state(state_);
    Ring& ring = rings_[static_cast<size_t>(channel)];
    ring.receive_free.give(static_cast<uint32_t>(token));
    ++ring.freed;
    if (!ring.peer_starved && ring.freed - ring.told < (slots_ + 1) / 2) return;
    ring.peer_starved = false;
    control_due_ = true;
  }
  drain();
}

void UcxConnection::drain() {
  for (;;) {
    {
      const std::lock_guard state(state_);
      if (!has_outgoing()) return;
    }
    std::unique_lock worker(worker_lock_, std::try_to_lock);
    if (!worker) return;  // its holder looks again
    push_out();
    const bool waits = under_way_ != 0;
    worker.unlock();
    bool news = false;
    {
      const std::lock_guard state(state_);
      news = credit_news_;
    }
    if (waits || news) wake_poller();  // what waits needs progress
  }
}

std::array<std::byte, UcxFrameLayout::kBytes> UcxConnection::make_header(UcxFrame frame) {
  for (size_t i = 0; i < kNumChannels; ++i) {
    Ring& ring = rings_[i];
    frame.freed[i] = ring.told = ring.freed;
    if (!ring.starved || ring.credits != 0) continue;
    frame.starved |= 1u << i;
    ring.starved_told = true;
  }
  return UcxFrameLayout::encode(frame);
}

void UcxConnection::push_out() {
  bool send_control = false;
  {
    const std::lock_guard state(state_);
    batch_.swap(outbox_);
    if (worker_ == nullptr || !lost_.empty()) {
      for (const Outgoing& message : batch_) free_send_slot(message.channel, message.slot);
      batch_.clear();
      control_due_ = false;
      return;
    }
    for (const Outgoing& message : batch_) {
      headers_[index(message.channel, message.slot)] =
          make_header({UcxFrameKind::data, message.channel, message.sequence, message.bytes, {}, 0});
    }
    if (!batch_.empty()) control_due_ = false;  // the headers say it all
    if ((control_due_ || hello_due_) && !control_under_way_) {
      send_control = control_under_way_ = true;
      control_due_ = false;
      headers_[control_operation()] = make_header(
          {hello_due_ ? UcxFrameKind::hello : UcxFrameKind::credit, Channel::control, 0, 0, {}, 0});
    }
  }
  for (const Outgoing& message : batch_) {
    const size_t operation = index(message.channel, message.slot);
    ++under_way_;
    const auto outcome = worker_->send(headers_[operation],
                                       {send_data(message.channel, message.slot), message.bytes}, operation);
    if (outcome != UcxWorker::Outcome::pending) on_sent(operation, outcome == UcxWorker::Outcome::done);
  }
  batch_.clear();
  if (send_control) {
    ++under_way_;
    const auto outcome = worker_->send(headers_[control_operation()], {}, control_operation());
    if (outcome != UcxWorker::Outcome::pending) {
      on_sent(control_operation(), outcome == UcxWorker::Outcome::done);
    }
  }
}

void UcxConnection::on_sent(size_t operation, bool ok) {
  --under_way_;
  if (!ok && lost_.empty()) lost_ = "UCX could not send";
  const std::lock_guard state(state_);
  if (operation == control_operation()) {
    control_under_way_ = false;
    if (hello_due_) {
      hello_due_ = false;
      hello_sent_ = ok;
    }
    return;
  }
  const auto channel = static_cast<Channel>(operation / slots_);
  if (ok) ++rings_[static_cast<size_t>(channel)].left;
  free_send_slot(channel, static_cast<uint32_t>(operation % slots_));
}

Result<void> UcxConnection::take_credits(const UcxFrame& frame) {
  for (size_t i = 0; i < kNumChannels; ++i) {
    Ring& ring = rings_[i];
    const uint32_t news = frame.freed[i] - ring.peer_freed;
    if (static_cast<int32_t>(news) <= 0) continue;  // this frame was overtaken by a later one
    const uint32_t out = ring.sent - ring.peer_freed;
    if (news > out) {
      return bad(static_cast<Channel>(i),
                 std::to_string(news) + " slots given back, " + std::to_string(out) + " are out");
    }
    ring.peer_freed = frame.freed[i];
    ring.credits += news;
    ring.starved_told = false;
    if (!ring.send_free.empty()) credit_came(ring);
  }
  for (size_t i = 0; i < kNumChannels; ++i) {
    if ((frame.starved >> i & 1) == 0) continue;
    if (rings_[i].freed != rings_[i].told) {
      control_due_ = true;
    } else {
      rings_[i].peer_starved = true;
    }
  }
  return {};
}

Result<UcxConnection::Message*> UcxConnection::begin_message(const UcxFrame& frame, size_t bytes) {
  if (bytes > slot_bytes_ || bytes != frame.bytes) {
    return bad(frame.channel, "message of " + std::to_string(bytes) + " bytes, said to have " +
                                  std::to_string(frame.bytes) + ", slot_bytes " +
                                  std::to_string(slot_bytes_));
  }
  Ring& ring = rings_[static_cast<size_t>(frame.channel)];
  // What the peer knows of lets it send up to here; what was handed out does not come again.
  const bool has_credit = static_cast<int32_t>(frame.sequence - (ring.told + slots_)) < 0;
  const bool is_new = static_cast<int32_t>(frame.sequence - ring.next_sequence) >= 0;
  Message& message = ring.window[frame.sequence % slots_];
  if (!has_credit || !is_new || message.arrival != Arrival::none || ring.receive_free.empty()) {
    return bad(frame.channel, "message " + std::to_string(frame.sequence) + " without a credit");
  }
  message = {Arrival::begun, ring.receive_free.take(), frame.bytes};
  return &message;
}

void UcxConnection::lie(std::string what) {
  if (lie_.empty()) lie_ = std::move(what);
}

bool UcxConnection::on_message(std::span<const std::byte> header, void* data, size_t bytes, bool rendezvous) {
  if (!lie_.empty()) return false;
  const auto frame = UcxFrameLayout::decode(header);
  if (!frame) {
    lie(frame.error().message);
    return false;
  }
  wired_ = true;  // also by a message that overtook the hello
  if (frame->kind == UcxFrameKind::hello && std::exchange(hello_received_, true)) {
    lie("ucx frame: a second hello");
    return false;
  }
  const std::lock_guard state(state_);
  if (const auto taken = take_credits(*frame); !taken) {
    lie(taken.error().message);
    return false;
  }
  if (frame->kind != UcxFrameKind::data) {
    if (bytes != 0) lie("ucx frame: bytes without a message");
    return false;
  }
  const auto message = begin_message(*frame, bytes);
  if (!message) {
    lie(message.error().message);
    return false;
  }
  if (rendezvous) {
    tickets_.push_back({data, frame->channel, frame->sequence});
    return true;
  }
  std::memcpy(receive_data(frame->channel, (*message)->slot), data, bytes);
  (*message)->arrival = Arrival::whole;
  ++rings_[static_cast<size_t>(frame->channel)].received;
  return true;
}

void UcxConnection::fetch(const Ticket& ticket) {
  size_t operation = 0;
  std::span<std::byte> into;
  {
    const std::lock_guard state(state_);
    const Message& message = rings_[static_cast<size_t>(ticket.channel)].window[ticket.sequence % slots_];
    operation = index(ticket.channel, message.slot);
    into = {receive_data(ticket.channel, message.slot), message.bytes};
  }
  fetching_[operation] = ticket.sequence;
  const auto outcome = worker_->receive(ticket.data, into, operation);
  if (outcome != UcxWorker::Outcome::pending) on_received(operation, outcome == UcxWorker::Outcome::done);
}

void UcxConnection::on_received(size_t operation, bool ok) {
  if (!ok) {
    if (lost_.empty()) lost_ = "UCX could not receive";
    return;
  }
  const std::lock_guard state(state_);
  Ring& ring = rings_[operation / slots_];
  ring.window[fetching_[operation] % slots_].arrival = Arrival::whole;
  ++ring.received;
}

void UcxConnection::on_lost(const std::string& reason) {
  if (lost_.empty()) lost_ = reason;
}

UcxConnection::Progress UcxConnection::progress() {
  Progress result;
  asleep_.store(false, std::memory_order_seq_cst);
  if (slept_) {
    slept_ = false;
    drain_descriptor(wake_.get());
  }
  if (timer_set_) {
    timer_set_ = false;
    const itimerspec off{};
    timerfd_settime(timer_.get(), 0, &off, nullptr);
  }
  {
    const std::lock_guard worker(worker_lock_);
    if (worker_ == nullptr) return result;
    for (int round = 0; round < kRoundsPerPoll; ++round) {
      const bool moved = worker_->progress();
      if (moved) busy_arms_ = 0;
      const bool fetches = !tickets_.empty();
      for (const Ticket& ticket : tickets_) fetch(ticket);
      tickets_.clear();
      if (!moved && !fetches) break;
    }
    result.lost = lost_;
    result.lie = lie_;
  }
  drain();
  return result;
}

std::optional<Incoming> UcxConnection::next() {
  const std::lock_guard state(state_);
  for (size_t tried = 0; tried < kNumChannels; ++tried) {
    const auto channel = static_cast<Channel>(next_channel_);
    Ring& ring = rings_[next_channel_];
    next_channel_ = (next_channel_ + 1) % kNumChannels;
    Message& message = ring.window[ring.next_sequence % slots_];
    if (message.arrival != Arrival::whole) continue;
    ++ring.next_sequence;
    message.arrival = Arrival::none;
    return Incoming{channel, Lease(shared_from_this(), static_cast<uint64_t>(channel) << 32 | message.slot,
                                   {receive_data(channel, message.slot), message.bytes})};
  }
  return std::nullopt;
}

bool UcxConnection::has_waiting() {
  const std::lock_guard state(state_);
  return std::any_of(std::begin(rings_), std::end(rings_), [this](const Ring& ring) {
    return ring.window[ring.next_sequence % slots_].arrival == Arrival::whole;
  });
}

bool UcxConnection::sleep() {
  drain();
  const bool sleeps = try_to_sleep();
  drain();  // what was committed meanwhile
  return sleeps;
}

bool UcxConnection::try_to_sleep() {
  const std::lock_guard worker(worker_lock_);
  if (worker_ == nullptr) return true;
  if (!lost_.empty() || !lie_.empty() || !tickets_.empty()) return false;
  slept_ = true;
  asleep_.store(true, std::memory_order_seq_cst);
  const auto stay_awake = [this] {
    asleep_.store(false, std::memory_order_seq_cst);
    return false;
  };
  {
    const std::lock_guard state(state_);
    if (std::exchange(credit_news_, false)) return stay_awake();
  }
  if (worker_->arm()) {
    busy_arms_ = 0;
    return true;
  }
  if (++busy_arms_ < kBusyArms) return stay_awake();
  const itimerspec once{{0, 0}, {0, kBusyPauseNanoseconds}};
  timerfd_settime(timer_.get(), 0, &once, nullptr);
  timer_set_ = true;
  return true;
}

UcxConnection::Totals UcxConnection::sent_totals() {
  const std::lock_guard state(state_);
  return {rings_[0].left, rings_[1].left, rings_[2].left};
}

bool UcxConnection::has_received(const Totals& totals) {
  const std::lock_guard state(state_);
  for (size_t i = 0; i < kNumChannels; ++i) {
    if (static_cast<int32_t>(totals[i] - rings_[i].received) > 0) return false;
  }
  return true;
}

void UcxConnection::flush() {
  drain();
  const std::lock_guard worker(worker_lock_);
  for (int round = 0; worker_ != nullptr && under_way_ != 0 && round < kRoundsPerPoll; ++round) {
    worker_->progress();
  }
}

void UcxConnection::close() {
  {
    const std::lock_guard worker(worker_lock_);
    worker_.reset();
  }
  drain();
}

}  // namespace tandem
