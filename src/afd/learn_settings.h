// What a client without the model's files learns from an FFN rank, so that it can connect like any attention
// rank: the settings of docs/protocol.md, section 4, read back from their text, and the terms of the
// connection. `learn_settings` opens a connection of its own, asks, and leaves. Values; any thread.
#pragma once

#include <atomic>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "afd/handshake.h"
#include "afd/split_settings.h"
#include "transport/endpoint.h"

namespace tandem {

using SettingList = std::vector<std::pair<std::string, std::string>>;

// The inverse of list_settings. data_loss: a key is missing, or a value is none; unsupported: a key or a
// value that this release does not know. With one FFN rank the connector "any" becomes p2p.
Result<SplitSettings> parse_settings(std::span<const std::pair<std::string, std::string>> lines);

struct LearnOptions {
  std::string address;
  uint32_t attention_rank = 0;  // what this side calls itself
  // Settings that must have these values; all others are taken as they come.
  SettingList expected;
  EndpointOptions endpoint;                            // security and limits; sizes and times are the peer's
  Duration handshake_limit = std::chrono::seconds(5);  // one connection
  // The rank may still load, or wait for other ranks: tried again until then.
  Instant deadline = Instant::max();
  const std::atomic<bool>* give_up = nullptr;  // ends the waiting (cancelled)
};

struct LearnedSettings {
  SplitSettings settings;
  uint32_t slots_per_channel = 0;
  Duration heartbeat_interval{}, silence_limit{};
};

// Blocks. deadline_exceeded, naming the address and the reason of the last try; what another try cannot mend
// (an expected setting that differs, an address that is none) at once. invalid_argument: an expected key that
// is no setting.
Result<LearnedSettings> learn_settings(const LearnOptions& options);

}  // namespace tandem
