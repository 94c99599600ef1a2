#include "transport/refusal_log.h"

#include "base/log.h"

namespace tandem {
namespace {

// A deployment whose ranks all start with one wrong setting is still seen rank by rank.
constexpr uint64_t kLinesPerSecond = 16;

}  // namespace

void RefusalLog::add(const std::string& line) {
  const Instant at = now();
  if (at - second_ >= std::chrono::seconds(1)) {
    if (count_ > kLinesPerSecond) {
      log_warning(std::to_string(count_ - kLinesPerSecond) + " more connections were refused like these");
    }
    second_ = at;
    count_ = 0;
  }
  if (++count_ <= kLinesPerSecond) log_warning(line);
}

}  // namespace tandem
