// Compares DeepSeek-V4 prompts with recorded ones of its own encoding program: tools/make_prompt_cases.py
// writes the file.
//
// usage: prompt_cases CASES
//   CASES: one case a line, {"request": a body of /v1/chat/completions, "three_efforts": bool, "expected":
//   prompt}; prints the first differences and a count, status 1 when there is one.
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "serving/chat/deepseek_v4_prompt.h"
#include "serving/openai_request.h"

namespace {

std::string rendered(const nlohmann::ordered_json& test) {
  tandem::RequestContext context;
  const std::vector<bool> known_tokens(1, true);
  context.model = "m";
  context.known_tokens = &known_tokens;
  context.chat = {.tools = true,
                  .tool_messages = true,
                  .reasoning_effort = true,
                  .latest_reminder = true,
                  .reads_tool_calls = true};
  const auto request = tandem::parse_chat_request(test.at("request").dump(), context);
  if (!request) return "error: " + request.error().message;
  const auto prompt =
      tandem::render_deepseek_v4(request->input, {.three_efforts = test.at("three_efforts").get<bool>()});
  return prompt ? prompt->text : "error: " + prompt.error().message;
}

}  // namespace

int main(int argc, char** argv) {
  std::ifstream cases(argc == 2 ? argv[1] : "");
  if (!cases) {
    std::fprintf(stderr, "usage: prompt_cases CASES\n");
    return 2;
  }
  size_t count = 0, wrong = 0;
  for (std::string line; std::getline(cases, line);) {
    ++count;
    const auto test = nlohmann::ordered_json::parse(line, nullptr, false);
    if (!test.is_object()) {
      std::fprintf(stderr, "case %zu is no JSON object\n", count);
      return 2;
    }
    const std::string got = rendered(test), wanted = test.at("expected").get<std::string>();
    if (got == wanted || ++wrong > 10) continue;
    std::printf("case %zu: wanted %s\n  got %s\n", count, nlohmann::json(wanted).dump().c_str(),
                nlohmann::json(got).dump().c_str());
  }
  std::printf("%zu cases, %zu differ\n", count, wrong);
  return wrong == 0 && count > 0 ? 0 : 1;
}
