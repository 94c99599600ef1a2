#include "bench/roof_bench.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/cpu_budget.h"
#include "bench/roofs.h"
#include "kernels/kernel_table.h"

namespace tandem {
namespace {

using namespace bench;

// One figure with one thread and with all.
struct Pair {
  double one = 0, all = 0;
};
struct TableRoofs {
  std::string_view table;
  bool in_use = false;
  Pair small, huge, bf16, int8, f32;
};

TableRoofs measure_table(const KernelTable& table, const RoofLoops& loops, ThreadPool& single,
                         ThreadPool& pool, const ReadMemory& small, const ReadMemory& huge,
                         const RoofBenchOptions& options) {
  constexpr size_t kKinds = 5;
  std::vector<double> values[kKinds][2];
  for (int run = 0; run < options.runs; ++run) {
    for (int all = 0; all < 2; ++all) {
      ThreadPool& threads = all != 0 ? pool : single;
      values[0][all].push_back(measure_read(loops, threads, small.data(), small.size(), options.seconds));
      values[1][all].push_back(measure_read(loops, threads, huge.data(), huge.size(), options.seconds));
      values[2][all].push_back(measure_dot_bf16(loops, threads, options.seconds));
      values[3][all].push_back(measure_dot_i8(loops, threads, options.seconds));
      values[4][all].push_back(measure_fma_f32(loops, threads, options.seconds));
    }
  }
  const auto pair = [&](size_t kind) { return Pair{median(values[kind][0]), median(values[kind][1])}; };
  return {table.name, false, pair(0), pair(1), pair(2), pair(3), pair(4)};
}

// "always [madvise] never", as the system writes it; empty where it does not.
std::string huge_page_mode() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string line;
  std::getline(file, line);
  return line;
}

// What the reader of "huge pages" must know; empty when all is as asked.
std::string huge_page_note(size_t asked, size_t given, const std::string& mode) {
  if (given >= asked) return {};
  const std::string why = mode.empty() ? "it has no transparent huge pages" : "transparent_hugepage: " + mode;
  if (given == 0) {
    return fmt::format("the system gave none ({}): the row \"huge pages\" was read from small ones too", why);
  }
  return fmt::format("the system gave {} of {} MiB ({})", given >> 20, asked >> 20, why);
}

std::string as_text(const RoofBenchOptions& options, int threads, const std::string& note,
                    const std::vector<TableRoofs>& tables) {
  std::string text = fmt::format(
      "roofs: {} threads, medians of {} runs in turn; GB are 10^9 bytes, a multiply-add is two "
      "operations\n",
      threads, options.runs);
  for (const TableRoofs& roofs : tables) {
    text += fmt::format("\n{:<28} {:>12} {:>12}\n",
                        fmt::format("{}{}", roofs.table, roofs.in_use ? " (in use)" : ""), "1 thread",
                        fmt::format("{} threads", threads));
    const auto row = [&](std::string_view name, const Pair& pair, std::string_view unit) {
      text += fmt::format("{:<28} {:>12.1f} {:>12.1f}  {}\n", name, pair.one / 1e9, pair.all / 1e9, unit);
    };
    row("read, small pages", roofs.small, "GB/s");
    row("read, huge pages", roofs.huge, "GB/s");
    row("bf16 dot", roofs.bf16, "GFLOP/s");
    row("int8 dot", roofs.int8, "GOP/s");
    row("f32 fma", roofs.f32, "GFLOP/s");
  }
  if (!note.empty()) text += "\nhuge pages: " + note + "\n";
  return text;
}

std::string as_json(const RoofBenchOptions& options, int threads, size_t huge_bytes, const std::string& note,
                    const std::vector<TableRoofs>& tables) {
  using Json = nlohmann::ordered_json;
  const auto pair = [](const Pair& value) {
    return Json{{"one_thread", value.one / 1e9}, {"all_threads", value.all / 1e9}};
  };
  Json document = {{"threads", threads},
                   {"runs", options.runs},
                   {"read_bytes", options.read_bytes},
                   {"huge_pages", {{"bytes", huge_bytes}, {"mode", huge_page_mode()}, {"note", note}}},
                   {"tables", Json::array()}};
  for (const TableRoofs& roofs : tables) {
    document["tables"].push_back(
        {{"table", roofs.table},
         {"in_use", roofs.in_use},
         {"read", {{"small_pages", pair(roofs.small)}, {"huge_pages", pair(roofs.huge)}}},
         {"bf16_dot", pair(roofs.bf16)},
         {"int8_dot", pair(roofs.int8)},
         {"f32_fma", pair(roofs.f32)}});
  }
  return document.dump() + "\n";
}

}  // namespace

Result<std::string> run_roof_bench(const RoofBenchOptions& options, bool json) {
  constexpr size_t kHugePage = size_t{2} << 20;
  if (options.threads < 0 || options.runs < 1 || !(options.seconds > 0) || options.read_bytes == 0 ||
      options.read_bytes % kHugePage != 0) {
    return make_error(
        ErrorCode::invalid_argument,
        fmt::format("bench roofs: threads {}, runs {}, seconds {}, {} bytes: threads must be 0 (automatic) "
                    "or more, runs at least 1, seconds above 0, bytes a multiple of 2 MiB",
                    options.threads, options.runs, options.seconds, options.read_bytes));
  }
  TANDEM_ASSIGN(const KernelTable* chosen, choose_kernel_table());
  TANDEM_ASSIGN(const ReadMemory small, ReadMemory::create(options.read_bytes, PageKind::small));
  TANDEM_ASSIGN(const ReadMemory huge, ReadMemory::create(options.read_bytes, PageKind::huge));
  ThreadPool single(1);
  ThreadPool pool(options.threads == 0 ? CpuBudget::detect().threads : options.threads);
  std::vector<TableRoofs> tables;
  for (const KernelTable* table : runnable_kernel_tables()) {
    if (!options.all_tables && table != chosen) continue;
    const RoofLoops* loops = roof_loops(table->name);
    if (loops == nullptr) {
      return make_error(ErrorCode::internal, fmt::format("bench roofs: no roofs for table {}", table->name));
    }
    tables.push_back(measure_table(*table, *loops, single, pool, small, huge, options));
    tables.back().in_use = table == chosen;
  }
  const size_t given = huge.huge_bytes();
  const std::string note = huge_page_note(options.read_bytes, given, huge_page_mode());
  return json ? as_json(options, pool.threads(), given, note, tables)
              : as_text(options, pool.threads(), note, tables);
}

}  // namespace tandem
