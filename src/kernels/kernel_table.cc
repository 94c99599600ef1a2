#include "kernels/kernel_table.h"

#include <cstdlib>
#include <string>

#include "kernels/isa/tables.h"

namespace tandem {
namespace {

std::vector<const KernelTable*> detect() {
  std::vector<const KernelTable*> tables;
#if defined(__x86_64__)
  // These also ask whether the operating system saves the registers.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  // Every CPU with the bf16 dot has the integer dot as well.
  if (avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni"))
    tables.push_back(&kAvx512Bf16Table);
  if (avx512) tables.push_back(&kAvx512Table);
  if (avx2) tables.push_back(&kAvx2Table);
#endif
  tables.push_back(&kScalarTable);
  return tables;
}

}  // namespace

std::span<const KernelTable* const> runnable_kernel_tables() {
  static const std::vector<const KernelTable*> tables = detect();
  return tables;
}

Result<const KernelTable*> choose_kernel_table() {
  const std::span<const KernelTable* const> tables = runnable_kernel_tables();
  const char* wanted = std::getenv("TANDEM_ISA");
  if (wanted == nullptr || *wanted == '\0') return tables.front();
  std::string names;
  for (const KernelTable* table : tables) {
    if (table->name == wanted) return table;
    if (!names.empty()) names += ", ";
    names += table->name;
  }
  return make_error(ErrorCode::invalid_argument,
                    "TANDEM_ISA=" + std::string(wanted) +
                        " is not an instruction set that this CPU can run; use one of " + names +
                        ", or unset it for the fastest");
}

}  // namespace tandem
