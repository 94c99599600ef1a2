// EngineHost: builds the attention role of this process from settings: reads the weights that the role holds,
// stands the experts behind an FfnPort (in this process, or on an FFN rank), and starts the worker. What it
// builds it owns.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention/engine.h"
#include "cli/settings.h"
#include "model/model_config.h"
#include "serving/trace_endpoint.h"

namespace tandem {

// One line of the table of ranks.
struct RankFacts {
  std::string role;  // "attention", "ffn", "colocated"
  int64_t rank = 0;
  int64_t pid = 0;
  std::string transport;  // "local", "shm", "tcp", "ucx", "inproc"
  std::string address;    // of the peer or of the listener; may be empty
  uint64_t bytes_held = 0;
  std::string isa;
  int64_t threads = 0;
  std::string metrics = {};  // URL of an FFN rank's own; empty: none
};

// Prompt and answer together, as the settings say, or the default.
uint32_t max_context_tokens(const Settings& settings, const ModelConfig& config);
// Tokens that the KV pools of one of `ranks` attention ranks of a host hold when nobody says otherwise: full
// contexts of max_num_seqs sequences, as far as its share of the memory goes.
uint64_t default_kv_tokens(const Settings& settings, const ModelConfig& config, int64_t ranks);

class EngineHost {
 public:
  // `ffn_addresses`: of FFN rank 0, 1, ...; none: colocated. `roles`: how many roles share this host's CPUs.
  static Result<std::unique_ptr<EngineHost>> create(const Settings& settings,
                                                    const std::vector<std::string>& ffn_addresses, int roles);
  ~EngineHost();

  Engine& engine();
  const RankFacts& facts() const;
  // What traces can be asked for; without a ring where the settings want none.
  TraceSource trace_source() const;

 private:
  struct Impl;
  explicit EngineHost(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
