#include "serving/engine_server.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "attention/request_check.h"
#include "base/log.h"
#include "serving/engine_link.h"
#include "serving/engine_outbox.h"
#include "serving/worker_pool.h"

namespace tandem {
namespace {

constexpr size_t kReceiveBatch = 16;
constexpr uint64_t kListenerKey = 0;
// How long a refusal, or a goodbye and what was sent before it, may take to reach the front before the
// connection is dropped.
constexpr Duration kLinger = std::chrono::milliseconds(200);
// A request beside its prompt: biases, stop tokens, id. Far above what the API takes.
constexpr size_t kMaxRequestOverhead = size_t{4} << 20;

}  // namespace

struct EngineServer::Impl {
  enum class Phase : uint8_t { handshake, serving, closing, closed };

  struct Session {
    uint64_t key = 0;
    std::unique_ptr<Endpoint> endpoint;
    std::shared_ptr<EngineOutbox> outbox;
    Phase phase = Phase::handshake;
    Instant limit{};
    std::string name;
    // A request that arrives in parts.
    uint64_t request = 0;
    uint32_t total = 0;
    std::vector<std::byte> bytes;
    // The state that found no credit is sent when there is one: the latest, not each.
    bool state_due = false;
    bool blocked = false;  // events wait for a credit
  };

  Impl(EngineServerOptions given, Engine& served, std::unique_ptr<Listener> socket, Poller poller)
      : options(std::move(given)),
        engine(served),
        listener(std::move(socket)),
        bell(std::make_shared<EngineBell>(std::move(poller))) {
    tell_limits(engine.limits(), options.identity);
    max_request_bytes = size_t{engine.limits().max_context_tokens} * sizeof(int32_t) + kMaxRequestOverhead;
  }

  Poller& poller() const { return bell->poller(); }

  void run() {
    pthread_setname_np(pthread_self(), "tandem-front-io");
    while (!done()) {
      bool busy = accept_all();
      look_at_engine();
      for (const auto& session : sessions) busy = service(*session) || busy;
      std::erase_if(sessions, [](const auto& session) { return session->phase == Phase::closed; });
      if (stopping.load()) tell_drain();
      if (busy) continue;
      bell->will_sleep();
      for (const auto& session : sessions) busy = has_work(*session) || busy;
      if (!busy) {
        std::array<uint64_t, 8> ready;
        poller().wait(options.heartbeat_interval / 2, ready);
      }
      bell->awake();
    }
    say_goodbye();
    sessions.clear();
    num_fronts.store(0);
  }

  // A front leaves when it has read what was sent; one that does not is left after a while.
  void say_goodbye() {
    for (const auto& session : sessions) {
      if (session->phase == Phase::serving)
        (void)send_engine_message(*session->endpoint, Channel::control,
                                  EngineHead::wrap(EngineMessage::goodbye, {}));
    }
    const auto reads = [](const auto& session) {
      std::array<Incoming, kReceiveBatch> dropped;
      return session->phase == Phase::serving &&
             (session->endpoint->poll(dropped) > 0 || session->endpoint->peer() == PeerState::alive);
    };
    for (const Instant limit = now() + kLinger; now() < limit && std::ranges::count_if(sessions, reads) > 0;)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (const auto& session : sessions) {
      if (session->phase != Phase::closed) close(*session, "this rank stops");
    }
  }

  bool has_work(Session& session) {
    if (session.phase == Phase::closed) return true;
    // Events that wait for a credit leave when it comes, which `arm` watches.
    return (session.phase == Phase::serving && !session.blocked && session.outbox->has_events()) ||
           !session.endpoint->arm();
  }

  bool done() {
    if (!stopping.load()) return false;
    return now() >= drain_until || std::ranges::none_of(sessions, [](const auto& session) {
             return session->phase == Phase::serving &&
                    (session->outbox->num_requests() > 0 || session->outbox->has_events());
           });
  }

  void tell_drain() {
    if (drain_told) return;
    drain_told = true;
    for (const auto& session : sessions) {
      if (session->phase == Phase::serving)
        (void)send_engine_message(*session->endpoint, Channel::control,
                                  EngineHead::wrap(EngineMessage::drain, {}));
    }
  }

  // The state for all fronts, when it is due.
  void look_at_engine() {
    const Instant at = now();
    Status health = engine.health();
    const bool changed = health.has_value() != state.health.has_value() ||
                         (!health && health.error().message != state.health.error().message);
    if (!changed && at - state_at < options.state_interval) return;
    state = {engine.stats(), std::move(health)};
    state_at = at;
    for (const auto& session : sessions) session->state_due = true;
  }

  bool accept_all() {
    bool any = false;
    while (true) {
      auto accepted = listener->accept();
      if (!accepted) {
        log_warning("accept: " + accepted.error().message);
        return any;
      }
      if (*accepted == nullptr) return any;
      any = true;
      auto session = std::make_unique<Session>();
      session->key = next_key++;
      session->endpoint = std::move(*accepted);
      session->name = session->endpoint->peer_name();
      session->outbox = std::make_shared<EngineOutbox>(bell, options.max_pending_bytes);
      session->limit = now() + options.hello_limit;
      if (!poller().add(session->endpoint->fd(), session->key)) {
        log_warning(session->name + ": no file descriptors left, connection dropped");
        continue;
      }
      sessions.push_back(std::move(session));
      if (stopping.load()) {
        refuse(*sessions.back(), {ErrorCode::unavailable, "this rank is stopping"});
      } else if (sessions.size() > options.max_fronts) {
        refuse(*sessions.back(), {ErrorCode::resource_exhausted,
                                  fmt::format("{} fronts are connected already", options.max_fronts)});
      }
    }
  }

  // Returns whether something arrived or left.
  bool service(Session& session) {
    if (session.phase == Phase::closed) return false;
    std::array<Incoming, kReceiveBatch> incoming;
    const size_t count = session.endpoint->poll(incoming);
    for (size_t i = 0; i < count; ++i) {
      const Status handled = on_message(session, incoming[i]);
      incoming[i].lease = Lease();
      if (!handled) refuse(session, handled.error());
      if (session.phase == Phase::closed) return true;
    }
    if (count == 0 && session.endpoint->peer() != PeerState::alive) {
      close(session, fmt::format("connection {}", peer_state_name(session.endpoint->peer())));
      return true;
    }
    bool sent = false;
    if (session.phase == Phase::serving) {
      for (const RequestId id : session.outbox->take_overrun()) engine.cancel(id);
      sent = pump(session);
    } else if (now() >= session.limit) {
      close(session, session.phase == Phase::handshake ? "said no hello in time" : "refused");
      return true;
    }
    return count != 0 || sent;
  }

  bool pump(Session& session) {
    if (session.state_due &&
        send_engine_message(*session.endpoint, Channel::control, StateLayout::encode(state))) {
      session.state_due = false;
    }
    bool sent = false;
    session.blocked = false;
    while (session.outbox->has_events()) {
      const auto slot = session.endpoint->acquire(Channel::request, kEngineSlotBytes);
      session.blocked = !slot;
      if (!slot) break;  // no credit, or the front is gone, which `service` sees
      session.outbox->take(kEngineSlotBytes - EngineHead::kBytes, records);
      const size_t bytes = records.empty() ? 0 : EngineHead::kBytes + records.size();
      if (bytes > 0) {
        const auto message = slot->bytes.first(bytes);
        EngineHead::write(EngineMessage::events, message);
        std::memcpy(&message[EngineHead::kBytes], records.data(), records.size());
      }
      (void)session.endpoint->commit(*slot, bytes);
      if (bytes == 0) break;
      sent = true;
    }
    return sent;
  }

  Status on_message(Session& session, Incoming& incoming) {
    if (session.phase == Phase::closing || session.phase == Phase::closed) return {};
    TANDEM_ASSIGN(const EngineHead::View message, EngineHead::parse(incoming.lease.bytes()));
    if (message.kind == EngineMessage::goodbye) {
      close(session, "goodbye");
      return {};
    }
    if (session.phase == Phase::handshake) {
      if (message.kind != EngineMessage::hello)
        return make_error(ErrorCode::invalid_argument, "a front says hello first");
      return on_hello(session, message.body);
    }
    switch (message.kind) {
      case EngineMessage::submit_part:
        return on_part(session, message.body);
      case EngineMessage::cancel: {
        TANDEM_ASSIGN(const uint64_t request, CancelLayout::decode(message.body));
        if (const auto id = session.outbox->cancel(request)) engine.cancel(*id);
        return {};
      }
      case EngineMessage::refuse:
        close(session, "refused: " + ErrorLayout::decode(message.body).message);
        return {};
      default:
        return make_error(ErrorCode::invalid_argument,
                          fmt::format("message {} in an open session", static_cast<int>(message.kind)));
    }
  }

  Status on_hello(Session& session, std::span<const std::byte> body) {
    TANDEM_ASSIGN(const EngineIdentity front, IdentityLayout::decode(body));
    if (front.role != "front")
      return make_error(ErrorCode::invalid_argument, front.text() + " is not a front");
    TANDEM_TRY(match_identities(options.identity, front));
    TANDEM_TRY(send_engine_message(*session.endpoint, Channel::control,
                                   IdentityLayout::encode(EngineMessage::hello_ack, options.identity)));
    session.name = front.text();
    session.phase = Phase::serving;
    session.state_due = true;
    num_fronts.fetch_add(1);
    log_info(fmt::format("{} connected over {}", session.name, session.endpoint->caps().transport));
    return {};
  }

  // An error is the front's breach of the protocol; what is wrong with a request ends that request alone.
  Status on_part(Session& session, std::span<const std::byte> body) {
    TANDEM_ASSIGN(const SubmitPartLayout::Part part, SubmitPartLayout::decode(body));
    if (part.offset == 0) {
      if (part.total > max_request_bytes) {
        return make_error(
            ErrorCode::invalid_argument,
            fmt::format("submit: a request of {} bytes, {} is the most", part.total, max_request_bytes));
      }
      session.request = part.request;
      session.total = part.total;
      session.bytes.clear();
    }
    if (part.request != session.request || part.total != session.total || part.offset != session.bytes.size())
      return make_error(ErrorCode::data_loss, "submit: a part that follows no other");
    session.bytes.insert(session.bytes.end(), part.bytes.begin(), part.bytes.end());
    if (session.bytes.size() < session.total) return {};
    session.total = 0;
    return submit(session);
  }

  Status submit(Session& session) {
    const uint64_t number = session.request;
    auto sink = session.outbox->open(number);
    if (sink == nullptr)
      return make_error(ErrorCode::invalid_argument,
                        fmt::format("submit: request {} is open already", number));
    if (stopping.load()) {
      session.outbox->refuse(number, {ErrorCode::unavailable, label() + " is stopping"});
      return {};
    }
    auto request = RequestLayout::decode(session.bytes, now());
    if (!request) {
      session.outbox->refuse(number, request.error());
      return {};
    }
    if (request->sampling.grammar.empty()) {
      give_to_engine(*session.outbox, number, std::move(*request), std::move(sink));
      return {};
    }
    auto shared = std::make_shared<GenerationRequest>(std::move(*request));
    const bool posted = with_form.try_post([this, outbox = session.outbox, number, shared, sink] {
      if (outbox->is_wanted(number)) return give_to_engine(*outbox, number, std::move(*shared), sink);
      Finish end;
      end.reason = FinishReason::cancelled;
      sink->on_finish(end);
    });
    if (!posted) session.outbox->refuse(number, queue_is_full(engine.limits()).error());
    return {};
  }

  // The I/O thread, or that of answers with a form.
  void give_to_engine(EngineOutbox& outbox, uint64_t number, GenerationRequest request,
                      std::shared_ptr<GenerationSink> sink) {
    const auto id = engine.submit(std::move(request), std::move(sink));
    if (!id) return outbox.refuse(number, id.error());
    if (!outbox.set_engine_id(number, *id)) engine.cancel(*id);
  }

  std::string label() const { return fmt::format("attention rank {}", options.identity.rank); }

  void refuse(Session& session, const Error& error) {
    if (session.phase == Phase::closed) return;
    log_warning(fmt::format("{}: refused: {}", session.name, error.message));
    cancel_all(session);
    (void)send_engine_message(*session.endpoint, Channel::control, ErrorLayout::encode(error));
    if (session.phase == Phase::serving) num_fronts.fetch_sub(1);
    session.phase = Phase::closing;
    session.limit = now() + kLinger;
  }

  void close(Session& session, const std::string& why) {
    log_info(fmt::format("{} left: {}", session.name, why));
    cancel_all(session);
    poller().remove(session.endpoint->fd());
    session.endpoint->fence();
    if (session.phase == Phase::serving) num_fronts.fetch_sub(1);
    session.phase = Phase::closed;
  }

  void cancel_all(Session& session) {
    for (const RequestId id : session.outbox->close()) engine.cancel(id);
  }

  EngineServerOptions options;
  Engine& engine;
  std::unique_ptr<Listener> listener;
  std::shared_ptr<EngineBell> bell;
  size_t max_request_bytes = 0;
  std::vector<std::unique_ptr<Session>> sessions;
  uint64_t next_key = kListenerKey + 1;
  EngineState state;
  Instant state_at{};
  std::vector<std::byte> records;  // on their way into a slot
  std::atomic<uint32_t> num_fronts{0};
  std::atomic<bool> stopping{false};
  Instant drain_until{};  // set before `stopping`
  bool drain_told = false;
  WorkerPool with_form{1, engine.limits().max_queue, "tandem-form"};  // requests whose answer has a form
  std::thread io;
};

EngineServer::EngineServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EngineServer::~EngineServer() {
  stop(Duration::zero());
}

Result<std::unique_ptr<EngineServer>> EngineServer::start(EngineServerOptions options, Engine& engine) {
  EndpointOptions endpoint = engine_endpoint_options(options.heartbeat_interval, options.silence_limit);
  endpoint.security = options.security;
  TANDEM_ASSIGN(std::unique_ptr<Listener> listener, listen(options.listen_address, endpoint));
  TANDEM_ASSIGN(Poller poller, Poller::create());
  TANDEM_TRY(poller.add(listener->fd(), kListenerKey));
  auto impl = std::make_unique<Impl>(std::move(options), engine, std::move(listener), std::move(poller));
  Impl* self = impl.get();
  self->io = std::thread([self] { self->run(); });
  return std::unique_ptr<EngineServer>(new EngineServer(std::move(impl)));
}

const std::string& EngineServer::address() const {
  return impl_->listener->address();
}
uint32_t EngineServer::fronts() const {
  return impl_->num_fronts.load();
}

void EngineServer::stop(Duration drain) {
  if (!impl_->io.joinable()) return;
  impl_->drain_until = now() + drain;
  impl_->stopping.store(true);
  impl_->poller().wake();
  impl_->io.join();
  impl_->with_form.stop();  // what waits there is wanted by nobody any more
}

}  // namespace tandem
