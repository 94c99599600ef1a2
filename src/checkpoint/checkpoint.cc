#include "checkpoint/checkpoint.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "checkpoint/strict_json.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndexName = "model.safetensors.index.json";
// About 100 bytes an entry: the largest released index (some 95,000 tensors) has 9 MB.
constexpr size_t kMaxIndexBytes = size_t{100} << 20;
// The largest released config.json, with a list of unconverted modules, stays below 100 KB.
constexpr size_t kMaxConfigBytes = size_t{16} << 20;

Result<void> check_folder(const std::string& folder) {
  std::error_code code;
  if (!fs::is_directory(folder, code)) {
    return make_error(
        ErrorCode::invalid_argument,
        fmt::format(
            "{} is not a folder; a model is a folder with config.json, *.safetensors and tokenizer.json",
            folder));
  }
  return {};
}

// Plain names of the *.safetensors of a folder, sorted.
Result<std::vector<std::string>> safetensors_in(const std::string& folder) {
  TANDEM_TRY(check_folder(folder));
  std::error_code code;
  std::vector<std::string> names;
  std::string other;  // a format that we do not read, for the message
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(".safetensors")) names.push_back(name);
    if (name.ends_with(".gguf") || name.ends_with(".bin") || name.ends_with(".pth")) other = name;
  }
  if (code) {
    return make_error(ErrorCode::unavailable, fmt::format("cannot list {}: {}", folder, code.message()));
  }
  std::ranges::sort(names);
  if (names.empty() && !file_exists(folder + "/" + kIndexName)) {
    return make_error(ErrorCode::invalid_argument,
                      other.empty() ? fmt::format("{} has no *.safetensors file", folder)
                                    : fmt::format("{} has {} and no *.safetensors; convert it to safetensors",
                                                  folder, other));
  }
  return names;
}

// name -> file, from the index.
Result<std::map<std::string, std::string>> read_index(const std::string& path) {
  TANDEM_ASSIGN(const std::string text, read_file(path, kMaxIndexBytes));
  TANDEM_ASSIGN(const nlohmann::json index, parse_strict_json(text, path));
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object()) {
    return make_error(ErrorCode::data_loss, path + " has no object 'weight_map'");
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) {
      return make_error(ErrorCode::data_loss,
                        fmt::format("{}: weight_map entry '{}' is not a file name", path, printable(tensor)));
    }
    const std::string name = file.get<std::string>();
    // A shard is a file of this folder: a path could read anything on the machine.
    if (name.empty() || name.find('/') != std::string::npos || name.find('\0') != std::string::npos ||
        name == "..") {
      return make_error(ErrorCode::data_loss,
                        fmt::format("{}: tensor '{}' points to '{}', which is not a plain file name", path,
                                    printable(tensor), printable(name)));
    }
    files.emplace(tensor, name);
  }
  if (files.empty()) return make_error(ErrorCode::data_loss, path + " has an empty weight_map");
  return files;
}

std::string second_copy(const std::string& tensor, const std::string& first, const std::string& second) {
  return fmt::format("tensor '{}' is in {} and in {}; remove one file or add {}", printable(tensor), first,
                     second, kIndexName);
}

// What transformers writes: "model.safetensors", "model-00001-of-00003.safetensors".
bool is_model_file(const std::string& name) {
  return name.starts_with("model.") || name.starts_with("model-");
}

// Without an index nothing says which of two copies of a tensor is meant.
Result<void> refuse_second_copies(const Checkpoint& checkpoint, const std::string& stray) {
  TANDEM_ASSIGN(const SafetensorsFile file, SafetensorsFile::open(stray));
  for (const TensorInfo& info : file.tensors()) {
    if (const StoredTensor* tensor = checkpoint.find(info.name); tensor != nullptr) {
      return make_error(ErrorCode::data_loss, second_copy(info.name, tensor->file->path(), stray));
    }
  }
  return {};
}

void log_ignored(const std::string& folder, const std::vector<std::string>& ignored,
                 const std::string& what) {
  if (ignored.empty()) return;
  log_warning(fmt::format("{}: ignored {} {} that are not part of the model, the first is {}", folder,
                          ignored.size(), what, printable(ignored.front())));
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& folder) {
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  TANDEM_ASSIGN(const std::vector<std::string> present, safetensors_in(folder));

  const std::string index_path = folder + "/" + kIndexName;
  const bool indexed = file_exists(index_path);
  std::map<std::string, std::string> index;
  std::map<std::string, std::string> wanted;  // file -> a tensor that the index expects in it
  if (indexed) {
    TANDEM_ASSIGN(index, read_index(index_path));
    for (const auto& [tensor, file] : index) wanted.emplace(file, tensor);
  } else {
    for (const std::string& file : present) {
      if (is_model_file(file)) wanted.emplace(file, "");
    }
    if (wanted.empty()) {
      for (const std::string& file : present) wanted.emplace(file, "");
    }
  }

  std::vector<std::string> ignored_files, ignored_tensors;
  for (const std::string& file : present) {
    if (!wanted.contains(file)) ignored_files.push_back(file);
  }
  for (const auto& [name, tensor] : wanted) {
    const std::string path = folder + "/" + name;
    if (!file_exists(path)) {
      return make_error(ErrorCode::not_found,
                        fmt::format("{} names {} for tensor '{}', and {} does not exist; download it again",
                                    index_path, name, printable(tensor), path));
    }
    TANDEM_ASSIGN(SafetensorsFile opened, SafetensorsFile::open(path));
    checkpoint.files_.push_back(std::make_unique<SafetensorsFile>(std::move(opened)));
    const SafetensorsFile* file = checkpoint.files_.back().get();
    for (const TensorInfo& info : file->tensors()) {
      if (indexed) {
        const auto entry = index.find(info.name);
        if (entry == index.end() || entry->second != name) {
          ignored_tensors.push_back(info.name + " in " + name);
          continue;
        }
      }
      checkpoint.tensors_.push_back({&info, file});
    }
  }
  std::ranges::sort(checkpoint.tensors_, {},
                    [](const StoredTensor& tensor) { return std::string_view(tensor.info->name); });
  for (size_t i = 1; i < checkpoint.tensors_.size(); ++i) {
    const StoredTensor &a = checkpoint.tensors_[i - 1], &b = checkpoint.tensors_[i];
    if (a.info->name == b.info->name) {
      return make_error(ErrorCode::data_loss, second_copy(a.info->name, a.file->path(), b.file->path()));
    }
  }
  for (const auto& [tensor, file] : index) {
    if (checkpoint.find(tensor) == nullptr) {
      return make_error(ErrorCode::not_found,
                        fmt::format("{} says that {} holds tensor '{}', and it does not", index_path, file,
                                    printable(tensor)));
    }
  }
  if (!indexed) {
    for (const std::string& file : ignored_files)
      TANDEM_TRY(refuse_second_copies(checkpoint, folder + "/" + file));
  }
  log_ignored(folder, ignored_files, "file(s)");
  log_ignored(folder, ignored_tensors, "tensor(s)");
  return checkpoint;
}

const StoredTensor* Checkpoint::find(std::string_view name) const {
  const auto it = std::ranges::lower_bound(
      tensors_, name, {}, [](const StoredTensor& tensor) { return std::string_view(tensor.info->name); });
  return it != tensors_.end() && it->info->name == name ? &*it : nullptr;
}

uint64_t Checkpoint::total_bytes() const {
  uint64_t bytes = 0;
  for (const StoredTensor& tensor : tensors_) bytes += tensor.info->bytes();
  return bytes;
}

Result<std::string> read_config_json(const std::string& folder) {
  const std::string path = folder + "/config.json";
  TANDEM_TRY(check_folder(folder));
  if (!file_exists(path)) {
    return make_error(ErrorCode::invalid_argument,
                      fmt::format("{} has no config.json: not a model folder", folder));
  }
  return read_file(path, kMaxConfigBytes);
}

}  // namespace tandem
