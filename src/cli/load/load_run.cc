#include "cli/load/load_run.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"

namespace tandem {
namespace {

using Json = nlohmann::json;

// How long the sender sleeps at most: progress goes on while nothing ends.
constexpr double kTickSeconds = 0.25;

// Shared with callbacks, which may come after an error has ended the run.
struct Ended {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::pair<size_t, OpenAiAnswer>> answers;
};

LoadRecord finished(LoadRecord record, const OpenAiAnswer& answer, const LoadPrompt& prompt, bool stream) {
  record.ended = record.sent + answer.seconds;
  record.status = answer.status;
  record.error = answer.error;
  record.input_tokens =
      answer.prompt_tokens >= 0 ? answer.prompt_tokens : static_cast<int64_t>(prompt.input_units);
  record.cached_tokens = std::max<int64_t>(0, answer.cached_tokens);
  if (stream) {
    for (const double seconds : answer.piece_seconds) record.pieces.push_back(record.sent + seconds);
  }
  // A server that says nothing of its tokens: one a piece.
  record.output_tokens =
      answer.completion_tokens >= 0 ? answer.completion_tokens : static_cast<int64_t>(record.pieces.size());
  return record;
}

}  // namespace

Status check(const LoadOptions& options) {
  if (options.extra_body.empty() || Json::parse(options.extra_body, nullptr, false).is_object()) return {};
  return make_error(
      ErrorCode::invalid_argument,
      "load.extra_body: '" + options.extra_body + "' is not a JSON object; use one such as {\"top_k\": 1}");
}

std::string request_body(const LoadOptions& options, const LoadPrompt& prompt) {
  Json body = {
      {"model", options.model}, {"temperature", options.temperature}, {"max_tokens", prompt.output_tokens}};
  if (options.stream) {
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
  }
  if (options.ignore_eos) body["ignore_eos"] = true;
  if (!options.extra_body.empty()) body.update(Json::parse(options.extra_body, nullptr, false));
  // The prompt is JSON text already, and may be large: it is put in as it is.
  std::string text = body.dump();
  text.pop_back();
  return text + (options.path.find("chat") != std::string::npos ? ",\"messages\":" : ",\"prompt\":") +
         prompt.json + "}";
}

Result<std::vector<LoadRecord>> run_load(
    OpenAiClient& client, const LoadOptions& options, const PromptSource& prompts,
    const std::function<void(uint64_t, uint64_t, uint64_t)>& on_progress) {
  const auto ended = std::make_shared<Ended>();
  ArrivalSchedule schedule(options.arrivals);
  std::vector<LoadRecord> records;
  std::vector<LoadPrompt> open_prompts;  // without their texts: what finished() looks at
  uint64_t done = 0, failed = 0;
  const Instant start = now();

  // The next request is ready before it is due.
  bool has_next = false;
  double due = 0;
  std::string body;
  LoadPrompt prompt;
  const auto prepare = [&]() -> Status {
    const std::optional<double> next = schedule.next();
    has_next = next.has_value();
    due = next.value_or(0);
    if (!has_next) return {};
    TANDEM_ASSIGN(prompt, prompts.make(records.size()));
    body = request_body(options, prompt);
    prompt.json.clear();
    return {};
  };
  TANDEM_TRY(prepare());
  while (has_next || done < records.size()) {
    const uint64_t in_flight = records.size() - done;
    const bool has_room = options.max_concurrency == 0 || in_flight < options.max_concurrency;
    const double at = seconds_since(start);
    // A place that comes free after the end of a load with a duration is not filled again.
    if (has_next && options.arrivals.seconds > 0 && at > options.arrivals.seconds) {
      has_next = false;
      continue;
    }
    if (has_next && has_room && at >= due) {
      const size_t index = records.size();
      LoadRecord record;
      record.index = index;
      record.due = due;
      record.sent = at;
      records.push_back(std::move(record));
      open_prompts.push_back(prompt);
      client.ask(options.path, std::exchange(body, {}), [ended, index](OpenAiAnswer answer) {
        {
          const std::lock_guard lock(ended->mutex);
          ended->answers.emplace_back(index, std::move(answer));
        }
        ended->changed.notify_one();
      });
      TANDEM_TRY(prepare());
      continue;
    }
    std::deque<std::pair<size_t, OpenAiAnswer>> answers;
    {
      std::unique_lock lock(ended->mutex);
      const double wait = has_next && has_room ? std::min(kTickSeconds, due - at) : kTickSeconds;
      ended->changed.wait_for(lock, std::chrono::duration<double>(wait),
                              [&] { return !ended->answers.empty(); });
      answers.swap(ended->answers);
    }
    for (auto& [index, answer] : answers) {
      records[index] = finished(std::move(records[index]), answer, open_prompts[index], options.stream);
      ++done;
      if (!records[index].ok()) ++failed;
    }
    if (on_progress) on_progress(done, failed, records.size() - done);
  }
  return records;
}

Status send_warmup(OpenAiClient& client, const LoadOptions& options, const PromptSource& prompts,
                   uint64_t index) {
  TANDEM_ASSIGN(const LoadPrompt prompt, prompts.make(index, /*warmup=*/true));
  const auto answered = std::make_shared<std::promise<OpenAiAnswer>>();
  client.ask(options.path, request_body(options, prompt),
             [answered](OpenAiAnswer answer) { answered->set_value(std::move(answer)); });
  const OpenAiAnswer answer = answered->get_future().get();
  if (answer.ok()) return {};
  return make_error(ErrorCode::unavailable,
                    "the first request failed" +
                        (answer.status == 0 ? "" : " with status " + std::to_string(answer.status)) + ": " +
                        answer.error);
}

}  // namespace tandem
