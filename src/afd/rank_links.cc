#include "afd/rank_links.h"

#include <fmt/format.h>

#include <thread>

namespace tandem {
namespace {

constexpr Duration kStartPollInterval = std::chrono::milliseconds(50);  // loading weights takes seconds

}  // namespace

Status RankLinks::start(const RemoteFfnOptions& options, std::optional<uint32_t> except) {
  if (options.addresses.empty() || options.addresses.size() > UINT16_MAX) {
    return make_error(ErrorCode::invalid_argument, fmt::format("{} FFN addresses", options.addresses.size()));
  }
  for (uint32_t rank = 0; rank < options.addresses.size(); ++rank) {
    if (rank == except) {
      links_.push_back(nullptr);
      continue;
    }
    RemoteFfnOptions one = options;
    one.addresses = {options.addresses[rank]};
    one.ffn_rank = rank;
    one.holds_part = true;
    TANDEM_ASSIGN(std::unique_ptr<RemoteFfn> link, RemoteFfn::start(one));
    links_.push_back(std::move(link));
  }
  return {};
}

std::optional<Status> RankLinks::start_result() const {
  bool all = true;
  for (const auto& link : links_) {
    if (link == nullptr) continue;
    const std::optional<Status> result = link->start_result();
    if (result && !*result) return result;
    all = all && result.has_value();
  }
  if (all) return Status{};
  return std::nullopt;
}

std::string RankLinks::waiting_for() const {
  std::string missing;
  for (const auto& link : links_) {
    if (link == nullptr || link->start_result().has_value()) continue;
    missing += (missing.empty() ? "" : "; ") + link->waiting_for();
  }
  return missing;
}

Status RankLinks::wait(const RemoteFfnOptions& options) const {
  const Instant limit = now() + options.start_limit;
  while (true) {
    if (const std::optional<Status> result = start_result()) return *result;
    if (options.give_up != nullptr && options.give_up->load()) {
      return make_error(ErrorCode::cancelled, "stopped while waiting for " + waiting_for());
    }
    if (now() >= limit) {
      return make_error(
          ErrorCode::deadline_exceeded,
          fmt::format("not all FFN ranks within {} s: {}",
                      std::chrono::duration_cast<std::chrono::seconds>(options.start_limit).count(),
                      waiting_for()));
    }
    std::this_thread::sleep_for(kStartPollInterval);
  }
}

std::vector<FfnRankFacts> RankLinks::peers() const {
  std::vector<FfnRankFacts> facts;
  for (const auto& link : links_) {
    if (link != nullptr) facts.push_back(link->peer());
  }
  return facts;
}

Result<ExpertDispatcher> RankLinks::assemble(const SplitSettings& settings,
                                             std::optional<FfnRankFacts> own) const {
  std::vector<FfnRankFacts> facts = peers();
  if (own) facts.push_back(std::move(*own));
  auto assembled = assemble_topology(settings, facts, map_epoch(facts));
  if (!assembled) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("{} (of {} FFN ranks)", assembled.error().message, facts.size()));
  }
  return ExpertDispatcher::create(std::make_shared<const ExpertMap>(std::move(*assembled)), settings.top_k);
}

Status RankLinks::health() const {
  for (const auto& link : links_) {
    if (link != nullptr) TANDEM_TRY(link->health());
  }
  return {};
}

RemoteFfnStats RankLinks::stats() const {
  RemoteFfnStats sum;
  for (const auto& link : links_) {
    if (link == nullptr) continue;
    const RemoteFfnStats one = link->stats();
    sum.requests += one.requests;
    sum.tiles_sent += one.tiles_sent;
    sum.replies += one.replies;
    sum.replies_dropped += one.replies_dropped;
    sum.failures += one.failures;
    sum.connections += one.connections;
  }
  return sum;
}

}  // namespace tandem
