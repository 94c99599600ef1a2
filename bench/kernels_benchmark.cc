// The cases of the kernel benchmark under Google Benchmark, for its filters, repetitions and comparison
// tools: kernels_benchmark --benchmark_filter=mla. Rates are counters; roofs are in `tandem bench kernels`.
#include <benchmark/benchmark.h>

#include <cstdio>

#include "base/cpu_budget.h"
#include "bench/kernel_cases.h"
#include "bench/shape_cases.h"

namespace tandem::bench {
namespace {

void run_case(benchmark::State& state, const CaseMaker& maker, const KernelTable& table,
              KernelRunner& runner) {
  const Result<KernelCase> made = maker.make(table);
  if (!made) {
    state.SkipWithError(made.error().message.c_str());
    return;
  }
  if (made->prepare) {
    const Status prepared = made->prepare(runner);
    if (!prepared) {
      state.SkipWithError(prepared.error().message.c_str());
      return;
    }
  }
  for ([[maybe_unused]] auto _ : state) made->run(runner);
  const auto calls = static_cast<double>(state.iterations());
  state.counters["bytes"] = benchmark::Counter(made->bytes * calls, benchmark::Counter::kIsRate);
  state.counters["flops"] = benchmark::Counter(made->flops * calls, benchmark::Counter::kIsRate);
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) {
  using namespace tandem;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const auto table = choose_kernel_table();
  if (!table) {
    std::fprintf(stderr, "%s\n", table.error().message.c_str());
    return 2;
  }
  ThreadPool pool(CpuBudget::detect().threads);
  auto runner = KernelRunner::create(**table, pool);
  if (!runner) {
    std::fprintf(stderr, "%s\n", runner.error().message.c_str());
    return 1;
  }
  std::vector<bench::CaseMaker> cases = bench::kernel_cases();
  const auto add = [&](std::vector<bench::CaseMaker> more) {
    cases.insert(cases.end(), more.begin(), more.end());
  };
  for (const bench::ModelShape& shape : bench::model_shapes()) {
    for (size_t format = 0; format < kPackFormats; ++format) {
      if (static_cast<PackFormat>(format) == PackFormat::f32) continue;
      add(bench::moe_cases(shape, {static_cast<PackFormat>(format), 0, 0},
                           std::vector<uint32_t>{1, 8, 32, 512, 2048}));
    }
    add(bench::attention_cases(shape, std::vector<uint32_t>{1, 8, 32, 128},
                               std::vector<uint32_t>{512, 4096, 32768}, 128));
  }
  for (const bench::CaseMaker& maker : cases) {
    benchmark::RegisterBenchmark(maker.name.c_str(), [&, maker](benchmark::State& state) {
      bench::run_case(state, maker, **table, *runner);
    })->UseRealTime();
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
