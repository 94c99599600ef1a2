// Connectors: the ways in which an attention rank reaches experts. One table; `make_connector` is the only
// place that knows which exist. Any thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "afd/remote_ffn.h"
#include "moe/ffn_port.h"
#include "moe/moe_block.h"

namespace tandem {

struct ConnectorInfo {
  std::string_view name;
  std::string_view summary;  // one line for help and messages
  bool available = true;     // in this build; others are refused by name
};

// All names that a configuration may use.
std::span<const ConnectorInfo> connectors();
std::vector<std::string> connector_names();

struct ConnectorOptions {
  std::string name = "p2p";
  MoeBlock* local_block = nullptr;  // for local: the block that computes, outlives the port
  RemoteFfnOptions remote;          // for the others; its settings' connector and num_ffn_ranks follow
};

// Blocks as RemoteFfn::create and MultiRankFfn::create do. invalid_argument: an unknown name (lists the known
// ones).
Result<std::unique_ptr<FfnPort>> make_connector(const ConnectorOptions& options);

}  // namespace tandem
