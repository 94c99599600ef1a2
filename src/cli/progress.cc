#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace tandem {
namespace {

constexpr auto kRedraw = std::chrono::milliseconds(100);  // nobody reads faster
constexpr uint64_t kBarCells = 30;                        // a bar and its note fit into 80 columns
constexpr double kLogSeconds = 10;

}  // namespace

Progress::Progress(std::string what, uint64_t total)
    : what_(std::move(what)), total_(total), is_terminal_(::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (line_open_) std::fputc('\n', stderr);
}

void Progress::show(uint64_t done, const std::string& note) {
  const bool last = total_ != 0 && done >= total_;
  const double seconds = seconds_since(start_);
  const std::string count = total_ == 0 ? std::to_string(done) : fmt::format("{}/{}", done, total_);
  const std::string more = note.empty() ? "" : ", " + note;
  if (!is_terminal_) {
    const uint64_t due = total_ == 0 ? static_cast<uint64_t>(seconds / kLogSeconds) : 10 * done / total_;
    if (due <= lines_ && !last) return;
    if (last && lines_ >= 10) return;
    lines_ = last ? 10 : due;
    std::fprintf(stderr, "%s: %s in %.1f s%s\n", what_.c_str(), count.c_str(), seconds, more.c_str());
    return;
  }
  if (!last && line_open_ && now() - last_ < kRedraw) return;
  last_ = now();
  line_open_ = true;
  std::string bar;
  if (total_ != 0) {
    const uint64_t full = std::min(kBarCells, kBarCells * done / total_);
    bar = " [" + std::string(full, '#') + std::string(kBarCells - full, '.') + "]";
  }
  // Erases what a longer line before left behind.
  std::fprintf(stderr, "\r%s%s %s, %.0f s%s\033[K", what_.c_str(), bar.c_str(), count.c_str(), seconds,
               more.c_str());
  std::fflush(stderr);
}

}  // namespace tandem
