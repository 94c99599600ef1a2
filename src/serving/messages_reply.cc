#include "serving/messages_reply.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "serving/api_error.h"

namespace tandem {

using Json = nlohmann::ordered_json;

namespace {

constexpr const char* kPath = "/v1/messages";  // whose shape of errors this is

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Anthropic counts what came from a cache apart.
Json usage_json(uint32_t prompt_tokens, uint32_t cached_tokens, uint32_t completion_tokens) {
  return {{"input_tokens", prompt_tokens - cached_tokens},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", cached_tokens},
          {"output_tokens", completion_tokens}};
}

struct Stop {
  const char* reason;
  Json sequence;  // or null
};

Stop stop_of(const ReplyPlan& plan, AnswerEnd end, const AnswerUsage& usage, bool called) {
  if (end == AnswerEnd::length) {
    // What ends before it has all that was asked for has filled the context.
    return {usage.completion_tokens < plan.max_tokens ? "model_context_window_exceeded" : "max_tokens",
            nullptr};
  }
  if (!usage.stop_string.empty()) return {"stop_sequence", usage.stop_string};
  return {called ? "tool_use" : "end_turn", nullptr};
}

Json message_json(const ReplyPlan& plan) {
  return {{"id", plan.head.id},       {"type", "message"},
          {"role", "assistant"},      {"model", plan.head.model},
          {"content", Json::array()}, {"stop_reason", nullptr},
          {"stop_sequence", nullptr}, {"usage", usage_json(plan.prompt_tokens, 0, 0)}};
}

// A block as it begins.
Json empty_block(const OutputDelta& delta) {
  switch (delta.kind) {
    case OutputDelta::Kind::reasoning:
      return {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
    case OutputDelta::Kind::call:
    case OutputDelta::Kind::arguments:
      return {
          {"type", "tool_use"}, {"id", new_id("toolu_")}, {"name", delta.text}, {"input", Json::object()}};
    case OutputDelta::Kind::content:
      break;
  }
  return {{"type", "text"}, {"text", ""}};
}

// A delta goes on with the block of its kind; a call always begins one.
bool begins_block(OutputDelta::Kind open, const OutputDelta& delta) {
  if (delta.kind == OutputDelta::Kind::call) return true;
  if (delta.kind == OutputDelta::Kind::arguments) return false;
  return open != delta.kind;
}

class MessageReply : public AnswerListener {
 public:
  MessageReply(ReplyPlan plan, std::shared_ptr<ResponseWriter> writer, std::string request_id)
      : plan_(std::move(plan)),
        writer_(std::move(writer)),
        request_id_(std::move(request_id)),
        parser_(plan_.output_format, plan_.output_options),
        message_(message_json(plan_)) {}

  void on_piece(uint32_t /*answer*/, AnswerPiece piece) override {
    OutputDeltas deltas;
    parser_.push(piece.text, deltas);
    add(deltas);
  }

  void on_end(uint32_t /*answer*/, AnswerEnd end, const AnswerUsage& usage) override {
    OutputDeltas deltas;
    parser_.finish(deltas);
    add(deltas);
    end_block();
    const Stop stop = stop_of(plan_, end, usage, parser_.called());
    message_["stop_reason"] = stop.reason;
    message_["stop_sequence"] = stop.sequence;
    message_["usage"] = usage_json(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens);
  }

  void on_complete() override {
    writer_->respond(
        {.status = 200, .headers = {{"request-id", request_id_}}, .body = dumped(message_) + "\n"});
  }
  void on_error(const Error& error) override {
    writer_->respond(refusal(api_error(error), kPath, request_id_));
  }

 private:
  void add(const OutputDeltas& deltas) {
    for (const OutputDelta& delta : deltas) {
      if (!open_ || begins_block(kind_, delta)) {
        end_block();
        message_["content"].push_back(empty_block(delta));
        open_ = true;
        kind_ = delta.kind == OutputDelta::Kind::call ? OutputDelta::Kind::arguments : delta.kind;
      }
      if (delta.kind != OutputDelta::Kind::call) text_ += delta.text;
    }
  }

  void end_block() {
    if (!open_) return;
    Json& block = message_["content"].back();
    std::string text = std::exchange(text_, {});
    if (kind_ == OutputDelta::Kind::arguments) {
      // The parser gives objects only.
      block["input"] = Json::parse(text.empty() ? "{}" : text, nullptr, false);
    } else {
      block[kind_ == OutputDelta::Kind::reasoning ? "thinking" : "text"] = std::move(text);
    }
    open_ = false;
  }

  ReplyPlan plan_;
  std::shared_ptr<ResponseWriter> writer_;
  std::string request_id_;
  OutputParser parser_;
  Json message_;
  bool open_ = false;  // the last block of message_ goes on
  OutputDelta::Kind kind_ = OutputDelta::Kind::content;
  std::string text_;  // of it
};

class MessageStream : public AnswerListener {
 public:
  MessageStream(ReplyPlan plan, std::shared_ptr<ResponseWriter> writer, std::string request_id)
      : plan_(std::move(plan)),
        writer_(std::move(writer)),
        request_id_(std::move(request_id)),
        parser_(plan_.output_format, plan_.output_options) {}

  void on_piece(uint32_t /*answer*/, AnswerPiece piece) override {
    begin();
    OutputDeltas deltas;
    parser_.push(piece.text, deltas);
    send(deltas);
  }

  void on_end(uint32_t /*answer*/, AnswerEnd end, const AnswerUsage& usage) override {
    begin();
    OutputDeltas deltas;
    parser_.finish(deltas);
    send(deltas);
    end_block();
    const Stop stop = stop_of(plan_, end, usage, parser_.called());
    event("message_delta",
          {{"delta", {{"stop_reason", stop.reason}, {"stop_sequence", stop.sequence}}},
           {"usage", usage_json(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)}});
  }

  void on_complete() override {
    event("message_stop", Json::object());
    writer_->finish();
  }

  void on_error(const Error& error) override {
    const ApiError refused = api_error(error);
    if (!started_) return writer_->respond(refusal(refused, kPath, request_id_));
    writer_->write("event: error\ndata: " + messages_error_json(refused, request_id_) + "\n\n");
    writer_->finish();
  }

 private:
  void begin() {
    if (started_) return;
    event("message_start", {{"message", message_json(plan_)}});
    event("ping", Json::object());
  }

  void send(const OutputDeltas& deltas) {
    for (const OutputDelta& delta : deltas) {
      if (!open_ || begins_block(kind_, delta)) {
        end_block();
        event("content_block_start", {{"index", index_}, {"content_block", empty_block(delta)}});
        open_ = true;
        kind_ = delta.kind == OutputDelta::Kind::call ? OutputDelta::Kind::arguments : delta.kind;
      }
      if (delta.kind != OutputDelta::Kind::call && !delta.text.empty()) block_delta(delta.text);
    }
  }

  void block_delta(const std::string& text) {
    Json delta;
    switch (kind_) {
      case OutputDelta::Kind::reasoning:
        delta = {{"type", "thinking_delta"}, {"thinking", text}};
        break;
      case OutputDelta::Kind::content:
        delta = {{"type", "text_delta"}, {"text", text}};
        break;
      default:
        delta = {{"type", "input_json_delta"}, {"partial_json", text}};
    }
    event("content_block_delta", {{"index", index_}, {"delta", std::move(delta)}});
  }

  void end_block() {
    if (!open_) return;
    // Clients wait for it, and send it back: nothing here signs reasoning.
    if (kind_ == OutputDelta::Kind::reasoning) {
      event("content_block_delta",
            {{"index", index_}, {"delta", {{"type", "signature_delta"}, {"signature", ""}}}});
    }
    event("content_block_stop", {{"index", index_}});
    open_ = false;
    ++index_;
  }

  // One event: its type, then the rest of its data.
  void event(const char* type, const Json& rest) {
    Json data = {{"type", type}};
    data.update(rest);
    std::string text = std::string("event: ") + type + "\ndata: " + dumped(data) + "\n\n";
    if (started_) return writer_->write(std::move(text));
    started_ = true;
    writer_->start_stream({.status = 200,
                           .content_type = "text/event-stream; charset=utf-8",
                           .headers = {{"request-id", request_id_}},
                           .body = std::move(text)});
  }

  ReplyPlan plan_;
  std::shared_ptr<ResponseWriter> writer_;
  std::string request_id_;
  OutputParser parser_;
  bool started_ = false;
  bool open_ = false;  // block index_ has begun
  OutputDelta::Kind kind_ = OutputDelta::Kind::content;
  uint32_t index_ = 0;
};

}  // namespace

std::shared_ptr<AnswerListener> make_message_reply(ReplyPlan plan, std::shared_ptr<ResponseWriter> writer,
                                                   std::string request_id) {
  return std::make_shared<MessageReply>(std::move(plan), std::move(writer), std::move(request_id));
}

std::shared_ptr<AnswerListener> make_message_stream(ReplyPlan plan, std::shared_ptr<ResponseWriter> writer,
                                                    std::string request_id) {
  return std::make_shared<MessageStream>(std::move(plan), std::move(writer), std::move(request_id));
}

}  // namespace tandem
