// Files of a checkpoint folder that somebody else made: (first byte 0) a .safetensors file, (1) config.json,
// (2) a configuration file of Tandem's. What is accepted keeps its promises; what is not is named in one
// line.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "checkpoint/safetensors.h"
#include "cli/config_file.h"
#include "cli/settings.h"
#include "fuzzing.h"
#include "model/model_config.h"

namespace {

using namespace tandem;
using fuzz::require;

void one_line(const Error& error) {
  require(!error.message.empty() && error.message.find('\n') == std::string::npos, "a refusal is one line");
}

void safetensors(std::span<const std::byte> file) {
  const auto tensors = parse_safetensors_header(file, "model.safetensors");
  if (!tensors) return one_line(tensors.error());
  uint64_t end = tensors->empty() ? 0 : tensors->front().begin;
  for (const TensorInfo& tensor : *tensors) {
    require(tensor.begin == end && tensor.end >= tensor.begin && tensor.end <= file.size(),
            "tensors lie side by side in the file");
    require(tensor.shape.size() <= kMaxTensorRank, "shapes are short");
    end = tensor.end;
    if (tensor.dtype == DType::none) continue;
    uint64_t values = 1;
    for (const uint64_t length : tensor.shape) values *= length;
    require(dtype_bytes(tensor.dtype, values) == tensor.bytes(), "a shape has the bytes of its values");
  }
}

void config(std::string_view text) {
  const auto config = parse_model_config(std::string(text), "config.json");
  if (!config) return one_line(config.error());
  require(config->hidden_size > 0 && config->num_layers > 0 && config->vocab_size > 0, "a model has a size");
  require(config->router.top_k <= config->router.num_experts, "a token has at most all experts");
}

void configuration(std::string_view text) {
  static const int fd = ::memfd_create("tandem.yaml", MFD_CLOEXEC);
  require(fd >= 0 && ::ftruncate(fd, 0) == 0, "there is a file");
  require(::pwrite(fd, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()), "it is written");
  Settings settings;
  OptionSet options = settings.declare();
  const auto read = read_config_file("/proc/self/fd/" + std::to_string(fd), options);
  if (!read) return one_line(read.error());
  if (const auto valid = validate(settings); !valid) one_line(valid.error());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      safetensors(std::as_bytes(std::span(text)));
      break;
    case 1:
      config(text);
      break;
    default:
      configuration(text);
      break;
  }
  return 0;
}
