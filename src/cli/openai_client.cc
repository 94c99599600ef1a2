#include "cli/openai_client.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/clock.h"
#include "serving/http_response_parser.h"

namespace tandem {
namespace {

using Json = nlohmann::json;

// Of an error that is not JSON: a page of a proxy can be long.
constexpr size_t kMaxErrorText = 300;

const Json* member(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

int64_t count_of(const Json* value) {
  return value != nullptr && value->is_number_integer() ? value->get<int64_t>() : -1;
}

std::string error_text(const Json& document) {
  const Json* error = member(document, "error");
  if (error == nullptr) error = &document;  // vLLM's older form
  if (error->is_string()) return error->get<std::string>();
  const Json* message = member(*error, "message");
  return message != nullptr && message->is_string() ? message->get<std::string>()
                                                    : error->dump().substr(0, kMaxErrorText);
}

// The text of a choice: of a completion, of a chat's message or of a piece of either. True: there was some.
bool take_text(const Json& choice, std::string& text) {
  const Json* source = member(choice, "delta");
  if (source == nullptr) source = member(choice, "message");
  if (source == nullptr) source = &choice;
  bool some = false;
  for (const char* name : {"reasoning_content", "reasoning", "content", "text"}) {
    const Json* part = member(*source, name);
    if (part == nullptr || !part->is_string() || part->get_ref<const std::string&>().empty()) continue;
    text += part->get_ref<const std::string&>();
    some = true;
  }
  // Pieces of a call are output, too.
  const Json* calls = member(*source, "tool_calls");
  return some || (calls != nullptr && !calls->empty());
}

class AnswerSink final : public HttpReplySink {
 public:
  explicit AnswerSink(std::function<void(OpenAiAnswer)> done) : done_(std::move(done)) {}

  void on_head(int status, const HttpHeaders& headers) override {
    answer_.status = status;
    for (const auto& [name, value] : headers)
      is_stream_ = is_stream_ || (name == "content-type" && value.starts_with("text/event-stream"));
    is_stream_ = is_stream_ && status == 200;
  }
  void on_body(std::string_view piece) override {
    if (is_stream_) {
      events_.put(piece);
    } else {
      body_.append(piece);
    }
  }
  void on_end(const Status& status) override {
    answer_.seconds = seconds_since(start_);
    if (!status) {
      answer_.error = status.error().message;
    } else if (!is_stream_) {
      take_whole();
    } else if (answer_.error.empty() && answer_.finish_reason.empty()) {
      answer_.error = "the stream ended without a finish_reason";
    }
    done_(std::move(answer_));
  }

 private:
  void take_whole() {
    const Json document = Json::parse(body_, nullptr, /*allow_exceptions=*/false);
    if (answer_.status != 200) {
      answer_.error = document.is_discarded()
                          ? "status " + std::to_string(answer_.status) + ": " + body_.substr(0, kMaxErrorText)
                          : error_text(document);
      return;
    }
    if (document.is_discarded()) {
      answer_.error = "the reply is not JSON: " + body_.substr(0, kMaxErrorText);
      return;
    }
    take(document);
    if (answer_.finish_reason.empty()) answer_.error = "a reply without a finish_reason";
  }
  void take_event(std::string_view data) {
    if (data == "[DONE]") return;
    const Json document = Json::parse(data, nullptr, /*allow_exceptions=*/false);
    if (document.is_discarded()) {
      answer_.error = "an event is not JSON: " + std::string(data.substr(0, kMaxErrorText));
    } else if (member(document, "error") != nullptr) {
      answer_.error = error_text(document);
    } else if (take(document)) {
      answer_.piece_seconds.push_back(seconds_since(start_));
    }
  }
  // True: it brought text.
  bool take(const Json& document) {
    if (const Json* usage = member(document, "usage")) {
      answer_.prompt_tokens = count_of(member(*usage, "prompt_tokens"));
      answer_.completion_tokens = count_of(member(*usage, "completion_tokens"));
      if (const Json* details = member(*usage, "prompt_tokens_details"))
        answer_.cached_tokens = count_of(member(*details, "cached_tokens"));
    }
    const Json* choices = member(document, "choices");
    if (choices == nullptr || !choices->is_array() || choices->empty()) return false;
    const Json& choice = choices->front();
    if (const Json* reason = member(choice, "finish_reason"); reason != nullptr && reason->is_string())
      answer_.finish_reason = reason->get<std::string>();
    return take_text(choice, answer_.text);
  }

  std::function<void(OpenAiAnswer)> done_;
  Instant start_ = now();
  OpenAiAnswer answer_;
  bool is_stream_ = false;
  std::string body_;
  EventReader events_{[this](std::string_view data) { take_event(data); }};
};

}  // namespace

Result<std::unique_ptr<OpenAiClient>> OpenAiClient::create(const std::string& base_url,
                                                           const std::string& api_key) {
  TANDEM_ASSIGN(HttpUrl url, parse_http_url(base_url));
  if (url.path.ends_with("/v1")) url.path.resize(url.path.size() - 3);
  TANDEM_ASSIGN(std::unique_ptr<HttpClient> http, HttpClient::create(std::move(url)));
  HttpHeaders headers = {{"content-type", "application/json"}};
  if (!api_key.empty()) headers.emplace_back("authorization", "Bearer " + api_key);
  return std::unique_ptr<OpenAiClient>(new OpenAiClient(std::move(http), std::move(headers)));
}

Result<std::vector<std::string>> OpenAiClient::models() {
  TANDEM_ASSIGN(const HttpClientReply reply, http_->fetch({.path = "/v1/models", .headers = headers_}));
  const Json document = Json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
  const auto refuse = [&](const std::string& why) {
    return make_error(ErrorCode::unavailable, url() + "/v1/models: " + why);
  };
  if (document.is_discarded())
    return refuse("status " + std::to_string(reply.status) + " and no JSON; does OpenAI's API lie there?");
  if (reply.status != 200)
    return refuse("status " + std::to_string(reply.status) + ": " + error_text(document));
  const Json* data = member(document, "data");
  if (data == nullptr || !data->is_array()) return refuse("no list of models");
  std::vector<std::string> names;
  for (const Json& model : *data) {
    const Json* id = member(model, "id");
    if (id != nullptr && id->is_string()) names.push_back(id->get<std::string>());
  }
  if (names.empty()) return refuse("an empty list of models");
  return names;
}

void OpenAiClient::ask(const std::string& path, std::string body, std::function<void(OpenAiAnswer)> done) {
  http_->send({.method = "POST", .path = path, .headers = headers_, .body = std::move(body)},
              std::make_shared<AnswerSink>(std::move(done)));
}

void ask_all(OpenAiClient& client, const std::string& path, const std::vector<std::string>& bodies,
             uint32_t concurrency, const std::function<void(size_t, const OpenAiAnswer&)>& on_answer) {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::pair<size_t, OpenAiAnswer>> ended;
  size_t sent = 0;
  for (size_t done = 0; done < bodies.size();) {
    for (; sent < bodies.size() && sent - done < concurrency; ++sent) {
      client.ask(path, bodies[sent], [&, index = sent](OpenAiAnswer answer) {
        // Notified under the lock: when the last answer has been taken, nobody touches these any more.
        const std::lock_guard lock(mutex);
        ended.emplace_back(index, std::move(answer));
        changed.notify_one();
      });
    }
    std::deque<std::pair<size_t, OpenAiAnswer>> answers;
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return !ended.empty(); });
      answers.swap(ended);
    }
    done += answers.size();
    for (const auto& [index, answer] : answers) on_answer(index, answer);
  }
}

std::string wanted_model(const std::string& served_model_name, const std::string& model) {
  if (!served_model_name.empty()) return served_model_name;
  return std::filesystem::is_directory(model) ? "" : model;
}

Result<std::string> choose_model(OpenAiClient& client, const std::string& wanted) {
  TANDEM_ASSIGN(const std::vector<std::string> names, client.models());
  if (wanted.empty()) return names.front();
  if (std::ranges::find(names, wanted) != names.end()) return wanted;
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return make_error(ErrorCode::not_found, client.url() + " has no model '" + wanted + "'; it has " + all);
}

}  // namespace tandem
