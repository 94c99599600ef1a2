#include "serving/responses_reply.h"

#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "serving/api_error.h"

namespace tandem {

using Json = nlohmann::ordered_json;

namespace {

std::string dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

class ResponseReply : public AnswerListener {
 public:
  ResponseReply(ReplyPlan plan, std::shared_ptr<ResponseWriter> writer, const std::string& echo_json,
                bool stream)
      : plan_(std::move(plan)),
        writer_(std::move(writer)),
        parser_(plan_.output_format, plan_.output_options),
        stream_(stream) {
    response_ = {{"id", plan_.head.id},
                 {"object", "response"},
                 {"created_at", plan_.head.created},
                 {"status", "in_progress"},
                 {"background", false},
                 {"error", nullptr},
                 {"incomplete_details", nullptr},
                 {"model", plan_.head.model},
                 {"output", Json::array()},
                 {"usage", nullptr}};
    response_.update(Json::parse(echo_json));
  }

  void on_piece(uint32_t /*answer*/, AnswerPiece piece) override {
    begin();
    for (const AnswerToken& token : piece.tokens) logprobs_.push_back(chat_token_json(token));
    OutputDeltas deltas;
    parser_.push(piece.text, deltas);
    add(deltas);
    if (reasons_) reasoning_tokens_ = piece.generated;
  }

  void on_end(uint32_t /*answer*/, AnswerEnd end, const AnswerUsage& usage) override {
    begin();
    OutputDeltas deltas;
    parser_.finish(deltas);
    add(deltas);
    const bool cut = end == AnswerEnd::length;
    end_item(cut ? "incomplete" : "completed");
    response_["status"] = cut ? "incomplete" : "completed";
    if (cut) response_["incomplete_details"] = {{"reason", "max_output_tokens"}};
    response_["completed_at"] = cut ? Json() : Json(std::time(nullptr));
    response_["usage"] = {
        {"input_tokens", usage.prompt_tokens},
        {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
        {"output_tokens", usage.completion_tokens},
        {"output_tokens_details", {{"reasoning_tokens", reasoning_tokens_}}},
        {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
  }

  void on_complete() override {
    if (!stream_) return writer_->respond({.status = 200, .body = dumped(response_) + "\n"});
    event(response_["status"] == "completed" ? "response.completed" : "response.incomplete",
          {{"response", response_}});
    writer_->finish();
  }

  void on_error(const Error& error) override {
    const ApiError refused = api_error(error);
    if (!started_) return writer_->respond(error_response(refused));
    response_["status"] = "failed";
    response_["error"] = {{"code", "server_error"}, {"message", refused.message}};
    event("response.failed", {{"response", response_}});
    writer_->finish();
  }

 private:
  using Kind = OutputDelta::Kind;

  void begin() {
    if (begun_) return;
    begun_ = true;
    event("response.created", {{"response", response_}});
    event("response.in_progress", {{"response", response_}});
  }

  void add(const OutputDeltas& deltas) {
    for (const OutputDelta& delta : deltas) {
      const Kind kind = delta.kind == Kind::call ? Kind::arguments : delta.kind;
      if (!open_ || delta.kind == Kind::call || kind != kind_) {
        end_item("completed");
        begin_item(kind, delta.text);
      }
      if (delta.kind != Kind::call) item_delta(delta.text);
    }
  }

  void begin_item(Kind kind, const std::string& name) {
    open_ = true;
    kind_ = kind;
    reasons_ = kind == Kind::reasoning;
    switch (kind) {
      case Kind::reasoning:
        item_ = {{"id", new_id("rs_")},
                 {"type", "reasoning"},
                 {"summary", Json::array()},
                 {"content", Json::array()},
                 {"status", "in_progress"}};
        break;
      case Kind::content:
        item_ = {{"id", new_id("msg_")},
                 {"type", "message"},
                 {"status", "in_progress"},
                 {"role", "assistant"},
                 {"content", Json::array()}};
        break;
      default:
        item_ = {{"id", new_id("fc_")},
                 {"type", "function_call"},
                 {"status", "in_progress"},
                 {"call_id", new_id("call_")},
                 {"name", name},
                 {"arguments", ""}};
    }
    event("response.output_item.added", {{"output_index", index()}, {"item", item_}});
    if (kind == Kind::arguments) return;
    item_event("response.content_part.added", {{"content_index", 0}, {"part", part()}});
  }

  void item_delta(const std::string& text) {
    text_ += text;
    Json rest = Json::object();
    if (kind_ != Kind::arguments) rest["content_index"] = 0;
    rest["delta"] = text;
    if (kind_ == Kind::reasoning) {
      logprobs_ = Json::array();  // of reasoning: the API has no place for them
      return item_event("response.reasoning_text.delta", rest);
    }
    if (kind_ == Kind::arguments) return item_event("response.function_call_arguments.delta", rest);
    rest["logprobs"] = logprobs_;
    for (Json& token : logprobs_) item_logprobs_.push_back(std::move(token));
    logprobs_ = Json::array();
    item_event("response.output_text.delta", rest);
  }

  void end_item(const char* status) {
    if (!open_) return;
    open_ = false;
    switch (kind_) {
      case Kind::reasoning:
        item_event("response.reasoning_text.done", {{"content_index", 0}, {"text", text_}});
        break;
      case Kind::content:
        item_event("response.output_text.done",
                   {{"content_index", 0}, {"text", text_}, {"logprobs", item_logprobs_}});
        break;
      default:
        item_event("response.function_call_arguments.done", {{"name", item_["name"]}, {"arguments", text_}});
    }
    if (kind_ == Kind::arguments) {
      item_["arguments"] = text_;
    } else {
      const Json whole = part();
      item_event("response.content_part.done", {{"content_index", 0}, {"part", whole}});
      item_["content"] = Json::array({whole});
    }
    item_["status"] = status;
    event("response.output_item.done", {{"output_index", index()}, {"item", item_}});
    response_["output"].push_back(std::move(item_));
    text_.clear();
    item_logprobs_ = Json::array();
  }

  // The content of the open item, so far.
  Json part() const {
    if (kind_ == Kind::reasoning) return {{"type", "reasoning_text"}, {"text", text_}};
    Json out = {{"type", "output_text"}, {"text", text_}, {"annotations", Json::array()}};
    out["logprobs"] = item_logprobs_;
    return out;
  }

  size_t index() const { return response_["output"].size(); }

  void item_event(const char* type, const Json& rest) {
    if (!stream_) return;
    Json data = {{"item_id", item_["id"]}, {"output_index", index()}};
    data.update(rest);
    event(type, data);
  }

  void event(const char* type, const Json& rest) {
    if (!stream_) return;
    Json data = {{"type", type}, {"sequence_number", sequence_++}};
    data.update(rest);
    std::string text = std::string("event: ") + type + "\ndata: " + dumped(data) + "\n\n";
    if (started_) return writer_->write(std::move(text));
    started_ = true;
    writer_->start_stream(
        {.status = 200, .content_type = "text/event-stream; charset=utf-8", .body = std::move(text)});
  }

  ReplyPlan plan_;
  std::shared_ptr<ResponseWriter> writer_;
  OutputParser parser_;
  const bool stream_;
  Json response_;  // its output: the items that have ended
  bool begun_ = false, started_ = false;
  uint64_t sequence_ = 0;

  bool open_ = false;  // an item goes on: what follows is about it
  Kind kind_ = Kind::content;
  Json item_;
  std::string text_;
  Json item_logprobs_ = Json::array();

  Json logprobs_ = Json::array();  // of tokens whose text is not decided yet
  bool reasons_ = false;           // the last item is reasoning
  uint32_t reasoning_tokens_ = 0;
};

}  // namespace

std::shared_ptr<AnswerListener> make_response_reply(ReplyPlan plan, std::shared_ptr<ResponseWriter> writer,
                                                    std::string echo_json, bool stream) {
  return std::make_shared<ResponseReply>(std::move(plan), std::move(writer), echo_json, stream);
}

}  // namespace tandem
