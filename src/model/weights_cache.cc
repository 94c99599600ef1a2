#include "model/weights_cache.h"

#include <fmt/core.h>
#include <sys/stat.h>

#include <filesystem>
#include <set>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/huge_pages.h"
#include "base/log.h"
#include "base/memory_budget.h"

namespace tandem {
namespace {

// The fingerprint, which sees config, headers and samples, and each file's size and time, which see a change
// between the samples.
Result<uint64_t> identity_of(const std::string& model) {
  TANDEM_ASSIGN(const uint64_t fingerprint, model_fingerprint(model));
  TANDEM_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(model));
  std::set<std::string> files;
  for (const StoredTensor& tensor : checkpoint.tensors()) files.insert(tensor.file->path());
  std::string text = fmt::format("{:016x}", fingerprint);
  for (const std::string& file : files) {
    struct stat status {};
    if (::stat(file.c_str(), &status) != 0)
      return make_error(ErrorCode::not_found, "cannot look at " + file + " any more");
    text += fmt::format(" {} {} {}.{:09}", std::filesystem::path(file).filename().string(), status.st_size,
                        status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  }
  return checksum64(text);
}

uint64_t contents_of(const std::vector<PackedCachePart>& parts) {
  std::vector<uint64_t> words;
  words.reserve(2 * parts.size());
  for (const PackedCachePart& part : parts) {
    words.push_back(part.id);
    words.push_back(part.bytes);
  }
  return checksum64(std::as_bytes(std::span(words)));
}

uint64_t bytes_of(const std::vector<PackedCachePart>& parts) {
  uint64_t bytes = 0;
  for (const PackedCachePart& part : parts) bytes += part.bytes;
  return bytes;
}

}  // namespace

Result<WeightsCache> WeightsCache::create(const std::string& folder, const std::string& model) {
  std::error_code ignored;
  if (std::filesystem::exists(folder, ignored) && !std::filesystem::is_directory(folder, ignored)) {
    return make_error(ErrorCode::invalid_argument,
                      "engine.weights_cache: " + folder + " is not a folder; name one, or off");
  }
  WeightsCache cache;
  cache.folder_ = folder;
  cache.model_ = model;
  TANDEM_ASSIGN(cache.key_.checkpoint, identity_of(model));
  return cache;
}

void WeightsCache::choose_file(const LoadRun& run) {
  std::error_code ignored;
  key_.contents = contents_of(run.cache_parts());
  std::filesystem::path place = std::filesystem::weakly_canonical(model_, ignored);
  if (!place.has_filename()) place = place.parent_path();  // "models/arith/"
  const uint64_t name = checksum64(place.string(), key_.contents);
  key_.path =
      (std::filesystem::path(folder_) / fmt::format("{}-{:016x}.packed", place.filename().string(), name))
          .string();
}

bool WeightsCache::restore(LoadRun& run, ModelWeights& weights, ThreadPool& pool,
                           WeightBinder* binder) const {
  const Instant start = now();
  const std::vector<PackedCachePart> parts = run.cache_parts();
  const bool copied = binder != nullptr || huge_pages() == HugePages::on;
  PackedCache::Prepare prepare;  // packed weights come first among the parts
  if (binder != nullptr)
    prepare = [&](size_t part, std::span<std::byte> copy) { binder->bind(part, copy.data()); };
  Result<PackedCache> opened =
      PackedCache::open(key_, parts, copied ? CacheHold::copied : CacheHold::mapped, pool, prepare);
  if (!opened) {
    if (opened.error().code == ErrorCode::not_found) {
      log_info("weights cache: " + key_.path + " is not there yet");
    } else {
      log_warning("weights cache: " + opened.error().message + "; packing the weights again");
    }
    return false;
  }
  const auto cache = std::make_shared<PackedCache>(std::move(*opened));
  run.adopt(weights, *cache, pool);
  cache->release_copied_out();
  weights.cache = cache;
  log_info(fmt::format("weights cache: {} {} from {} and checked in {:.2f} s", bytes_text(bytes_of(parts)),
                       copied ? "copied" : "mapped", key_.path, seconds_since(start)));
  return true;
}

void WeightsCache::save(const LoadRun& run, ThreadPool& pool) const {
  const Instant start = now();
  std::error_code failed;
  std::filesystem::create_directories(std::filesystem::path(key_.path).parent_path(), failed);
  const std::vector<PackedCachePart> parts = run.cache_parts();
  const Result<bool> written = write_packed_cache(key_, parts, pool);
  if (!written) {
    log_warning("weights cache: " + written.error().message + "; the next start packs again");
  } else if (!*written) {
    log_info("weights cache: another process is writing " + key_.path);
  } else {
    log_info(fmt::format("weights cache: {} written to {} in {:.2f} s", bytes_text(bytes_of(parts)),
                         key_.path, seconds_since(start)));
  }
}

}  // namespace tandem
