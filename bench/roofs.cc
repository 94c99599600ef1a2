#include "bench/roofs.h"

#include <atomic>

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
      &kAvx512Bf16Roofs, &kAvx512Roofs, &kAvx2Roofs,
#endif
      &kScalarRoofs};
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

}  // namespace tandem::bench
