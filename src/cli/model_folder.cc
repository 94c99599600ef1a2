#include "cli/model_folder.h"

#include "base/file.h"

namespace tandem {
namespace {

// The largest published config.json, with a per-module quantisation table, has some 300 KiB.
constexpr size_t kMaxConfigBytes = size_t{8} << 20;

}  // namespace

Result<ModelConfig> read_model_config(const std::string& path) {
  if (path.empty()) return make_error(ErrorCode::invalid_argument, "no model; name its folder with --model");
  const bool is_file = path.ends_with(".json");
  const std::string file = is_file ? path : path + "/config.json";
  if (!file_exists(path))
    return make_error(ErrorCode::invalid_argument,
                      "model: " + path + " does not exist; name a folder with config.json and *.safetensors");
  if (!file_exists(file)) {
    return make_error(
        ErrorCode::invalid_argument,
        "model: " + path +
            " is not a model folder: it has no config.json; name a folder as Hugging Face lays it out");
  }
  TANDEM_ASSIGN(const std::string text, read_file(file, kMaxConfigBytes));
  return parse_model_config(text, file);
}

}  // namespace tandem
