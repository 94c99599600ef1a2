// The prefix cache's file: read before AttentionWorker begins, written now and then, and when it ends.
#include <string>

#include "attention/attention_worker_impl.h"
#include "base/log.h"

namespace tandem {
namespace {

// What is copied for the file between two turns of the loop: under a millisecond, in which nobody computes.
constexpr uint64_t kCopiedAtOnce = uint64_t{2} << 20;

}  // namespace

void AttentionWorker::Impl::load_prefixes_from_file() {
  if (!cache || options.prefix_store.path.empty()) return;
  const auto loaded = load_prefixes(options.prefix_store, *cache);
  if (loaded) {
    log_info(options.prefix_store.path + ": " + std::to_string(loaded->tokens) +
             " tokens of the prefix cache");
  } else if (loaded.error().code != ErrorCode::not_found) {
    log_warning(loaded.error().message + "; the prefix cache begins empty, and the file is written anew");
  }
  saver = std::make_unique<PrefixSaver>(options.prefix_store);
  saved_units = cache->num_stored();
  next_save = now() + options.prefix_store.interval;
}

void AttentionWorker::Impl::save_prefixes_to_file() {
  if (!saver) return;
  const auto saved = saver->save(*cache);
  if (saved) {
    log_info(options.prefix_store.path + ": " + std::to_string(saved->tokens) +
             " tokens of the prefix cache kept, " + std::to_string(saved->bytes >> 20) + " MiB");
  } else {
    log_warning(saved.error().message + "; the prefix cache is lost");
  }
}

void AttentionWorker::Impl::tend_prefix_file() {
  copies_prefixes = false;
  if (!saver || options.prefix_store.interval == Duration::zero()) return;
  if (!saver->busy()) {
    if (now() < next_save) return;
    next_save = now() + options.prefix_store.interval;
    if (cache->num_stored() == saved_units) return;
    saved_units = cache->num_stored();
    saver->begin(*cache);
  }
  copies_prefixes = saver->copy(*cache, kCopiedAtOnce);
  const auto saved = saver->take_result();
  if (!saved) return;
  if (*saved) {
    log_debug(options.prefix_store.path + ": " + std::to_string((*saved)->tokens) +
              " tokens of the prefix cache");
  } else {
    log_warning(saved->error().message + "; the prefix cache is not kept until that is mended");
  }
}

}  // namespace tandem
