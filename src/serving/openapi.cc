#include "serving/openapi.h"

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

#include "serving/openapi_schemas.h"
#include "serving/trace_endpoint.h"

namespace tandem {

using Json = nlohmann::ordered_json;

namespace {

Json reference(const std::string& name) {
  return {{"$ref", "#/components/schemas/" + name}};
}

Json reply(const char* description, const char* content_type, Json schema) {
  return {{"description", description}, {"content", {{content_type, {{"schema", std::move(schema)}}}}}};
}

// An object of these fields and no others.
Json request_schema(const std::string& model, std::initializer_list<const char*> fields,
                    std::initializer_list<const char*> required) {
  Json id = {{"type", "string"}};
  if (!model.empty()) id["enum"] = Json::array({model});
  Json properties = {{"model", std::move(id)}};
  for (const char* part : fields) properties.update(Json::parse(part));
  Json names = Json::array({"model"});
  for (const char* name : required) names.push_back(name);
  return {{"type", "object"},
          {"additionalProperties", false},
          {"required", std::move(names)},
          {"properties", std::move(properties)}};
}

void add_errors(Json& replies, const char* schema, bool may_generate) {
  const Json error = reference(schema);
  replies["401"] = reply("no API key, or a wrong one", "application/json", error);
  replies["503"] = reply("loading, or a peer is lost", "application/json", error);
  if (!may_generate) return;
  replies["400"] = reply("what is wrong, by name", "application/json", error);
  replies["404"] = reply("another model than the one served", "application/json", error);
  replies["413"] = reply("the body is too large", "application/json", error);
  replies["429"] =
      reply("the queue is full, or the request waited too long in it", "application/json", error);
  replies["504"] = reply("the request's time is over", "application/json", error);
}

Json post(const char* summary, const char* request, const char* result, const char* error, bool streams) {
  Json replies = Json::object();
  replies["200"] = reply("the answer", "application/json", reference(result));
  if (streams) replies["200"]["content"]["text/event-stream"] = {{"schema", reference("Event")}};
  add_errors(replies, error, true);
  return {{"post",
           {{"summary", summary},
            {"requestBody",
             {{"required", true}, {"content", {{"application/json", {{"schema", reference(request)}}}}}}},
            {"responses", std::move(replies)}}}};
}

Json get(const char* summary, const char* content_type, Json schema, bool open, bool may_be_missing = false) {
  Json replies = Json::object();
  replies["200"] = reply("", content_type, std::move(schema));
  Json out = {{"summary", summary}};
  if (open) {
    out["security"] = Json::array();
    if (std::string(content_type) == "application/json")
      replies["503"] = reply("not now", "application/json", reference("State"));
  } else {
    add_errors(replies, "Error", false);
  }
  if (may_be_missing) replies["404"] = reply("another model", "application/json", reference("Error"));
  out["responses"] = std::move(replies);
  return {{"get", std::move(out)}};
}

Json paths() {
  Json out = Json::object();
  out["/v1/chat/completions"] = post("Chat", "ChatRequest", "ChatCompletion", "Error", true);
  out["/v1/completions"] = post("Continue raw prompts", "CompletionRequest", "Completion", "Error", true);
  out["/v1/responses"] = post("Chat as items", "ResponsesRequest", "Response", "Error", true);
  out["/v1/messages"] = post("Chat in Anthropic's form", "MessagesRequest", "Message", "MessagesError", true);
  out["/v1/messages/count_tokens"] =
      post("How long a message's prompt is", "CountTokensRequest", "TokenCount", "MessagesError", false);
  out["/tokenize"] =
      post("Token ids of a text, or of a chat's prompt", "TokenizeRequest", "Tokens", "Error", false);
  out["/detokenize"] = post("Text of token ids", "DetokenizeRequest", "Text", "Error", false);
  out["/v1/models"] = get("The model that is served", "application/json", reference("Models"), false);
  out["/v1/models/{id}"] = get("The model of that id", "application/json", reference("Model"), false, true);
  out["/v1/models/{id}"]["get"]["parameters"] =
      Json::array({{{"name", "id"},
                    {"in", "path"},
                    {"required", true},
                    {"schema", {{"type", "string"}, {"minLength", 1}}}}});
  out["/health"] = get("Whether the server works", "application/json", reference("State"), true);
  out["/ready"] = get("Whether it takes requests now", "application/json", reference("State"), true);
  out["/metrics"] = get("Prometheus text", "text/plain", {{"type", "string"}}, true);
  out[kTracePath] =
      get("Trace of the next or the last seconds", "application/json", {{"type", "object"}}, false);
  const Json seconds = {{"type", "number"}, {"minimum", kMinTraceSeconds}, {"maximum", kMaxTraceSeconds}};
  Json& trace = out[kTracePath]["get"];
  for (const char* name : {"seconds", "last"})
    trace["parameters"].push_back(
        {{"name", name}, {"in", "query"}, {"required", false}, {"schema", seconds}});
  trace["responses"]["404"] = reply("off, or nothing to record here", "application/json", reference("Error"));
  trace["responses"]["409"] = reply("one at a time", "application/json", reference("Error"));
  out["/props"] = get("Limits and defaults", "application/json", reference("Props"), false);
  out["/openapi.json"] = get("This document", "application/json", {{"type", "object"}}, false);
  return out;
}

}  // namespace

std::string openapi_json(const std::string& model) {
  namespace o = openapi;
  Json schemas = Json::parse(o::kShared);
  schemas["ChatRequest"] = request_schema(model, {o::kChatFields, o::kCommonFields}, {"messages"});
  schemas["CompletionRequest"] = request_schema(model, {o::kCompletionFields, o::kCommonFields}, {"prompt"});
  schemas["ResponsesRequest"] = request_schema(model, {o::kResponsesFields}, {"input"});
  schemas["MessagesRequest"] =
      request_schema(model, {o::kMessagesPromptFields, o::kMessagesAnswerFields}, {"max_tokens", "messages"});
  schemas["CountTokensRequest"] = request_schema(model, {o::kMessagesPromptFields}, {"messages"});
  // With messages: those of a chat request, whose fields need no repetition here.
  schemas["TokenizeRequest"] = request_schema(model, {o::kTokenizeFields}, {});
  schemas["TokenizeRequest"]["properties"]["messages"] = Json::parse(o::kChatFields)["messages"];
  schemas["TokenizeRequest"]["additionalProperties"] = true;
  schemas["DetokenizeRequest"] = request_schema(model, {o::kDetokenizeFields}, {"tokens"});
  const Json bearer = {{"type", "http"}, {"scheme", "bearer"}};
  const Json document = {
      {"openapi", "3.1.0"},
      {"info",
       {{"title", "Tandem"}, {"version", "1"}, {"description", "Every field and refusal: docs/api.md"}}},
      {"paths", paths()},
      {"components", {{"schemas", std::move(schemas)}, {"securitySchemes", {{"key", bearer}}}}},
      {"security", Json::array({Json::object(), {{"key", Json::array()}}})}};
  return document.dump();
}

}  // namespace tandem
