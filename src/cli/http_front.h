// The HTTP side of the commands that serve: starting it, telling whoever started the process, and serving
// until asked to stop. Main thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cli/deployment.h"
#include "cli/settings.h"
#include "cli/stop_signal.h"
#include "serving/api_server.h"
#include "serving/served_model.h"

namespace tandem {

// The name of the model in the API.
std::string served_name(const Settings& settings);

// Tokenizer, chat format and defaults of the model folder.
Result<ServedModel> read_model(const Settings& settings);

// Keys and origins of the settings; invalid_argument: a file of keys that cannot be read.
Result<HttpAccess> access_of(const ServingSettings& serving);

// What the process tells whoever started it, one line each on standard output: words, or JSON objects with
// --json.
void tell(const Settings& settings, const char* event, const std::string& url);
void tell_ranks(const Settings& settings, const std::vector<RankFacts>& ranks);

// Listens, says so, and answers 503 until the model is there.
Result<std::unique_ptr<ApiServer>> start_server(const Settings& settings);

// Says that it serves, and serves until it is asked to stop. `tend` is called now and then; may be empty.
void serve_until_stopped(const Settings& settings, StopSignal& stop, ApiServer& server, ServedModel model,
                         Engine& engine, const std::function<void()>& tend);

}  // namespace tandem
