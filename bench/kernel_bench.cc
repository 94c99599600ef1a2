#include "bench/kernel_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "base/cpu_budget.h"
#include "bench/kernel_cases.h"
#include "bench/roofs.h"

namespace tandem {
namespace {

using namespace bench;

struct Roofs {
  double read_one = 0, read_all = 0;             // bytes a second
  double dot_bf16 = 0, fma_f32 = 0, dot_i8 = 0;  // operations a second, all threads
  double of(FlopRoof roof) const {
    return roof == FlopRoof::bf16_dot ? dot_bf16 : roof == FlopRoof::f32_fma ? fma_f32 : dot_i8;
  }
};

struct CaseResult {
  std::string name;
  double seconds = 0;  // median of one call
  double bytes_per_second = 0, flops = 0;
  std::string_view roof;
  double roof_per_second = 0;        // median, bytes or operations
  double share = 0;                  // median over rounds of roof time / time
  double bytes = 0, operations = 0;  // of one pass
  std::string note;
};

double time_calls(const KernelCase& bench_case, KernelRunner& runner, double seconds) {
  const Instant start = now();
  double elapsed = 0;
  int calls = 0;
  do {
    bench_case.run(runner);
    ++calls;
    elapsed = seconds_since(start);
  } while (elapsed < seconds);
  return elapsed / calls;
}

CaseResult measure(const KernelCase& bench_case, const RoofLoops& loops, KernelRunner& runner,
                   const ReadMemory& memory, const KernelBenchOptions& options, const Roofs& roofs) {
  const FlopRoof peak = bench_case.flop_roof;
  const bool by_memory = bench_case.bytes / roofs.read_all > bench_case.flops / roofs.of(peak);
  CaseResult result;
  result.name = bench_case.name;
  result.roof = by_memory                    ? "read"
                : peak == FlopRoof::bf16_dot ? "bf16 dot"
                : peak == FlopRoof::f32_fma  ? "f32 fma"
                                             : "int8 dot";
  bench_case.run(runner);  // touches everything once
  std::vector<double> times, shares, read;
  for (int round = 0; round < options.rounds; ++round) {
    const double roof =
        by_memory ? measure_read(loops, runner.pool(), memory.data(), memory.size(), options.seconds)
        : peak == FlopRoof::bf16_dot ? measure_dot_bf16(loops, runner.pool(), options.seconds)
        : peak == FlopRoof::f32_fma  ? measure_fma_f32(loops, runner.pool(), options.seconds)
                                     : measure_dot_i8(loops, runner.pool(), options.seconds);
    read.push_back(roof);
    times.push_back(time_calls(bench_case, runner, options.seconds));
    shares.push_back((by_memory ? bench_case.bytes : bench_case.flops) / roof / times.back());
  }
  const double call = median(times);
  result.seconds = call / bench_case.passes;
  result.bytes_per_second = bench_case.bytes / call;
  result.flops = bench_case.flops / call;
  result.roof_per_second = median(read);
  result.share = median(shares);
  result.bytes = bench_case.bytes / bench_case.passes;
  result.operations = bench_case.flops / bench_case.passes;
  result.note = bench_case.note;
  return result;
}

std::string as_table(const KernelTable& table, int threads, const Roofs& roofs,
                     const std::vector<CaseResult>& results) {
  std::string text = fmt::format("kernels: {}, {} threads\n", table.name, threads);
  text += fmt::format(
      "roofs: read {:.1f} GB/s with 1 thread, {:.1f} GB/s with {}; bf16 dot {:.0f} GFLOP/s; "
      "f32 fma {:.0f} GFLOP/s; int8 dot {:.0f} GOP/s\n\n",
      roofs.read_one / 1e9, roofs.read_all / 1e9, threads, roofs.dot_bf16 / 1e9, roofs.fma_f32 / 1e9,
      roofs.dot_i8 / 1e9);
  text += fmt::format("{:<48} {:>10} {:>8} {:>9}  {:<9} {:>6}\n", "case", "us", "GB/s", "GFLOP/s", "roof",
                      "share");
  for (const CaseResult& result : results) {
    text += fmt::format("{:<48} {:>10.1f} {:>8.1f} {:>9.1f}  {:<9} {:>5.0f}%{}{}\n", result.name,
                        result.seconds * 1e6, result.bytes_per_second / 1e9, result.flops / 1e9, result.roof,
                        result.share * 100, result.note.empty() ? "" : "  ", result.note);
  }
  return text;
}

std::string as_json(const KernelTable& table, int threads, const Roofs& roofs,
                    const std::vector<CaseResult>& results) {
  std::string text = fmt::format(
      R"({{"table":"{}","threads":{},"roofs":{{"read_gigabytes_per_second_one_thread":{:.2f},)"
      R"("read_gigabytes_per_second":{:.2f},"bf16_dot_gigaflops":{:.1f},"f32_fma_gigaflops":{:.1f},)"
      R"("int8_dot_gigaops":{:.1f}}},"cases":[)",
      table.name, threads, roofs.read_one / 1e9, roofs.read_all / 1e9, roofs.dot_bf16 / 1e9,
      roofs.fma_f32 / 1e9, roofs.dot_i8 / 1e9);
  for (size_t i = 0; i < results.size(); ++i) {
    const CaseResult& result = results[i];
    text += fmt::format(
        R"({}{{"name":"{}","microseconds":{:.2f},"gigabytes_per_second":{:.2f},"gigaflops":{:.2f},"roof":"{}","roof_giga_per_second":{:.2f},"share":{:.4f},"bytes":{:.0f},"flops":{:.0f},"note":"{}"}})",
        i == 0 ? "" : ",", result.name, result.seconds * 1e6, result.bytes_per_second / 1e9,
        result.flops / 1e9, result.roof, result.roof_per_second / 1e9, result.share, result.bytes,
        result.operations, result.note);
  }
  return text + "]}\n";
}

}  // namespace

Result<std::string> run_kernel_bench(const KernelBenchOptions& options, bool json) {
  return run_case_bench(options, kernel_cases(), json);
}

Result<std::string> run_case_bench(const KernelBenchOptions& options, std::vector<CaseMaker> makers,
                                   bool json) {
  if (options.threads < 0 || options.rounds < 1 || !(options.seconds > 0)) {
    return make_error(
        ErrorCode::invalid_argument,
        fmt::format("bench kernels: threads {}, rounds {}, seconds {}: threads must be 0 (automatic) or "
                    "more, rounds at least 1, seconds above 0",
                    options.threads, options.rounds, options.seconds));
  }
  TANDEM_ASSIGN(const KernelTable* table, choose_kernel_table());
  const RoofLoops* loops = roof_loops(table->name);
  if (loops == nullptr) {
    return make_error(ErrorCode::internal, fmt::format("bench kernels: no roofs for table {}", table->name));
  }
  std::string names;
  for (const CaseMaker& maker : makers) names += (names.empty() ? "" : "; ") + maker.name;
  std::erase_if(makers,
                [&](const CaseMaker& maker) { return maker.name.find(options.filter) == std::string::npos; });
  if (makers.empty()) {
    return make_error(
        ErrorCode::invalid_argument,
        fmt::format("bench kernels: no case has \"{}\" in its name; there are: {}", options.filter, names));
  }

  ThreadPool pool(options.threads == 0 ? CpuBudget::detect().threads : options.threads);
  TANDEM_ASSIGN(KernelRunner runner, KernelRunner::create(*table, pool));
  TANDEM_ASSIGN(const ReadMemory memory, ReadMemory::create(kReadBytes, PageKind::huge));

  Roofs roofs;
  ThreadPool single(1);
  std::vector<double> one, all, dot, fma, i8;
  for (int round = 0; round < options.rounds; ++round) {
    one.push_back(measure_read(*loops, single, memory.data(), memory.size(), options.seconds));
    all.push_back(measure_read(*loops, pool, memory.data(), memory.size(), options.seconds));
    dot.push_back(measure_dot_bf16(*loops, pool, options.seconds));
    fma.push_back(measure_fma_f32(*loops, pool, options.seconds));
    i8.push_back(measure_dot_i8(*loops, pool, options.seconds));
  }
  roofs = {median(one), median(all), median(dot), median(fma), median(i8)};

  std::vector<CaseResult> results;
  for (const CaseMaker& maker : makers) {
    TANDEM_ASSIGN(KernelCase bench_case, maker.make(*table));
    bench_case.name = maker.name;
    if (bench_case.prepare) TANDEM_TRY(bench_case.prepare(runner));
    results.push_back(measure(bench_case, *loops, runner, memory, options, roofs));
  }
  return json ? as_json(*table, pool.threads(), roofs, results)
              : as_table(*table, pool.threads(), roofs, results);
}

}  // namespace tandem
