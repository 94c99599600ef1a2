// CompletionService: the two endpoints that generate: parses a request, renders and encodes its prompts,
// starts the generation and wires the client's leaving to its end. `handle` runs on the prepare pool: it may
// take as long as a tokenizer takes.
#pragma once

#include <memory>

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

 private:
  struct Job;
  void start(const ServedModel& model, const HttpRequest& request, Job job,
             const std::shared_ptr<ResponseWriter>& writer) const;

  std::shared_ptr<WorkerPool> delivery_;
  std::shared_ptr<ServingMetrics> metrics_;
};

}  // namespace tandem
