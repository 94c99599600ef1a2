#include "serving/engine_front.h"

#include <fmt/format.h>

#include <thread>

#include "serving/balanced_engine.h"

namespace tandem {
namespace {

// How soon a start notices that a rank has come, or that it is not wanted any more.
constexpr Duration kLookInterval = std::chrono::milliseconds(20);

}  // namespace

struct EngineFront::Impl {
  std::vector<RemoteEngine*> ranks;  // owned by `balanced`, or by `starting` until it stands
  std::vector<std::unique_ptr<RemoteEngine>> starting;
  std::unique_ptr<BalancedEngine> balanced;

  Status wait(const EngineFrontOptions& options) const {
    const Instant limit = now() + options.start_limit;
    while (true) {
      std::string missing;
      for (const auto& rank : starting) {
        const auto result = rank->start_result();
        if (result && !*result) return std::unexpected(result->error());
        if (!result) missing += (missing.empty() ? "" : "; ") + rank->waiting_for();
      }
      if (missing.empty()) return {};
      if (options.give_up != nullptr && options.give_up->load())
        return make_error(ErrorCode::cancelled, "stopped while waiting for " + missing);
      if (now() >= limit) {
        return make_error(
            ErrorCode::deadline_exceeded,
            fmt::format("not all attention ranks came within {} s: {}",
                        std::chrono::duration_cast<std::chrono::seconds>(options.start_limit).count(),
                        missing));
      }
      std::this_thread::sleep_for(kLookInterval);
    }
  }

  // The front may know less of the model than its ranks do: they must agree among themselves, too.
  Status compare() const {
    for (const auto& rank : starting) TANDEM_TRY(match_identities(starting.front()->peer(), rank->peer()));
    return {};
  }
};

EngineFront::EngineFront(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EngineFront::~EngineFront() = default;

Result<std::unique_ptr<EngineFront>> EngineFront::connect(const EngineFrontOptions& options) {
  if (options.addresses.empty())
    return make_error(ErrorCode::invalid_argument, "afd.attention: no address of an attention rank");
  auto impl = std::make_unique<Impl>();
  for (uint32_t rank = 0; rank < options.addresses.size(); ++rank) {
    RemoteEngineOptions remote;
    remote.address = options.addresses[rank];
    remote.rank = rank;
    remote.identity = options.identity;
    remote.silence_limit = options.silence_limit;
    remote.security = options.security;
    TANDEM_ASSIGN(std::unique_ptr<RemoteEngine> started, RemoteEngine::start(remote));
    impl->starting.push_back(std::move(started));
  }
  TANDEM_TRY(impl->wait(options));
  TANDEM_TRY(impl->compare());
  std::vector<BalancedEngine::Rank> ranks;
  for (auto& rank : impl->starting) {
    impl->ranks.push_back(rank.get());
    ranks.push_back({rank->label(), std::move(rank)});
  }
  impl->starting.clear();
  impl->balanced = std::make_unique<BalancedEngine>(std::move(ranks));
  return std::unique_ptr<EngineFront>(new EngineFront(std::move(impl)));
}

Engine& EngineFront::engine() {
  return *impl_->balanced;
}

std::vector<EngineIdentity> EngineFront::peers() const {
  std::vector<EngineIdentity> peers;
  for (const RemoteEngine* rank : impl_->ranks) peers.push_back(rank->peer());
  return peers;
}

}  // namespace tandem
