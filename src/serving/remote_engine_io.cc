// The I/O thread of RemoteEngine: connecting, sending, receiving, loss.
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "serving/remote_engine_impl.h"
#include "transport/connecting.h"

namespace tandem {
namespace {

constexpr uint64_t kEndpointKey = 0;
constexpr size_t kReceiveBatch = 16;
constexpr Duration kWaitingLogInterval = std::chrono::seconds(10);
constexpr Duration kRefusedRetryInterval =
    std::chrono::seconds(1);  // a rank that does not fit: its operator acts, not we

// The first limit that `theirs` has less of than `ours`; empty: none.
std::string shrunk_limit(const EngineLimits& ours, const EngineLimits& theirs) {
  const auto less = [](const char* name, uint32_t before, uint32_t after) {
    return after >= before ? std::string() : fmt::format("{} {}, it had {}", name, after, before);
  };
  for (const std::string& text :
       {less("max_context_tokens", ours.max_context_tokens, theirs.max_context_tokens),
        less("kv_pool_tokens", ours.kv_pool_tokens, theirs.kv_pool_tokens),
        less("vocab_size", ours.vocab_size, theirs.vocab_size),
        less("max_num_seqs", ours.max_num_seqs, theirs.max_num_seqs),
        less("max_queue", ours.max_queue, theirs.max_queue)}) {
    if (!text.empty()) return text;
  }
  return {};
}

}  // namespace

void RemoteEngine::Impl::run() {
  pthread_setname_np(pthread_self(), "tandem-engine-io");
  while (!stop.load()) {
    if (endpoint == nullptr) {
      reconnect();
    } else {
      serve();
    }
  }
  if (endpoint != nullptr) {
    (void)send_engine_message(*endpoint, Channel::control, EngineHead::wrap(EngineMessage::goodbye, {}));
    endpoint->poll({});
    bell->poller().remove(endpoint->fd());
    endpoint.reset();
  }
  {
    const std::lock_guard lock(mutex);
    link = Link::down;
    reason = {ErrorCode::unavailable, "the front is stopping"};
  }
  end_all(FinishReason::cancelled, {ErrorCode::unavailable, "the front is stopping"});
}

void RemoteEngine::Impl::reconnect() {
  const Status connected = connect_once();
  if (connected || stop.load()) return;
  if (endpoint != nullptr) {
    bell->poller().remove(endpoint->fd());
    endpoint->fence();
    endpoint.reset();
  }
  std::unique_lock lock(mutex);
  Error error{connected.error().code, label + ": " + connected.error().message};
  const bool news = reason.message != error.message;
  reason = std::move(error);
  refused = is_final_refusal(reason.code);
  link = Link::down;
  if (news || now() - last_waiting_log >= kWaitingLogInterval) {
    last_waiting_log = now();
    log_info(refused ? reason.message : "waiting for " + reason.message);
  }
  changed.notify_all();
  changed.wait_for(
      lock,
      refused ? std::max(kRefusedRetryInterval, options.reconnect_interval) : options.reconnect_interval,
      [this] { return stop.load(); });
}

Status RemoteEngine::Impl::connect_once() {
  TANDEM_ASSIGN(endpoint, tandem::connect(options.address, endpoint_options, stop));
  if (!bell->poller().add(endpoint->fd(), kEndpointKey))
    return make_error(ErrorCode::resource_exhausted, "no file descriptors left");
  {
    const std::lock_guard lock(mutex);
    link = Link::greeting;
  }
  said_goodbye = false;
  TANDEM_TRY(send_engine_message(*endpoint, Channel::control,
                                 IdentityLayout::encode(EngineMessage::hello, options.identity)));
  return greet(now() + options.handshake_limit);
}

// Until the rank has said who it is and how it is.
Status RemoteEngine::Impl::greet(Instant limit) {
  bool greeted = false;
  while (true) {
    Incoming incoming;
    if (endpoint->poll({&incoming, 1}) == 1) {
      TANDEM_ASSIGN(const EngineHead::View message, EngineHead::parse(incoming.lease.bytes()));
      if (message.kind == EngineMessage::refuse) {
        Error error = ErrorLayout::decode(message.body);
        return make_error(error.code, "refused: " + error.message);
      }
      if (message.kind == EngineMessage::goodbye || message.kind == EngineMessage::drain)
        return make_error(ErrorCode::unavailable, "it is stopping");
      if (!greeted) {
        if (message.kind != EngineMessage::hello_ack)
          return make_error(ErrorCode::data_loss, "it does not answer a hello with one");
        TANDEM_TRY(on_ack(message.body));
        greeted = true;
        continue;
      }
      if (message.kind != EngineMessage::state)
        return make_error(ErrorCode::data_loss, "it does not state its health after the hello");
      TANDEM_ASSIGN(EngineState first, StateLayout::decode(message.body));
      const std::lock_guard lock(mutex);
      state = std::move(first);
      link = Link::up;
      refused = false;
      ++connections;
      changed.notify_all();
      log_info(fmt::format("{} ({}): connected over {}", label, peer.name, endpoint->caps().transport));
      return {};
    }
    if (endpoint->peer() != PeerState::alive)
      return make_error(ErrorCode::unavailable,
                        fmt::format("connection {}", peer_state_name(endpoint->peer())));
    if (stop.load()) return make_error(ErrorCode::cancelled, "stopped");
    if (now() >= limit) return make_error(ErrorCode::deadline_exceeded, "it does not answer a hello");
    if (!endpoint->arm()) continue;
    std::array<uint64_t, 2> ready;
    bell->poller().wait(options.heartbeat_interval / 2, ready);
  }
}

Status RemoteEngine::Impl::on_ack(std::span<const std::byte> body) {
  TANDEM_ASSIGN(EngineIdentity theirs, IdentityLayout::decode(body));
  const auto invalid = [](std::string message) {
    return make_error(ErrorCode::invalid_argument, std::move(message));
  };
  if (theirs.role != "attention") return invalid(theirs.text() + " is no attention rank");
  if (theirs.rank != options.rank) {
    return invalid(
        fmt::format("it says that it is attention rank {}: list attention addresses in order of rank, "
                    "and give each process its afd.attention_rank",
                    theirs.rank));
  }
  TANDEM_TRY(match_identities(options.identity, theirs));
  TANDEM_ASSIGN(const EngineLimits stated, told_limits(theirs));
  const std::lock_guard lock(mutex);
  if (limits) {
    if (theirs.shared != peer.shared) {
      TANDEM_TRY(match_identities(peer, theirs));
    }
    if (const std::string less = shrunk_limit(*limits, stated); !less.empty())
      return invalid(fmt::format("it came back with less than before ({}): start the front again", less));
    if (theirs.incarnation != peer.incarnation) before.add(std::exchange(state.stats, {}).totals());
  } else {
    limits = stated;
  }
  peer = std::move(theirs);
  return {};
}

void RemoteEngine::Impl::serve() {
  std::array<Incoming, kReceiveBatch> incoming;
  const size_t count = endpoint->poll(incoming);
  for (size_t i = 0; i < count; ++i) {
    const Status handled = on_message(incoming[i]);
    incoming[i].lease = Lease();  // gives the credit back: the rank may send on
    if (!handled) return lose(handled.error());
  }
  if (count == 0 && endpoint->peer() != PeerState::alive) {
    return lose({ErrorCode::unavailable, fmt::format("connection {}", peer_state_name(endpoint->peer()))});
  }
  if (said_goodbye && count == 0) {
    bool idle = false;
    {
      const std::lock_guard lock(mutex);
      idle = sinks.empty();
    }
    if (idle) return lose({ErrorCode::unavailable, "it has stopped"});
  }
  if (pump() || count != 0) return;
  bell->will_sleep();
  bool work = false;
  {
    const std::lock_guard lock(mutex);
    work = (!outgoing.empty() && !blocked) || !unsent.empty();
  }
  if (!work && endpoint->arm()) {
    std::array<uint64_t, 2> ready;
    bell->poller().wait(options.heartbeat_interval / 2, ready);
  }
  bell->awake();
}

Status RemoteEngine::Impl::on_message(const Incoming& incoming) {
  TANDEM_ASSIGN(const EngineHead::View message, EngineHead::parse(incoming.lease.bytes()));
  switch (message.kind) {
    case EngineMessage::events:
      return EventLayout::visit(message.body, *this);
    case EngineMessage::state: {
      TANDEM_ASSIGN(EngineState next, StateLayout::decode(message.body));
      const std::lock_guard lock(mutex);
      state = std::move(next);
      return {};
    }
    case EngineMessage::drain: {
      const std::lock_guard lock(mutex);
      link = Link::draining;
      reason = {ErrorCode::unavailable, label + " is stopping"};
      return {};
    }
    case EngineMessage::goodbye: {
      // Channels are not ordered: events that were sent before may still come. `serve` leaves when they have.
      const std::lock_guard lock(mutex);
      link = Link::draining;
      reason = {ErrorCode::unavailable, label + " has stopped"};
      said_goodbye = true;
      return {};
    }
    case EngineMessage::refuse: {
      Error error = ErrorLayout::decode(message.body);
      return make_error(error.code, "refused: " + error.message);
    }
    default:
      return make_error(ErrorCode::data_loss,
                        fmt::format("message {} from an attention rank", static_cast<int>(message.kind)));
  }
}

bool RemoteEngine::Impl::pump() {
  bool sent = false;
  std::vector<RequestId> cancelled;
  {
    const std::lock_guard lock(mutex);
    cancelled.swap(unsent);
    blocked = false;
    while (!outgoing.empty()) {
      Outgoing& next = outgoing.front();
      if (next.bytes.empty() && !sinks.contains(next.id)) {  // a cancel that comes too late
        outgoing.pop_front();
        continue;
      }
      const bool is_cancel = next.bytes.empty();
      const std::vector<std::byte> cancel =
          is_cancel ? CancelLayout::encode(next.id) : std::vector<std::byte>();
      const size_t bytes =
          is_cancel ? cancel.size()
                    : SubmitPartLayout::message_bytes(next.bytes.size() - next.sent, kEngineSlotBytes);
      const auto slot = endpoint->acquire(Channel::request, bytes);
      blocked = !slot;
      if (!slot) break;  // no credit, or the rank is gone, which `serve` sees
      if (is_cancel) {
        std::ranges::copy(cancel, slot->bytes.begin());
      } else {
        const auto part =
            std::span<const std::byte>(next.bytes).subspan(next.sent, bytes - SubmitPartLayout::kHeadBytes);
        SubmitPartLayout::write(
            {next.id, static_cast<uint32_t>(next.bytes.size()), static_cast<uint32_t>(next.sent), part},
            slot->bytes);
        next.sent += part.size();
      }
      (void)endpoint->commit(*slot, bytes);
      sent = true;
      if (next.sent == next.bytes.size()) outgoing.pop_front();
    }
  }
  for (const RequestId id : cancelled) {
    Finish end;
    end.reason = FinishReason::cancelled;
    finish(id, end);
  }
  return sent;
}

void RemoteEngine::Impl::lose(const Error& error) {
  const Error named{ErrorCode::unavailable, label + ": " + error.message};
  log_warning(named.message + "; reconnecting");
  bell->poller().remove(endpoint->fd());
  {
    const std::lock_guard lock(mutex);
    link = Link::down;
    reason = named;
  }
  if (is_final_refusal(error.code)) {  // what it sent is not the protocol: it hears so
    (void)send_engine_message(*endpoint, Channel::control, ErrorLayout::encode(error));
    endpoint->poll({});
  }
  endpoint->fence();
  endpoint.reset();
  end_all(FinishReason::error, named);
}

void RemoteEngine::Impl::end_all(FinishReason reason_of_end, const Error& error) {
  std::map<RequestId, std::shared_ptr<GenerationSink>> ended;
  {
    const std::lock_guard lock(mutex);
    ended.swap(sinks);
    outgoing.clear();
    unsent.clear();
  }
  Finish end;
  end.reason = reason_of_end;
  end.error = error;
  for (const auto& [id, sink] : ended) sink->on_finish(end);
}

void RemoteEngine::Impl::finish(RequestId id, const Finish& end) {
  std::shared_ptr<GenerationSink> sink;
  {
    const std::lock_guard lock(mutex);
    const auto it = sinks.find(id);
    if (it == sinks.end()) return;
    sink = std::move(it->second);
    sinks.erase(it);
  }
  sink->on_finish(end);
}

std::shared_ptr<GenerationSink> RemoteEngine::Impl::sink_of(RequestId id) {
  const std::lock_guard lock(mutex);
  const auto it = sinks.find(id);
  return it == sinks.end() ? nullptr : it->second;
}

void RemoteEngine::Impl::on_token(uint64_t request, const TokenEvent& event) {
  if (const auto sink = sink_of(request)) sink->on_token(event);
}

void RemoteEngine::Impl::on_prompt_token(uint64_t request, const TokenEvent& event) {
  if (const auto sink = sink_of(request)) sink->on_prompt_token(event);
}

void RemoteEngine::Impl::on_finish(uint64_t request, const Finish& end) {
  finish(request, end);
}

}  // namespace tandem
