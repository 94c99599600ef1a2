#include "serving/answer_reply.h"

#include <fmt/format.h>

#include <random>
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

// What a client answers a call by.
std::string new_call_id() {
  return new_id("call_");
}

std::vector<OutputParser> make_parsers(const ReplyPlan& plan) {
  std::vector<OutputParser> out;
  for (uint32_t i = 0; plan.head.chat && i < plan.answers; ++i) {
    out.emplace_back(plan.output_format, plan.output_options);
  }
  return out;
}

class WholeReply : public AnswerListener {
 public:
  WholeReply(ReplyPlan plan, std::shared_ptr<ResponseWriter> writer)
      : plan_(std::move(plan)),
        writer_(std::move(writer)),
        parsers_(make_parsers(plan_)),
        answers_(plan_.answers),
        prompts_(plan_.answers / plan_.answers_per_prompt) {
    for (size_t i = 0; i < answers_.size() && !plan_.echo.empty(); ++i) {
      answers_[i].text = plan_.echo[i / plan_.answers_per_prompt];
    }
  }

  void on_prompt(uint32_t prompt, std::vector<AnswerToken> tokens) override {
    for (uint32_t i = 0; i < plan_.answers_per_prompt && plan_.echo_logprobs; ++i)
      answers_[prompt * plan_.answers_per_prompt + i].tokens = tokens;
    prompts_[prompt] = std::move(tokens);
  }

  void on_piece(uint32_t answer, AnswerPiece piece) override {
    WholeAnswer& whole = answers_[answer];
    for (AnswerToken& token : piece.tokens) whole.tokens.push_back(std::move(token));
    if (!plan_.head.chat) {
      whole.text += piece.text;
      return;
    }
    OutputDeltas deltas;
    parsers_[answer].push(piece.text, deltas);
    add(whole, std::move(deltas));
  }

  void on_end(uint32_t answer, AnswerEnd end, const AnswerUsage& usage) override {
    answers_[answer].end = end;
    if (plan_.head.chat) {
      OutputDeltas deltas;
      parsers_[answer].finish(deltas);
      add(answers_[answer], std::move(deltas));
    }
    add_usage(usage_, usage, answer % plan_.answers_per_prompt == 0);
  }

  void on_complete() override {
    writer_->respond({.status = 200, .body = whole_json(plan_.head, answers_, prompts_, usage_)});
  }
  void on_error(const Error& error) override { writer_->respond(error_response(api_error(error))); }

 private:
  static void add(WholeAnswer& whole, OutputDeltas deltas) {
    for (OutputDelta& delta : deltas) {
      switch (delta.kind) {
        case OutputDelta::Kind::content:
          whole.text += delta.text;
          break;
        case OutputDelta::Kind::reasoning:
          whole.reasoning += delta.text;
          break;
        case OutputDelta::Kind::call:
          whole.tool_calls.push_back({.id = new_call_id(), .name = std::move(delta.text), .arguments = {}});
          break;
        case OutputDelta::Kind::arguments:
          whole.tool_calls.back().arguments += delta.text;
          break;
      }
    }
  }

  ReplyPlan plan_;
  std::shared_ptr<ResponseWriter> writer_;
  std::vector<OutputParser> parsers_;
  std::vector<WholeAnswer> answers_;
  std::vector<std::vector<AnswerToken>> prompts_;
  AnswerUsage usage_;
};

class StreamReply : public AnswerListener {
 public:
  StreamReply(ReplyPlan plan, std::shared_ptr<ResponseWriter> writer)
      : plan_(std::move(plan)),
        writer_(std::move(writer)),
        parsers_(make_parsers(plan_)),
        tokens_(plan_.answers),
        begun_(plan_.answers),
        prompts_(plan_.answers / plan_.answers_per_prompt) {}

  void on_prompt(uint32_t prompt, std::vector<AnswerToken> tokens) override {
    if (plan_.echo_logprobs) prompts_[prompt] = std::move(tokens);
  }

  void on_piece(uint32_t answer, AnswerPiece piece) override {
    begin(answer);
    note_usage(answer, piece.generated);
    if (!plan_.head.chat) return event(piece_chunk_json(plan_.head, answer, piece));
    for (AnswerToken& token : piece.tokens) tokens_[answer].push_back(std::move(token));
    OutputDeltas deltas;
    parsers_[answer].push(piece.text, deltas);
    send(answer, deltas);
  }

  void on_end(uint32_t answer, AnswerEnd end, const AnswerUsage& usage) override {
    begin(answer);
    note_usage(answer, usage.completion_tokens);
    bool called = false;
    if (plan_.head.chat) {
      OutputDeltas deltas;
      parsers_[answer].finish(deltas);
      // Logprobs of what became no text still belong to the answer.
      if (deltas.empty() && !tokens_[answer].empty()) deltas.emplace_back();
      send(answer, deltas);
      called = parsers_[answer].called();
    }
    event(end_chunk_json(plan_.head, answer, end, called));
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
    note_usage(answer, 0);
    if (plan_.head.chat) event(role_chunk_json(plan_.head, answer));
    if (!plan_.echo.empty()) {
      const uint32_t prompt = answer / plan_.answers_per_prompt;
      event(piece_chunk_json(plan_.head, answer, {.text = plan_.echo[prompt], .tokens = prompts_[prompt]}));
    }
  }

  void note_usage(uint32_t answer, uint32_t generated) {
    if (plan_.prompt_sizes.empty()) return;
    plan_.head.usage_so_far =
        AnswerUsage{.prompt_tokens = plan_.prompt_sizes[answer / plan_.answers_per_prompt],
                    .completion_tokens = generated};
  }

  // The tokens so far go with the first delta that is decided after them.
  void send(uint32_t answer, const OutputDeltas& deltas) {
    for (const OutputDelta& delta : deltas) {
      const bool begins_call = delta.kind == OutputDelta::Kind::call;
      const std::string id = begins_call ? new_call_id() : std::string();
      event(delta_chunk_json(plan_.head, answer, delta, id, std::exchange(tokens_[answer], {})));
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
  std::vector<OutputParser> parsers_;
  std::vector<std::vector<AnswerToken>> tokens_;  // [answers]: not sent yet
  std::vector<bool> begun_;
  std::vector<std::vector<AnswerToken>> prompts_;  // to be echoed
  AnswerUsage usage_;
  bool started_ = false;
};

}  // namespace

std::string new_id(const char* prefix) {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{}{:016x}{:08x}", prefix, random(), random() >> 32);
}

std::shared_ptr<AnswerListener> make_whole_reply(ReplyPlan plan, std::shared_ptr<ResponseWriter> writer) {
  return std::make_shared<WholeReply>(std::move(plan), std::move(writer));
}

std::shared_ptr<AnswerListener> make_stream_reply(ReplyPlan plan, std::shared_ptr<ResponseWriter> writer) {
  return std::make_shared<StreamReply>(std::move(plan), std::move(writer));
}

}  // namespace tandem
