// OpenAiClient: requests to any server that speaks OpenAI's API (this one's, vLLM's, llama-server's, a hosted
// one), whole or streamed, any number at once. What `bench serving` and `eval` use.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "serving/http_client.h"

namespace tandem {

// What became of one request.
struct OpenAiAnswer {
  int status = 0;     // of HTTP; 0: no reply came
  std::string error;  // empty: it ended as it should
  std::string text;   // content and reasoning joined, as they came
  std::string finish_reason;
  // What the server's `usage` says; -1: it says nothing.
  int64_t prompt_tokens = -1, cached_tokens = -1, completion_tokens = -1;
  double seconds = 0;                 // from sending to the last byte
  std::vector<double> piece_seconds;  // of a stream: when each event that brought text came, from sending

  bool ok() const { return error.empty(); }
};

class OpenAiClient {
 public:
  // `base_url`: with or without the /v1 at its end. `api_key`: sent as a bearer token; empty: none.
  static Result<std::unique_ptr<OpenAiClient>> create(const std::string& base_url,
                                                      const std::string& api_key);

  std::string url() const { return http_->url().origin() + http_->url().path; }
  // The ids of /v1/models. Blocks.
  Result<std::vector<std::string>> models();
  // POSTs `body` (JSON) to `path` ("/v1/completions"). `done` is called once, on the client's thread, and
  // must not block; requests that are open when the client is destroyed end with an error.
  void ask(const std::string& path, std::string body, std::function<void(OpenAiAnswer)> done);

 private:
  OpenAiClient(std::unique_ptr<HttpClient> http, HttpHeaders headers)
      : http_(std::move(http)), headers_(std::move(headers)) {}

  std::unique_ptr<HttpClient> http_;
  HttpHeaders headers_;
};

// Asks for all of `bodies`, at most `concurrency` at once, and returns when all have been answered.
// `on_answer(index, answer)` is called on the caller's thread as answers come, in any order.
void ask_all(OpenAiClient& client, const std::string& path, const std::vector<std::string>& bodies,
             uint32_t concurrency, const std::function<void(size_t, const OpenAiAnswer&)>& on_answer);

// The name to ask `client` for: `wanted`, which must be one of the server's, or its first when `wanted` is
// empty. not_found: names those there are. Blocks.
Result<std::string> choose_model(OpenAiClient& client, const std::string& wanted);

// What --served-model-name and --model say of a server elsewhere: a name there, or nothing where --model is a
// folder of this host.
std::string wanted_model(const std::string& served_model_name, const std::string& model);

}  // namespace tandem
