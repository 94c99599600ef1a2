#include "base/mapping_watch.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string_view>

namespace tandem {
namespace {

constexpr size_t kMostMappings = 512;
constexpr size_t kMostPathBytes = 240;  // of the end of the path, which names the file

// Read by a signal handler, so without locks: `begin` is set last and cleared first.
struct Watched {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::array<char, kMostPathBytes + 1> path{};
};

std::array<Watched, kMostMappings> watched;
std::mutex writers;
struct sigaction before;

void say(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written <= 0) return;
    text.remove_prefix(static_cast<size_t>(written));
  }
}

void on_bus_error(int number, siginfo_t* info, void*) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Watched& each : watched) {
    const uintptr_t begin = each.begin.load(std::memory_order_acquire);
    if (begin == 0 || at < begin || at >= each.end.load(std::memory_order_relaxed)) continue;
    say("error: ");
    say(each.path.data());
    say(" was cut short while it was in use, or its disk failed; move a new file into its place instead of "
        "writing over the old one\n");
    break;
  }
  // The read is tried again when this returns, and meets whoever handled it before: the default ends the
  // process.
  ::sigaction(number, &before, nullptr);
}

void install() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, &before);
}

}  // namespace

void watch_mapping(const std::byte* data, size_t bytes, const std::string& path) {
  static std::once_flag once;
  std::call_once(once, install);
  const std::lock_guard lock(writers);
  const auto place =
      std::ranges::find_if(watched, [](const Watched& each) { return each.begin.load() == 0; });
  if (place == watched.end()) return;
  const size_t cut = path.size() > kMostPathBytes ? path.size() - kMostPathBytes : 0;
  std::memcpy(place->path.data(), path.c_str() + cut, path.size() - cut + 1);
  place->end.store(reinterpret_cast<uintptr_t>(data) + bytes, std::memory_order_relaxed);
  place->begin.store(reinterpret_cast<uintptr_t>(data), std::memory_order_release);
}

void unwatch_mapping(const std::byte* data) {
  const std::lock_guard lock(writers);
  for (Watched& each : watched) {
    if (each.begin.load() == reinterpret_cast<uintptr_t>(data)) each.begin.store(0);
  }
}

}  // namespace tandem
