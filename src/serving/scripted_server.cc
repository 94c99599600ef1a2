// A server of DeepSeek-V4's chat format whose answers are written down: for tests of the API with clients
// that are not ours. The tokens of an answer are those that the tokenizer makes of it.
//
// usage: scripted_server ANSWERS
//   ANSWERS: a JSON list of texts; a request gets the one that its seed counts, from 0. Prints
//   "ready URL", serves the model "scripted" until standard input ends.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "serving/api_server.h"
#include "serving/scripted_engine.h"
#include "serving/test_tokenizer.h"

namespace tandem {
namespace {

Status serve(const char* answers_path) {
  std::ifstream file(answers_path);
  const auto answers = nlohmann::json::parse(file, nullptr, false);
  if (!answers.is_array())
    return make_error(ErrorCode::invalid_argument, std::string(answers_path) + " is no JSON list");
  const auto folder =
      std::filesystem::temp_directory_path() / ("tandem_scripted_server_" + std::to_string(getpid()));
  write_deepseek_v4_test_folder(folder.string());
  auto model = read_served_model(folder.string(), "scripted");
  std::filesystem::remove_all(folder);
  if (!model) return std::unexpected(model.error());

  ScriptedEngineOptions options;
  options.limits.max_context_tokens = options.limits.kv_pool_tokens = 1 << 16;
  options.eos_token_ids = {kEosId};
  options.script = [&answers, tokenizer = model->tokenizer](const GenerationRequest& request) {
    const size_t at = request.sampling.seed.value_or(0);
    const std::string text = at < answers.size() ? answers[at].get<std::string>() : "there is no such answer";
    return tokenizer->encode(text, {.add_special_tokens = false}).value_or(std::vector<int32_t>());
  };
  ScriptedEngine engine(std::move(options));
  ApiServerOptions server_options;
  server_options.http.port = 0;
  server_options.access_log = false;
  TANDEM_ASSIGN(const std::unique_ptr<ApiServer> server, ApiServer::start(std::move(server_options)));
  attach_engine(*model, engine);
  server->set_ready(std::move(*model));
  std::printf("ready %s\n", server->url().c_str());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return {};
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  const auto status = tandem::serve(argc == 2 ? argv[1] : "ANSWERS");
  if (status) return 0;
  std::fprintf(stderr, "%s\n", status.error().message.c_str());
  return 2;
}
