#include "serving/remote_engine.h"

#include <fmt/format.h>

#include <algorithm>

#include "attention/request_check.h"
#include "serving/remote_engine_impl.h"

namespace tandem {
namespace {

constexpr Duration kLongestConnect = std::chrono::seconds(1);  // one waits, and hears why, that often

}  // namespace

RemoteEngine::Impl::Impl(const RemoteEngineOptions& given, Poller poller)
    : options(given),
      label(fmt::format("attention rank {} at {}", given.rank, given.address)),
      endpoint_options(engine_endpoint_options(given.heartbeat_interval, given.silence_limit)),
      bell(std::make_shared<EngineBell>(std::move(poller))) {
  endpoint_options.security = options.security;
  endpoint_options.connect_limit = std::min(kLongestConnect, options.handshake_limit);
}

RemoteEngine::RemoteEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

RemoteEngine::~RemoteEngine() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stop.store(true);
    impl_->changed.notify_all();
  }
  impl_->bell->poller().wake();
  impl_->io.join();
}

Result<std::unique_ptr<RemoteEngine>> RemoteEngine::start(const RemoteEngineOptions& options) {
  TANDEM_ASSIGN(Poller poller, Poller::create());
  auto impl = std::make_unique<Impl>(options, std::move(poller));
  Impl* self = impl.get();
  self->io = std::thread([self] { self->run(); });
  return std::unique_ptr<RemoteEngine>(new RemoteEngine(std::move(impl)));
}

std::optional<Status> RemoteEngine::start_result() const {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->connections > 0) return Status{};
  if (impl_->refused) return std::unexpected(impl_->reason);
  return std::nullopt;
}

std::string RemoteEngine::waiting_for() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->reason.message;
}

const EngineLimits& RemoteEngine::limits() const {
  static const EngineLimits kUnknown;
  const std::lock_guard lock(impl_->mutex);
  return impl_->limits ? *impl_->limits : kUnknown;  // set once
}

Error RemoteEngine::Impl::lost_reason() const {
  return {ErrorCode::unavailable, reason.message};
}

Result<RequestId> RemoteEngine::Impl::submit(GenerationRequest request,
                                             std::shared_ptr<GenerationSink> sink) {
  RequestId id = 0;
  {
    const std::lock_guard lock(mutex);
    if (link != Link::up) return std::unexpected(lost_reason());
    if (!state.health) return std::unexpected(state.health.error());
  }
  TANDEM_TRY(check_request(request, *limits));
  std::vector<std::byte> bytes = RequestLayout::encode(request, now());
  {
    const std::lock_guard lock(mutex);
    if (link != Link::up) return std::unexpected(lost_reason());
    // The rank judges by its own queue; what certainly does not fit is not sent.
    if (sinks.size() >= size_t{limits->max_queue} + limits->max_num_seqs) return queue_is_full(*limits);
    id = next_id++;
    sinks.emplace(id, std::move(sink));
    outgoing.push_back({id, std::move(bytes), 0});
  }
  bell->ring();
  return id;
}

void RemoteEngine::Impl::cancel(RequestId id) {
  {
    const std::lock_guard lock(mutex);
    if (!sinks.contains(id)) return;
    const auto waiting = std::ranges::find_if(
        outgoing, [id](const Outgoing& other) { return other.id == id && other.sent == 0; });
    if (waiting == outgoing.end()) {
      outgoing.push_back({id, {}, 0});
    } else if (!waiting->bytes.empty()) {  // nothing of it has left
      outgoing.erase(waiting);
      unsent.push_back(id);
    }
  }
  bell->ring();
}

Result<RequestId> RemoteEngine::submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) {
  return impl_->submit(std::move(request), std::move(sink));
}
void RemoteEngine::cancel(RequestId id) {
  impl_->cancel(id);
}

EngineStats RemoteEngine::stats() const {
  const std::lock_guard lock(impl_->mutex);
  const bool is_lost = impl_->link == Impl::Link::down || impl_->link == Impl::Link::greeting;
  EngineStats stats = is_lost ? impl_->state.stats.totals() : impl_->state.stats;
  stats.add(impl_->before);
  if (is_lost) return stats;
  // What is under way to the rank waits, too.
  const auto open = static_cast<uint32_t>(impl_->sinks.size());
  stats.waiting = std::max(stats.waiting, open > stats.running ? open - stats.running : 0);
  return stats;
}

Status RemoteEngine::health() const {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->link != Impl::Link::up) return std::unexpected(impl_->lost_reason());
  if (!impl_->state.health)
    return make_error(ErrorCode::unavailable, impl_->label + ": " + impl_->state.health.error().message);
  return {};
}

const std::string& RemoteEngine::label() const {
  return impl_->label;
}
EngineIdentity RemoteEngine::peer() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->peer;
}
uint64_t RemoteEngine::connections() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->connections;
}

}  // namespace tandem
