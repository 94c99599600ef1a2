#include "model/parity_fixture.h"

#include <cstring>
#include <span>
#include <utility>

#include "base/file.h"
#include "checkpoint/safetensors.h"

namespace tandem {
namespace {

class FixtureReader {
 public:
  static Result<FixtureReader> open(const std::string& folder) {
    const std::string path = folder + "/parity.safetensors";
    if (!file_exists(path)) {
      return make_error(ErrorCode::not_found,
                        path +
                            " is absent: parity needs a model folder with reference outputs "
                            "beside it, as tools/make_fixtures.py writes them");
    }
    TANDEM_ASSIGN(SafetensorsFile file, SafetensorsFile::open(path));
    return FixtureReader(std::move(file));
  }

  const std::string& path() const { return file_.path(); }

  const TensorInfo* find(const std::string& name) const {
    for (const TensorInfo& tensor : file_.tensors()) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  }

  // Dimensions of 0 in `shape` accept any size.
  template <class T>
  Result<std::vector<T>> read(const std::string& name, DType dtype, std::vector<uint64_t> shape) const {
    const TensorInfo* tensor = find(name);
    if (tensor == nullptr)
      return make_error(ErrorCode::data_loss, path() + ": tensor " + name + " is absent");
    bool fits = tensor->dtype == dtype && tensor->shape.size() == shape.size();
    for (size_t i = 0; fits && i < shape.size(); ++i) fits = shape[i] == 0 || shape[i] == tensor->shape[i];
    if (!fits) {
      return make_error(ErrorCode::data_loss, path() + ": tensor " + name + " is " + tensor->dtype_name +
                                                  " " + shape_text(tensor->shape) +
                                                  " where the model needs " + std::string(dtype_name(dtype)) +
                                                  " " + shape_text(shape) + " (0: any size)");
    }
    const std::span<const std::byte> bytes = file_.bytes(*tensor);
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));  // the file promises no alignment
    return values;
  }

  Result<std::vector<int32_t>> read_ids(const std::string& name, std::vector<uint64_t> shape,
                                        uint32_t limit) const {
    TANDEM_ASSIGN(std::vector<int32_t> ids, read<int32_t>(name, DType::i32, std::move(shape)));
    for (const int32_t id : ids) {
      if (id < 0 || static_cast<uint32_t>(id) >= limit) {
        return make_error(ErrorCode::data_loss, path() + ": tensor " + name + " has id " +
                                                    std::to_string(id) + ": must be 0 to " +
                                                    std::to_string(limit - 1));
      }
    }
    return ids;
  }

 private:
  explicit FixtureReader(SafetensorsFile file) : file_(std::move(file)) {}
  SafetensorsFile file_;
};

Result<FixtureBlocks> read_blocks(const FixtureReader& reader, const std::string& name, uint64_t tokens,
                                  const ModelConfig& config) {
  FixtureBlocks blocks;
  if (reader.find(name + "positions") == nullptr) return blocks;
  if (config.draft.kind != DraftKind::dspark) {
    return make_error(ErrorCode::data_loss, reader.path() + ": tensor " + name +
                                                "positions is of DSpark, which the model does not have");
  }
  // The token behind each is part of the prompt.
  TANDEM_ASSIGN(const std::vector<int32_t> positions,
                reader.read_ids(name + "positions", {0}, static_cast<uint32_t>(tokens - 1)));
  const uint64_t count = positions.size(), size = config.draft.block_size;
  for (const int32_t position : positions) {
    if (!blocks.positions.empty() && static_cast<uint32_t>(position) <= blocks.positions.back())
      return make_error(ErrorCode::data_loss, reader.path() + ": " + name + "positions do not ascend");
    blocks.positions.push_back(static_cast<uint32_t>(position));
  }
  TANDEM_ASSIGN(blocks.ids, reader.read_ids(name + "ids", {count, size}, config.vocab_size));
  TANDEM_ASSIGN(blocks.logits,
                reader.read<float>(name + "logits", DType::f32, {count, size, config.vocab_size}));
  TANDEM_ASSIGN(blocks.confidences, reader.read<float>(name + "confidence", DType::f32, {count, size}));
  return blocks;
}

}  // namespace

Result<std::vector<FixturePrompt>> read_parity_fixture(const std::string& folder, const ModelConfig& config) {
  TANDEM_ASSIGN(const FixtureReader reader, FixtureReader::open(folder));
  std::vector<FixturePrompt> prompts;
  const uint64_t vocab = config.vocab_size;
  for (uint32_t number = 0;; ++number) {
    const std::string name = "prompt." + std::to_string(number) + ".";
    if (reader.find(name + "ids") == nullptr) break;
    FixturePrompt prompt;
    TANDEM_ASSIGN(prompt.ids, reader.read_ids(name + "ids", {0}, config.vocab_size));
    const uint64_t tokens = prompt.ids.size();
    TANDEM_ASSIGN(prompt.logits, reader.read<float>(name + "logits", DType::f32, {tokens, vocab}));
    TANDEM_ASSIGN(prompt.greedy_ids, reader.read_ids(name + "greedy_ids", {0}, config.vocab_size));
    TANDEM_ASSIGN(prompt.greedy_logits,
                  reader.read<float>(name + "greedy_logits", DType::f32, {prompt.greedy_ids.size(), vocab}));
    for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
      if (!config.is_moe(layer)) continue;
      const std::string router = name + "layer." + std::to_string(layer) + ".router_";
      const std::vector<uint64_t> shape{tokens, config.router.top_k};
      FixtureRouting routing;
      TANDEM_ASSIGN(routing.ids, reader.read_ids(router + "ids", shape, config.router.num_experts));
      TANDEM_ASSIGN(routing.weights, reader.read<float>(router + "weights", DType::f32, shape));
      prompt.routing.emplace(layer, std::move(routing));
    }
    if (reader.find(name + "draft_logits") != nullptr) {
      TANDEM_ASSIGN(prompt.draft_logits,
                    reader.read<float>(name + "draft_logits", DType::f32, {tokens - 1, vocab}));
    }
    TANDEM_ASSIGN(prompt.blocks, read_blocks(reader, name + "dspark_", tokens, config));
    if (tokens == 0 || prompt.greedy_ids.empty()) {
      return make_error(ErrorCode::data_loss,
                        reader.path() + ": " + name + "ids or " + name + "greedy_ids is empty");
    }
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) return make_error(ErrorCode::not_found, reader.path() + ": no tensor prompt.0.ids");
  return prompts;
}

}  // namespace tandem
