#include "afd/connector.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "afd/multi_rank_ffn.h"
#include "moe/local_ffn.h"

namespace tandem {
namespace {

constexpr std::array kConnectors = {
    ConnectorInfo{"local", "experts in this process"},
    ConnectorInfo{"p2p", "attention to one FFN rank, in turn; FFN ranks exchange rows among themselves"},
    ConnectorInfo{"m2n", "attention to the owners of each row's experts"},
    ConnectorInfo{"auto", "decode by m2n and prefill by p2p; all by p2p with the gate on FFN"},
};

}  // namespace

std::span<const ConnectorInfo> connectors() {
  return kConnectors;
}

std::vector<std::string> connector_names() {
  std::vector<std::string> names;
  names.reserve(kConnectors.size());
  for (const ConnectorInfo& connector : kConnectors) names.emplace_back(connector.name);
  return names;
}

Result<std::unique_ptr<FfnPort>> make_connector(const ConnectorOptions& options) {
  std::string known;
  for (const ConnectorInfo& connector : kConnectors) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", connector.name);
  }
  if (options.name == "local") {
    if (options.local_block == nullptr) {
      return make_error(ErrorCode::invalid_argument, "connector local: this process holds no experts");
    }
    return std::make_unique<LocalFfn>(*options.local_block);
  }
  if (options.name != "p2p" && options.name != "m2n" && options.name != "auto") {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("connector \"{}\" is unknown; known are {}", options.name, known));
  }
  RemoteFfnOptions remote = options.remote;
  remote.settings.connector = options.name;
  remote.settings.num_ffn_ranks = std::max(1u, static_cast<uint32_t>(remote.addresses.size()));
  // One rank has all experts: under p2p nothing is left to share out or to add up.
  if (remote.addresses.size() == 1 && options.name != "m2n") return RemoteFfn::create(remote);
  return MultiRankFfn::create(remote);
}

}  // namespace tandem
