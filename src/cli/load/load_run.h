// Sends a load to a server and waits for all of it. One thread sends; answers come on the client's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/load/arrivals.h"
#include "cli/load/metrics.h"
#include "cli/load/prompts.h"
#include "cli/openai_client.h"

namespace tandem {

struct LoadOptions {
  std::string path = "/v1/completions";
  std::string model;
  bool stream = true;
  bool ignore_eos = true;
  double temperature = 0;
  std::string extra_body;        // a JSON object whose fields every request gets; empty: none
  uint64_t max_concurrency = 0;  // requests in flight; 0: no limit
  ArrivalOptions arrivals;
};

// Refused: extra_body that is not a JSON object.
Status check(const LoadOptions& options);

// The body of a request, as JSON.
std::string request_body(const LoadOptions& options, const LoadPrompt& prompt);

// `on_progress(ended, failed, in flight)` after each end, and now and then. An error is one of making
// prompts; requests that fail are records. Records in the order of sending.
Result<std::vector<LoadRecord>> run_load(
    OpenAiClient& client, const LoadOptions& options, const PromptSource& prompts,
    const std::function<void(uint64_t, uint64_t, uint64_t)>& on_progress);

// One request that is not measured. An error says what the server said.
Status send_warmup(OpenAiClient& client, const LoadOptions& options, const PromptSource& prompts,
                   uint64_t index);

}  // namespace tandem
