#include "bench/roofs.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <fstream>
#include <string>
#include <utility>

#include "base/clock.h"

namespace tandem::bench {

extern const RoofLoops kScalarRoofs;
#if defined(__x86_64__)
extern const RoofLoops kAvx2Roofs;
extern const RoofLoops kAvx512Roofs;
extern const RoofLoops kAvx512Bf16Roofs;
#endif

namespace {

// Keeps results alive.
std::atomic<float> sink;

double measure_flops(float (*loop)(size_t, double&), ThreadPool& pool, double seconds) {
  // A task takes some 50 us, as one of a kernel does; several for each thread, so that a thread that other
  // work holds up costs the roof no more than it costs a kernel.
  constexpr size_t kCount = 5000;
  const size_t tasks = static_cast<size_t>(pool.threads()) * 16;
  double flops = 0, elapsed = 0;
  const Instant start = now();
  do {
    std::atomic<double> task_flops = 0;
    pool.run(tasks, [&](size_t, int) {
      double own = 0;
      sink.store(loop(kCount, own), std::memory_order_relaxed);
      task_flops.store(own, std::memory_order_relaxed);
    });
    flops += task_flops.load() * static_cast<double>(tasks);
    elapsed = seconds_since(start);
  } while (elapsed < seconds);
  return flops / elapsed;
}

}  // namespace

const RoofLoops* roof_loops(std::string_view table) {
  const RoofLoops* const all[] = {
#if defined(__x86_64__)
    &kAvx512Bf16Roofs,
    &kAvx512Roofs,
    &kAvx2Roofs,
#endif
    &kScalarRoofs
  };
  for (const RoofLoops* loops : all) {
    if (loops->table == table) return loops;
  }
  return nullptr;
}

double measure_read(const RoofLoops& loops, ThreadPool& pool, const std::byte* data, size_t bytes,
                    double seconds) {
  constexpr size_t kPiece = size_t{1} << 20;
  const size_t pieces = bytes / kPiece;
  double read = 0, elapsed = 0;
  const Instant start = now();
  do {
    pool.run(pieces, [&](size_t piece, int) {
      sink.store(loops.read(data + piece * kPiece, kPiece), std::memory_order_relaxed);
    });
    read += static_cast<double>(pieces * kPiece);
    elapsed = seconds_since(start);
  } while (elapsed < seconds);
  return read / elapsed;
}

double measure_dot_bf16(const RoofLoops& loops, ThreadPool& pool, double seconds) {
  return measure_flops(loops.dot_bf16, pool, seconds);
}

double measure_fma_f32(const RoofLoops& loops, ThreadPool& pool, double seconds) {
  return measure_flops(loops.fma_f32, pool, seconds);
}

double measure_dot_i8(const RoofLoops& loops, ThreadPool& pool, double seconds) {
  auto loop = loops.dot_i8;
#if defined(__x86_64__)
  if (&loops == &kAvx512Bf16Roofs && !__builtin_cpu_supports("avx512vnni")) loop = kAvx512Roofs.dot_i8;
#endif
  return measure_flops(loop, pool, seconds);
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

// "7f0000000000-7f0010000000 rw-p ...": whether the mapping overlaps [begin, end).
bool overlaps(const std::string& line, uintptr_t begin, uintptr_t end) {
  uintptr_t from = 0, to = 0;
  const char* const stop = line.data() + line.size();
  const auto [dash, first] = std::from_chars(line.data(), stop, from, 16);
  if (first != std::errc() || dash == stop || *dash != '-') return false;
  const auto [rest, second] = std::from_chars(dash + 1, stop, to, 16);
  return second == std::errc() && rest != stop && *rest == ' ' && from < end && begin < to;
}

}  // namespace

Result<ReadMemory> ReadMemory::create(size_t bytes, PageKind pages) {
  ReadMemory memory;
  const size_t mapped = bytes + kHugePageBytes;  // room to begin at a huge page
  void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return make_error(ErrorCode::resource_exhausted,
                      "no memory for " + std::to_string(bytes >> 20) +
                          " MiB to measure the read bandwidth with; free some, or raise the limit");
  }
  memory.mapped_ = data;
  memory.mapped_bytes_ = mapped;
  const auto address = reinterpret_cast<uintptr_t>(data);
  memory.data_ = static_cast<std::byte*>(data) + (kHugePageBytes - address % kHugePageBytes) % kHugePageBytes;
  memory.bytes_ = bytes;
  madvise(memory.data_, bytes, pages == PageKind::huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  // Untouched pages are all the same page of zeros, which would be read from the cache.
  for (size_t i = 0; i < bytes; i += 64) memory.data_[i] = std::byte{1};
  return memory;
}

ReadMemory::ReadMemory(ReadMemory&& other) noexcept
    : mapped_(std::exchange(other.mapped_, nullptr)),
      mapped_bytes_(other.mapped_bytes_),
      data_(other.data_),
      bytes_(other.bytes_) {}

ReadMemory::~ReadMemory() {
  if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
}

size_t ReadMemory::huge_bytes() const {
  std::ifstream smaps("/proc/self/smaps");
  const auto begin = reinterpret_cast<uintptr_t>(data_);
  const std::string key = "AnonHugePages:";
  bool here = false;
  size_t kilobytes = 0;
  for (std::string line; std::getline(smaps, line);) {
    if (line.starts_with(key)) {
      if (here) kilobytes += std::strtoull(line.c_str() + key.size(), nullptr, 10);
    } else if (const size_t colon = line.find(':'); colon == std::string::npos || colon > line.find(' ')) {
      here = overlaps(line, begin, begin + bytes_);
    }
  }
  return std::min(kilobytes << 10, bytes_);
}

}  // namespace tandem::bench
