#include "serving/answer_reply.h"

#include <utility>

#include "serving/api_error.h"

namespace tandem {

namespace {

// A prompt counts once, however many answers it has.
void add_usage(AnswerUsage& total, const AnswerUsage& usage, bool first_of_prompt) {
  total.completion_tokens += usage.completion_tokens;
  if (!first_of_prompt) return;
  total.prompt_tokens += usage.prompt_tokens;
  total.cached_tokens += usage.cached_tokens;
}

class WholeReply : public AnswerListener {
 public:
  WholeReply(ReplyPlan plan, std::shared_ptr<ResponseWriter> writer)
      : plan_(std::move(plan)), writer_(std::move(writer)), answers_(plan_.answers) {
    for (size_t i = 0; i < answers_.size() && !plan_.echo.empty(); ++i) {
      answers_[i].text = plan_.echo[i / plan_.answers_per_prompt];
    }
  }

  void on_piece(uint32_t answer, AnswerPiece piece) override {
    WholeAnswer& whole = answers_[answer];
    whole.text += piece.text;
    for (AnswerToken& token : piece.tokens) whole.tokens.push_back(std::move(token));
  }

  void on_end(uint32_t answer, AnswerEnd end, const AnswerUsage& usage) override {
    answers_[answer].end = end;
    add_usage(usage_, usage, answer % plan_.answers_per_prompt == 0);
  }

  void on_complete() override {
    writer_->respond({.status = 200, .body = whole_json(plan_.head, answers_, usage_)});
  }
  void on_error(const Error& error) override { writer_->respond(error_response(api_error(error))); }

 private:
  ReplyPlan plan_;
  std::shared_ptr<ResponseWriter> writer_;
  std::vector<WholeAnswer> answers_;
  AnswerUsage usage_;
};

class StreamReply : public AnswerListener {
 public:
  StreamReply(ReplyPlan plan, std::shared_ptr<ResponseWriter> writer)
      : plan_(std::move(plan)), writer_(std::move(writer)), begun_(plan_.answers) {}

  void on_piece(uint32_t answer, AnswerPiece piece) override {
    begin(answer);
    event(piece_chunk_json(plan_.head, answer, piece));
  }

  void on_end(uint32_t answer, AnswerEnd end, const AnswerUsage& usage) override {
    begin(answer);
    event(end_chunk_json(plan_.head, answer, end));
    add_usage(usage_, usage, answer % plan_.answers_per_prompt == 0);
  }

  void on_complete() override {
    if (plan_.head.include_usage) event(usage_chunk_json(plan_.head, usage_));
    event("[DONE]");
    writer_->finish();
  }

  void on_error(const Error& error) override {
    if (!started_) return writer_->respond(error_response(api_error(error)));
    event(error_json(api_error(error)));
    writer_->finish();
  }

 private:
  void begin(uint32_t answer) {
    if (begun_[answer]) return;
    begun_[answer] = true;
    if (plan_.head.chat) event(role_chunk_json(plan_.head, answer));
    if (!plan_.echo.empty()) {
      event(piece_chunk_json(plan_.head, answer,
                             {.text = plan_.echo[answer / plan_.answers_per_prompt], .tokens = {}}));
    }
  }

  void event(const std::string& data) {
    if (started_) return writer_->write(sse_event(data));
    started_ = true;
    writer_->start_stream(
        {.status = 200, .content_type = "text/event-stream; charset=utf-8", .body = sse_event(data)});
  }

  ReplyPlan plan_;
  std::shared_ptr<ResponseWriter> writer_;
  std::vector<bool> begun_;
  AnswerUsage usage_;
  bool started_ = false;
};

}  // namespace

std::shared_ptr<AnswerListener> make_whole_reply(ReplyPlan plan, std::shared_ptr<ResponseWriter> writer) {
  return std::make_shared<WholeReply>(std::move(plan), std::move(writer));
}

std::shared_ptr<AnswerListener> make_stream_reply(ReplyPlan plan, std::shared_ptr<ResponseWriter> writer) {
  return std::make_shared<StreamReply>(std::move(plan), std::move(writer));
}

}  // namespace tandem
