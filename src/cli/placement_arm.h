// PlacementArm: one side of `tandem bench placement`: ranks in one placement, or of another binary, that run
// the same load again and again. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/engine_host.h"
#include "cli/gsm8k.h"
#include "cli/rank_counters.h"
#include "cli/run_measure.h"
#include "cli/settings.h"

namespace tandem {

struct ArmSpec {
  std::string name;                // "ffn", "attention", "base"
  bool gate_on_attention = false;  // base: as the first arm
  std::string binary;              // empty: this one
};

// "ffn", "attention", "base=BINARY"; the first is what the others are compared with. invalid_argument:
// another word, one twice, fewer than two, base first.
Result<std::vector<ArmSpec>> parse_arms(std::span<const std::string> arms);

struct ArmRun {
  RunMeasure measure;
  std::vector<RankCounters> ranks;  // what each did during the run
};

struct ArmAccuracy {
  uint64_t questions = 0, correct = 0, failed = 0;
};

struct AccuracyTask {
  std::string data;  // GSM8K's format
  int64_t limit = 0;
  uint32_t concurrency = 1, max_tokens = 256;
};

class PlacementArm {
 public:
  virtual ~PlacementArm() = default;
  virtual Result<ArmRun> run(std::span<const GenerationRequest> requests) = 0;
  virtual Result<ArmAccuracy> accuracy(const AccuracyTask& task) = 0;
  virtual std::vector<RankFacts> ranks() const = 0;  // once it has run
  // What a person types to start the same ranks.
  virtual std::string command() const = 0;
};

// Ranks of this binary, started now and kept: a run is requests to their engine.
Result<std::unique_ptr<PlacementArm>> make_engine_arm(const Settings& settings, uint32_t concurrency);
// A binary that is started for every run (`generate --json`) and times its own requests; loading is not
// counted. `binary` empty: this one.
std::unique_ptr<PlacementArm> make_process_arm(const Settings& settings, const std::string& binary,
                                               uint32_t concurrency);

// Flags of the settings under model, engine., afd., serving. and up. that are not at their default.
std::vector<std::string> changed_flags(const Settings& settings);

}  // namespace tandem
