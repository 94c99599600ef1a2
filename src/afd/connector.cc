#include "afd/connector.h"

#include <fmt/format.h>

#include <array>

#include "afd/m2n_ffn.h"
#include "moe/local_ffn.h"

namespace tandem {
namespace {

constexpr std::array kConnectors = {
    ConnectorInfo{"local", "experts in this process", true},
    ConnectorInfo{"p2p", "attention to its home FFN rank; this build takes one FFN rank", true},
    ConnectorInfo{"m2n", "attention to the owners of each row's experts, on any number of FFN ranks", true},
    ConnectorInfo{"auto", "p2p or m2n by row class; comes with p2p over several FFN ranks", false},
};

}  // namespace

std::span<const ConnectorInfo> connectors() {
  return kConnectors;
}

std::vector<std::string> connector_names() {
  std::vector<std::string> names;
  for (const ConnectorInfo& connector : kConnectors) names.emplace_back(connector.name);
  return names;
}

Result<std::unique_ptr<FfnPort>> make_connector(const ConnectorOptions& options) {
  std::string known;
  for (const ConnectorInfo& connector : kConnectors) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", connector.name);
    if (connector.name != options.name || connector.available) continue;
    return make_error(ErrorCode::unsupported,
                      fmt::format("connector {}: {}; use p2p with one FFN rank, or m2n", connector.name,
                                  connector.summary));
  }
  if (options.name == "local") {
    if (options.local_block == nullptr) {
      return make_error(ErrorCode::invalid_argument, "connector local: this process holds no experts");
    }
    return std::make_unique<LocalFfn>(*options.local_block);
  }
  if (options.name == "p2p") return RemoteFfn::create(options.remote);
  if (options.name == "m2n") return M2nFfn::create(options.remote);
  return make_error(ErrorCode::invalid_argument,
                    fmt::format("connector \"{}\" is unknown; known are {}", options.name, known));
}

}  // namespace tandem
