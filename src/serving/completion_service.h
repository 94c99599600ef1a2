// CompletionService: the endpoints that generate: parses a request, renders and encodes its prompts,
// starts the generation and wires the client's leaving to its end. `handle` runs on the prepare pool: it may
// take as long as a tokenizer takes.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "serving/answer_reply.h"
#include "serving/http_types.h"
#include "serving/served_model.h"
#include "serving/text_generation.h"

namespace tandem {

class CompletionService {
 public:
  CompletionService(std::shared_ptr<WorkerPool> delivery, std::shared_ptr<ServingMetrics> metrics)
      : delivery_(std::move(delivery)), metrics_(std::move(metrics)) {}

  void handle_completion(const ServedModel& model, const HttpRequest& request,
                         const std::shared_ptr<ResponseWriter>& writer) const;
  void handle_chat(const ServedModel& model, const HttpRequest& request,
                   const std::shared_ptr<ResponseWriter>& writer) const;
  void handle_responses(const ServedModel& model, const HttpRequest& request,
                        const std::shared_ptr<ResponseWriter>& writer) const;
  // vLLM's way to ask for the ids of a text or of a chat's prompt, and for the text of ids.
  void handle_tokenize(const ServedModel& model, const HttpRequest& request,
                       const std::shared_ptr<ResponseWriter>& writer) const;
  void handle_detokenize(const ServedModel& model, const HttpRequest& request,
                         const std::shared_ptr<ResponseWriter>& writer) const;
  // Anthropic's API; and how long a prompt is that one would make.
  void handle_messages(const ServedModel& model, const HttpRequest& request,
                       const std::shared_ptr<ResponseWriter>& writer) const;
  void count_message_tokens(const ServedModel& model, const HttpRequest& request,
                            const std::shared_ptr<ResponseWriter>& writer) const;

 private:
  struct Job;
  using MakeListener = std::function<std::shared_ptr<AnswerListener>(ReplyPlan plan)>;

  // `field`: what the API calls the conversation. Nothing when it has been refused.
  static std::optional<EncodedChat> encode(const ServedModel& model, const HttpRequest& request,
                                           const ChatInput& input, const char* field,
                                           const std::shared_ptr<ResponseWriter>& writer);
  void run_chat(const ServedModel& model, const HttpRequest& request, ChatRequest chat, const char* field,
                const char* id_prefix, MakeListener make_listener,
                const std::shared_ptr<ResponseWriter>& writer) const;
  void start(const ServedModel& model, const HttpRequest& request, Job job,
             const std::shared_ptr<ResponseWriter>& writer) const;

  std::shared_ptr<WorkerPool> delivery_;
  std::shared_ptr<ServingMetrics> metrics_;
};

}  // namespace tandem
